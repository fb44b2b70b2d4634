"""The demo's report: plots and tables from the samples."""

from __future__ import annotations

import inspect
import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Outcome
from headrace.demo.calls import SPEED, Arrival, event_time_ms
from headrace.demo.measure import PHASES, BatchSample, Latencies
from headrace.report.page import Headline
from headrace.report.plots import Plot, Series

BIN_S = 1.0


def plots(samples: list[BatchSample], arrivals: list[Arrival], latencies: dict[int, Latencies], begin_s: float) -> list[Plot]:
    """All plots over the time of the demo. `samples` and `arrivals` do not include warm-up."""
    times = [s.end_s - begin_s for s in samples]
    # After the last call, event time no longer advances.
    flown_s = arrivals[-1].at_s - begin_s if arrivals else 0.0
    lag = [max(0.0, event_time_ms(min(at, flown_s)) - s.watermark_ms) / 1000 for s, at in zip(samples, times, strict=True)]
    unit, scale = duration_unit([s.batch_ms for s in samples])
    made = [
        _rates(samples, arrivals, begin_s),
        _backlog(samples, arrivals, begin_s),
        Plot(
            "Batch time by phase",
            unit,
            tuple(Series(name, times, [s.phases_ms[name] / scale for s in samples]) for name in PHASES),
            stacked=True,
            note="plan, job, flush, commit and deliver are Headrace's; other is Spark's own: offsets, logs, planning.",
        ),
        _latency(samples, latencies, times),
        Plot(
            "State rows",
            "rows",
            (Series("rows", times, [float(s.state_rows) for s in samples]),),
            note="Rows in runs; a customer and pane may be in several until they are merged.",
        ),
        Plot("State size", "MB", (Series("size", times, [s.state_bytes / 1e6 for s in samples]),), note="Of the run files that count."),
        Plot("State files", "runs", (Series("runs", times, [float(s.runs) for s in samples]),), note=_runs_note(samples)),
        Plot(
            "Watermark lag",
            "event time (s)",
            (Series("lag", times, list(lag)),),
            note=f"How far the watermark is behind the newest calls. One second of the clock is {SPEED} s of event time.",
        ),
        *_instances(samples, times),
    ]
    end = max([flown_s, *times, 1.0])
    return [replace(plot, x_range=(0.0, end)) for plot in made]


def elastic_plots(
    samples: list[BatchSample], utilisation: list[tuple[float, float]], settings: Elastic, begin_s: float, end_s: float
) -> list[Plot]:
    """Plots of the instances and their utilisation; the notes describe the changes in numbers."""
    times, counts = steps([s.end_s - begin_s for s in samples], [float(len(s.instances)) for s in samples])
    seen = [at - begin_s for at, _ in utilisation]
    whole = [0.0, end_s - begin_s]
    limits = {name: value for name, value in settings.thresholds.items() if name in ("lower", "target", "upper")}
    made = [
        Plot("Instances", "instances", (Series("instances", times, counts),), note=instances_note(samples)),
        Plot(
            "Utilisation of instances",
            "busy share of the time",
            (Series("average", seen, [u for _, u in utilisation]), *(Series(n, whole, [v, v]) for n, v in limits.items())),
            note=utilisation_note([u for _, u in utilisation], settings),
        ),
    ]
    return [replace(plot, x_range=(0.0, end_s - begin_s)) for plot in made]


def instances_note(samples: list[BatchSample]) -> str:
    """How the number of instances followed the rate."""
    counts = [len(s.instances) for s in samples]
    if not counts:
        return "No batch was measured."
    rates = sorted(_taken_per_s(samples))
    between = f"batches processed {rates[0]:,.0f} to {rates[-1]:,.0f} rows/s"
    changes = _changes(counts)
    if not changes:
        return f"{_many(counts[0], 'instance')} all the time, while {between}."
    by_count: dict[int, list[float]] = defaultdict(list)
    for count, rate in zip(counts, _taken_per_s(samples), strict=True):
        by_count[count].append(rate)
    means = ", ".join(f"{np.mean(by_count[count]):,.0f} rows/s with {count}" for count in sorted(by_count))
    return f"{min(counts)} to {max(counts)} instances, {_many(changes, 'change')}, while {between}; on average {means}."


def utilisation_note(utilisation: list[float], settings: Elastic) -> str:
    """How often the utilisation was outside the policy's limits."""
    begin = f"Over {settings.period_s:g} s, as the policy ({settings.policy}) sees it"
    lower, upper = settings.thresholds.get("lower"), settings.thresholds.get("upper")
    if not utilisation:
        return f"{begin}; the demo was too short for it to see anything."
    outside = []
    if lower is not None:
        outside.append(f"{sum(u < lower for u in utilisation)} below the lower limit")
    if upper is not None:
        outside.append(f"{sum(u > upper for u in utilisation)} above the upper one")
    of = f"of {_many(len(utilisation), 'look')} {' and '.join(outside)}; " if outside else ""
    return f"{begin}: {of}least {min(utilisation):.3f}, most {max(utilisation):.3f}."


def _runs_note(samples: list[BatchSample]) -> str:
    runs = [s.runs for s in samples]
    return f"At most {max(runs):,}, {runs[-1]:,} in the end." if runs else "No batch was measured."


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _changes(counts: list[int]) -> int:
    return sum(a != b for a, b in itertools.pairwise(counts))


def _taken_per_s(samples: list[BatchSample]) -> list[float]:
    """For each batch, its rows divided by the time since the previous batch."""
    begins = [samples[0].begin_s, *(s.end_s for s in samples[:-1])] if samples else []
    return [s.rows / max(s.end_s - since, 1e-3) for s, since in zip(samples, begins, strict=True)]


def steps(times: list[float], values: list[float]) -> tuple[list[float], list[float]]:
    """A step function.

    >>> steps([0.0, 1.0, 2.0], [1.0, 1.0, 3.0])
    ([0.0, 1.0, 2.0, 2.0], [1.0, 1.0, 1.0, 3.0])
    """
    found_x: list[float] = []
    found_y: list[float] = []
    for at, value in zip(times, values, strict=True):
        if found_y and found_y[-1] != value:
            found_x.append(at)
            found_y.append(found_y[-1])
        found_x.append(at)
        found_y.append(value)
    return found_x, found_y


def decision_rows(log: Sequence[Entry], begin_s: float) -> list[tuple[str, str]]:
    """The changes, and why others were not made, for a table."""
    shown = [entry for entry in log if entry.outcome is not Outcome.STEADY]
    if not shown:
        looks = sum(entry.times for entry in log)
        return [("none", f"the policy looked {_many(looks, 'time')} and left everything as it was" if looks else "the policy saw nothing")]
    return [(decision_text(entry, begin_s), entry.why) for entry in shown]


def decision_text(entry: Entry, begin_s: float) -> str:
    """A decision in a few words."""
    count = str(entry.instances) if entry.instances == entry.instances_before else f"{entry.instances_before} to {entry.instances}"
    outcome = "" if entry.outcome is Outcome.PERFORMED else f" ({entry.outcome}{f', {entry.times} times' if entry.times > 1 else ''})"
    return f"{entry.at_s - begin_s:.0f} s: {entry.what}, {count}{outcome}"


def _backlog(samples: list[BatchSample], arrivals: list[Arrival], begin_s: float) -> Plot:
    """At the end of each batch: the number of rows that have arrived and are not in a finished batch."""
    came_at, came = np.array([a.at_s for a in arrivals]), np.concatenate([[0], np.cumsum([a.rows for a in arrivals])])
    done = np.cumsum([s.rows for s in samples])
    offered = came[np.searchsorted(came_at, [s.end_s for s in samples], "right")]
    rows = np.maximum(offered - done, 0).astype(float).tolist() if samples else []
    note = "Rows that have come and are in no finished batch, whenever a batch ends."
    return Plot("Backlog", "rows", (Series("rows", [s.end_s - begin_s for s in samples], rows),), note=note)


def duration_unit(values_ms: list[float]) -> tuple[str, float]:
    """A unit of time that makes the values easy to read, and its length in milliseconds."""
    return ("s", 1000.0) if max(values_ms, default=0.0) >= 5000 else ("ms", 1.0)


def _rates(samples: list[BatchSample], arrivals: list[Arrival], begin_s: float) -> Plot:
    offered: dict[int, float] = defaultdict(float)
    for arrival in arrivals:
        offered[int((arrival.at_s - begin_s) // BIN_S)] += arrival.rows / BIN_S
    seconds = sorted(offered)[:-1] or sorted(offered)
    taken_x, taken = [], []
    for before, sample in zip([None, *samples], samples, strict=False):
        since = before.end_s if before is not None else min(sample.begin_s, begin_s)
        taken_x.append(sample.end_s - begin_s)
        taken.append(sample.rows / max(sample.end_s - since, 1e-3))
    return Plot(
        "Rows in, rows processed",
        "rows/s",
        (
            Series("offered", [(s + 0.5) * BIN_S for s in seconds], [offered[s] for s in seconds]),
            Series("processed", taken_x, list(taken)),
        ),
        note="Processed is a batch's rows over the time since the batch before.",
    )


def _latency(samples: list[BatchSample], latencies: dict[int, Latencies], times: list[float]) -> Plot:
    shares = (("99 %", 0.99), ("95 %", 0.95), ("50 %", 0.5))
    found = {name: [latencies[s.version].percentile(share) if s.version in latencies else None for s in samples] for name, share in shares}
    unit, scale = duration_unit([ms for values in found.values() for ms in values if ms is not None])
    return Plot(
        "Latency from arrival",
        unit,
        tuple(Series(name, times, [None if ms is None else ms / scale for ms in values]) for name, values in found.items()),
        note="From the moment a file can be seen until the batch that took it is done; per batch, by rows.",
        colours=("#c2483c", "#e07b1f", "#2563a8"),
    )


def _instances(samples: list[BatchSample], times: list[float]) -> list[Plot]:
    known = sorted({i.instance for s in samples for i in s.instances})
    by_instance = {i: [next((x for x in s.instances if x.instance == i), None) for s in samples] for i in known}
    rows = tuple(Series(f"instance {i}", times, [float(x.rows) if x else None for x in seen]) for i, seen in by_instance.items())
    cpu = tuple(Series(f"instance {i}", times, [x.cpu_s * 1000 if x else None for x in seen]) for i, seen in by_instance.items())
    return [Plot("Rows per instance", "rows per batch", rows), Plot("CPU per instance", "ms per batch", cpu)]


def figures(samples: list[BatchSample], every: Latencies, seconds: float) -> list[Headline]:
    """The headline figures."""
    rows, out = sum(s.rows for s in samples), sum(s.rows_out for s in samples)
    batch = [s.batch_ms for s in samples]
    return [
        Headline(f"{rows:,}", "calls"),
        Headline(f"{rows / max(seconds, 1e-3):,.0f}/s", "calls processed, on average"),
        Headline(f"{out:,}", "windows of customers closed"),
        Headline(f"{len(samples):,}", "batches"),
        Headline(milliseconds(float(np.median(batch)) if batch else None), "batch time, median"),
        Headline(milliseconds(every.percentile(0.5)), "latency, median"),
        Headline(milliseconds(every.percentile(0.99)), "latency, 99 %"),
        Headline(size(max((s.state_bytes for s in samples), default=0)), "state, at most"),
    ]


def instances_text(samples: list[BatchSample]) -> str:
    """The range of the number of instances, as text."""
    counts = [len(s.instances) for s in samples] or [0]
    changes = _changes(counts)
    return str(counts[0]) if not changes else f"{min(counts)} to {max(counts)}, {_many(changes, 'change')}"


def query_source() -> str:
    from headrace.demo import query

    return inspect.getsource(query.heavy_customers)


def milliseconds(value: float | None) -> str:
    """A duration as short text.

    >>> [milliseconds(x) for x in (None, 412.3, 2345.0, 61000.0)]
    ['-', '412 ms', '2.3 s', '61 s']
    """
    if value is None:
        return "-"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 10_000 else f"{value / 1000:.0f} s"


def size(value: float) -> str:
    """A number of bytes as short text.

    >>> [size(x) for x in (512, 5_581_576, 3_000_000_000)]
    ['512 B', '5.6 MB', '3.0 GB']
    """
    for unit, sign in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit:
            return f"{value / unit:.1f} {sign}"
    return f"{value:.0f} B"
