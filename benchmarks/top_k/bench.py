"""Top-k in an open loop: more is offered than one instance can process. Which engine catches up? (SEEP 6.1, Fig. 8)"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from headrace.bench.model import Benchmark, DirectResult, Figure, Option, Options
from headrace.control.elastic import POLICIES
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from benchmarks.top_k.outcome import Order, Outcome

DEFAULTS: dict[str, Option] = {
    "duration": 150, "over": 1.25, "rate": 0.0, "closed": 35.0, "window": 30, "k": 10, "languages": 280, "lines": 50_000, "batch": 16,
    "buffer": 64, "instances": 2, "policy": "bottleneck", "baselines": "spark", "text": "", "seed": 1, "plot": "bench-out/top-k.svg",
}  # fmt: skip

HOUR_S = 3600
LAST = 0.75
"""The last quarter of the open loop, in which the query must have caught up."""


def check_options(options: Options) -> None:
    """Refuse wrong options before Spark starts."""
    where = "bench top-k"
    if HOUR_S % int(options["window"]):
        raise HeadraceError(where=f"{where} --window", wanted="seconds that divide an hour", found=str(options["window"]))
    if float(options["over"]) <= 1 and not options["rate"]:
        raise HeadraceError(
            where=f"{where} --over", wanted="more than 1: an open loop over capacity", found=str(options["over"]), hint="or give a --rate"
        )
    if int(options["instances"]) < 2:
        raise HeadraceError(where=f"{where} --instances", wanted="at least 2, to scale out to", found=str(options["instances"]))
    if int(options["buffer"]) <= int(options["batch"]):
        found = f"{options['buffer']} with batches of {options['batch']}"
        raise HeadraceError(where=f"{where} --buffer", wanted="more files than --batch: else nothing ever waits", found=found)
    if options["policy"] not in POLICIES:
        raise HeadraceError(where=f"{where} --policy", wanted=" or ".join(POLICIES), found=str(options["policy"]))
    if options["baselines"] not in ("spark", "none"):
        raise HeadraceError(where=f"{where} --baselines", wanted="spark or none", found=str(options["baselines"]))


def measure(options: Options) -> DirectResult:
    check_options(options)
    from benchmarks.top_k.lane import apart
    from benchmarks.top_k.outcome import NAMES, SPARK
    from benchmarks.top_k.plot import draw

    names = [name for name in NAMES if name != SPARK or options["baselines"] == "spark"]
    folder = Path(tempfile.mkdtemp(prefix="headrace-top-k-"))
    found: list[Outcome] = []
    try:
        first = order(options, folder)
        for name in names:
            # The first lane measures the capacity of one instance, with warm code. All lanes are then offered the same rate.
            rate, closed_s = (found[0].rate, first.closed_s) if found else (first.rate, 2 * first.closed_s)
            found.append(apart(replace(first, name=name, folder=folder / name.replace(" ", "-"), rate=rate, closed_s=closed_s)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for outcome in found:
        for decision in outcome.decisions:
            print(f"top-k, {outcome.name}: {decision}")
        said = f"{len(outcome.rankings)} windows, all counts right" if not outcome.wrong else f"WRONG: {outcome.wrong}"
        print(f"top-k, {outcome.name}: {said}; files were late by at most {outcome.late_s:.2f} s", flush=True)
    Console(width=120).print(table(found))
    print(most_visited(found[0], int(options["k"])))
    print(f"plot: {draw(Path(str(options['plot'])), found)}", flush=True)
    return summary(found)


def order(options: Options, folder: Path) -> Order:
    """The files of the stream, and the settings that all lanes share."""
    from benchmarks.top_k.outcome import ONE, Order
    from benchmarks.top_k.views import lines, lines_of, write_blocks

    text, batch, buffer = str(options["text"]), int(options["batch"]), int(options["buffer"])
    pool = lines_of(text) if text else lines(int(options["languages"]), int(options["seed"]))
    # More blocks than can wait or be in the current batch: a waiting block must not come again.
    blocks = write_blocks(folder / "blocks", pool, buffer + 2 * batch + 1, int(options["lines"]))
    return Order(
        name=ONE,
        folder=folder,
        blocks=tuple(blocks),
        lines=int(options["lines"]),
        batch_files=batch,
        buffer_files=buffer,
        closed_s=float(options["closed"]),
        open_s=float(options["duration"]),
        window_s=int(options["window"]),
        instances_max=int(options["instances"]),
        rate=float(options["rate"]),
        over=float(options["over"]),
        policy=str(options["policy"]),
    )


def most_visited(outcome: Outcome, k: int) -> str:
    """The answer for the window with the largest count."""
    start, ranking = max(outcome.rankings.items(), key=lambda window: sum(count for _, count in window[1]))
    best = ", ".join(f"{language} {count:,}" for language, count in ranking[:k])
    return f"top {k} of the window from {start // 1000} s on: {best}"


def table(found: list[Outcome]) -> Table:
    """A table with one column per lane."""
    shown = Table(title=f"top-k in an open loop, {found[0].rate:,.0f} lines/s offered", title_justify="left")
    shown.add_column("")
    for outcome in found:
        shown.add_column(outcome.name, justify="right")
    latencies = [outcome.latencies()[1] for outcome in found]
    rows = {
        "capacity before, closed loop, lines/s": [f"{o.capacity['before']:,.0f}" for o in found],
        "instances at the end": [str(o.batches[-1].instances) for o in found],
        "second instance after, s": [f"{o.grown_s():.0f}" if o.grown_s() is not None else "-" for o in found],
        "capacity after, closed loop, lines/s": [f"{o.capacity['after']:,.0f}" for o in found],
        "consumed, lines/s": [f"{o.consumed() / o.seconds:,.0f}" for o in found],
        "consumed in the last quarter, lines/s": [f"{o.consumed(LAST) / o.seconds / (1 - LAST):,.0f}" for o in found],
        "discarded, lines": [f"{o.discarded():,}" for o in found],
        "... of what was offered": [f"{o.discarded() / o.lines / len(o.offered):.1%}" for o in found],
        "... in the last quarter": [f"{o.discarded(LAST) / o.lines / len(o.offered) / (1 - LAST):.1%}" for o in found],
        "the last line waited, s": [f"{o.waiting_s:.1f}" for o in found],
        "latency, median, s": [f"{_percentile(each, 50):.1f}" for each in latencies],
        "latency, 95th percentile, s": [f"{_percentile(each, 95):.1f}" for each in latencies],
        "rankings": ["right" if not o.wrong else "[red]WRONG[/red]" for o in found],
    }
    for name, cells in rows.items():
        shown.add_row(name, *cells)
    return shown


def _percentile(values: object, percent: int) -> float:
    import numpy as np

    return float(np.percentile(np.asarray(values), percent))


def summary(found: list[Outcome]) -> DirectResult:
    """Lines consumed per second, and whether the elastic lane caught up."""
    from benchmarks.top_k.outcome import ELASTIC, ONE

    of = {outcome.name: outcome for outcome in found}
    elastic = of.pop(ELASTIC)
    buffer_s = elastic.lines * elastic.buffer_files / elastic.rate
    figures = (
        Figure("capacity of one instance by what is offered", max(of[ONE].capacity.values()) / elastic.rate, 1.0, ""),
        Figure("elastic: lines discarded in the last quarter", elastic.discarded(LAST), 1.0, "lines", asked="none"),
        Figure(
            "elastic: the last line waited",
            elastic.waiting_s,
            buffer_s / 2,
            "s",
            asked=f"under {buffer_s / 2:.1f} s, half of a full buffer",
        ),
    )
    rates = {name: outcome.consumed() / outcome.seconds for name, outcome in of.items()}
    return DirectResult(figures, elastic.consumed() / elastic.seconds, rates, equal=not any(outcome.wrong for outcome in found))


BENCHMARK = Benchmark(
    name="top-k",
    line="an open loop over capacity: what is discarded until the query has scaled out, and without",
    options=dict(DEFAULTS),
    lanes=lambda options: [],
    measure=measure,
)
