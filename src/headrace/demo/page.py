"""The demo's report: one HTML page with plots of both lanes. Every caption is computed from the recording (`captions.py`)."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.control.elastic import Elastic
from headrace.demo import captions, query
from headrace.demo.calls import CallMaker, about
from headrace.demo.check import Verdict
from headrace.demo.measure import Done, Recording, delays, latencies
from headrace.demo.tariffs import TAKES_S
from headrace.report.machine import machine
from headrace.report.page import Headline, Page, render
from headrace.report.plots import Plot, PlotMark, Series

SPARK_COLOUR, OURS_COLOUR = "#c2483c", "#2563a8"
MARKED = {
    "hot": ("hot key", True, "#8a5fb0"),
    "rebalance": ("rebalance", False, "#8a5fb0"),
    "cool": ("", False, "#8a5fb0"),
    "kill": ("kill -9", False, "#1f2933"),
    "back": ("back", False, "#2f8f5b"),
}
"""By kind of mark: the word above it, whether that ends at the line, and the colour."""
FAIR = (
    "Both lanes run the same program with the same trigger over the same calls, at the same time, each in a process of its own with up to "
    "{tasks} tasks at a time. Every call is priced by a tariff service that takes {ms:.0f} ms. A task waits for it, one call after the "
    "other; waiting needs no core, so neither lane takes the machine from the other. Where the work is computing, more instances help up "
    "to the number of cores. Plain Spark has {partitions}, enough for the average rate if it did nothing else; their number is fixed in "
    "its checkpoint. Headrace may have 1 to {tasks} instances. Its policy has the default limits; its period and cool-down are "
    "{period:g} s and {cooldown:g} s instead of 5 s and 10 s, because the demo's day lasts a minute. The batches that warm both up are in "
    "the answers, but not in the figures."
)


def report(run: Recording, verdict: Verdict, static: str, partitions: int, elastic: Elastic, maker: CallMaker) -> str:
    """The whole page."""
    text = str(verdict)
    fair = FAIR.format(
        tasks=elastic.most(1),
        ms=1000 * TAKES_S,
        partitions=captions.many(partitions, "partition"),
        period=elastic.period_s,
        cooldown=elastic.cooldown_s,
    )
    page = Page(
        title="Headrace demo: one stream, two lanes",
        subtitle=fair,
        verdict=f"Headrace's lane is {text}",
        good=verdict.equal,
        figures=figures(run),
        plots=plots(run, partitions, elastic),
        tables={
            "What happened": [(f"{max(0.0, mark.at_s):.0f} s", mark.text) for mark in run.marks] or [("nothing", "")],
            "At the end": [("plain Spark", static), ("Headrace", text), ("last call", captions.behind(run))],
            "Input": list(about(maker).items()),
            "Machine and versions": machine(),
        },
        texts={"The program, the same in both lanes": inspect.getsource(query.priced) + "\n\n" + inspect.getsource(query.biller)}
        | ({"Differences": "\n".join(verdict.examples)} if verdict.examples else {}),
    )
    return render(page)


def figures(run: Recording) -> list[Headline]:
    """The headline figures."""
    static, elastic = (latencies(run.arrivals, done, run.seconds) for done in (run.static, run.elastic))
    counts = [point.instances for point in run.points] or [0]
    made = [Headline(f"{run.rows:,}", "calls"), Headline(f"{min(counts)} to {max(counts)}", "instances of Headrace's lane")]
    for share, name in ((0.5, "median"), (0.99, "99 %"), (1.0, "longest")):
        made += [
            Headline(captions.seconds(static.percentile(share)), f"latency on plain Spark, {name}"),
            Headline(captions.seconds(elastic.percentile(share)), f"latency on Headrace, {name}"),
        ]
    return made


def plots(run: Recording, partitions: int, elastic: Elastic) -> list[Plot]:
    """All plots over the time of the demo."""
    made = [
        _rate(run, partitions),
        _latency(run, partitions),
        _instances(run, partitions),
        _waiting(run),
        _hot(run),
        _utilisation(run, elastic),
    ]
    return [replace(plot, x_range=(0.0, _end(run)), marks=_marks(run)) for plot in made]


def _end(run: Recording) -> float:
    """The end of the plots: when the elastic lane had answered all calls."""
    return max([run.seconds, *(done.at_s for done in run.elastic)])


def _marks(run: Recording) -> tuple[PlotMark, ...]:
    return tuple(PlotMark(mark.at_s, *MARKED[mark.kind]) for mark in run.marks if mark.kind in MARKED)


def _rate(run: Recording, partitions: int) -> Plot:
    rate, capacity = run.rate(), partitions / TAKES_S
    times = [at + 0.5 for at in range(len(rate))]
    series = (
        Series("calls that come", times, [float(each) for each in rate]),
        Series(f"the most that {captions.many(partitions, 'partition')} can do", [0.0, _end(run)], [capacity, capacity]),
    )
    return Plot("The rate", "calls/s", series, colours=("#2f8f5b", SPARK_COLOUR), note=captions.rate(run, capacity, partitions))


def _latency(run: Recording, partitions: int) -> Plot:
    lanes = (("plain Spark", run.static), ("Headrace", run.elastic))
    found = [(name, delays(run.arrivals, done, _end(run))) for name, done in lanes]
    series = tuple(Series(name, [at + 0.5 for at in range(len(each))], [float(y) for y in each]) for name, each in found)
    what = "For how long the oldest call that is not answered has been waiting, at most in each second."
    note = f"{what} {captions.latency(run, partitions)} {captions.kill(run)}"
    return Plot("Latency", "s", series, colours=(SPARK_COLOUR, OURS_COLOUR), note=note)


def _instances(run: Recording, partitions: int) -> Plot:
    times = [0.0, *(max(0.0, point.at_s) for point in run.points), _end(run)]
    counts = [float(point.instances) for point in run.points]
    counts = [*counts[:1], *counts, *counts[-1:]] or [0.0, 0.0]
    series = (
        Series("partitions of plain Spark", [0.0, _end(run)], [float(partitions)] * 2),
        Series("instances of Headrace", times, counts),
    )
    return Plot("Instances", "instances", series, steps=True, colours=(SPARK_COLOUR, OURS_COLOUR), note=captions.instances(run))


def _waiting(run: Recording) -> Plot:
    times = np.arange(0.5, _end(run), 0.5)
    came = np.array([a.at_s for a in run.arrivals]), np.cumsum([a.rows for a in run.arrivals])
    offered = np.append([0], came[1])[np.searchsorted(came[0], times, "right")]

    def left(done: Sequence[Done]) -> list[float | None]:
        answered = np.array([0, *(d.rows for d in done)])[np.searchsorted([d.at_s for d in done], times, "right")]
        return [float(each) for each in np.maximum(0, offered - answered)]

    x = [float(at) for at in times]
    series = (Series("plain Spark", x, left(run.static)), Series("Headrace", x, left(run.elastic)))
    return Plot("Calls that wait", "calls", series, colours=(SPARK_COLOUR, OURS_COLOUR), note=captions.behind(run))


def _hot(run: Recording) -> Plot:
    known = [point for point in run.points if point.rows and point.at_s > 0]
    times = [point.at_s for point in known]
    series = (
        Series("its instance, with all its slots", times, [100 * point.owner_share for point in known]),
        Series("the busiest slot", times, [100 * point.hot_share for point in known]),
    )
    return Plot("The busiest slot", "% of the calls of a batch", series, colours=(OURS_COLOUR, "#8a5fb0"), note=captions.hot(run))


def _utilisation(run: Recording, elastic: Elastic) -> Plot:
    known = [point for point in run.points if point.busy is not None and point.at_s > 0]
    limits = {name: value for name, value in elastic.limits.items() if name in ("lower", "target", "upper")}
    series = (
        Series("utilisation", [point.at_s for point in known], [None if point.busy is None else 100 * point.busy for point in known]),
        *(Series(name, [0.0, _end(run)], [100 * value] * 2) for name, value in limits.items()),
    )
    note = captions.utilisation(run, limits)
    colours = (OURS_COLOUR, "#8d99a6", "#2f8f5b", "#e07b1f")
    return Plot("Utilisation of Headrace's lane", "% of the time", series, colours=colours, note=note)
