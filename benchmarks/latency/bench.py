"""The duration of a small batch, and how it is spent."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results, engines_of, preload

WARMUP_BATCHES = 30


def lanes(options: Options) -> list[Lane]:
    keys, rows = int(options["keys"]), int(options["rows"])
    params = {"keys": keys, "rows": rows}
    # With few rows per batch, the JVM needs many batches until it has compiled the code.
    warmup = int(options["warmup"])
    return [Lane(engine, engine, params, **preload(keys, rows), warmup_batches=warmup) for engine in engines_of(options)]


def extra(results: Results, options: Options) -> dict[str, Any]:
    """Periods, and their ratios as speed: the baseline's period over Headrace's, above 1 where Headrace is faster."""
    periods = {name: _period(result) for name, result in results.items() if not result.failed}
    ours = periods.get(OURS)
    others = {name: period for name, period in periods.items() if name != OURS}
    ratios = {
        which: {name: stats.ratio(period[which], ours[which]) if ours else None for name, period in others.items()}
        for which in ("median", "p99")
    }
    return {
        "period_ms": periods,
        "ratio": ratios["median"],
        "ratio_p99": ratios["p99"],
        "ratio_means": "speed: the baseline's period over ours",
        "phases_ms": {name: phases(result) for name, result in results.items()},
    }


def phases(result: LaneResult) -> dict[str, float]:
    """Medians of Spark's phases and, below ``addBatch``, of Headrace's: of the batch, and of its slowest instance."""
    found = dict(stats.phase_medians(result))
    for prefix, rows in (
        ("addBatch/", [p["phasesMs"] for p in result.headrace]),
        ("addBatch/job/instance/", [_slowest(p) for p in result.headrace]),
    ):
        for name in dict.fromkeys(name for row in rows for name in row):
            found[prefix + name] = stats.percentile([row.get(name, 0.0) for row in rows], 50) or 0.0
    return found


def tables(results: Results, options: Options) -> list[Table]:
    names = [name for name, result in results.items() if not result.failed]
    if not names:
        return []
    periods = Table("", *names, title="batch period, ms", title_justify="left")
    measured = {name: _period(results[name]) for name in names}
    for which in ("median", "p99"):
        periods.add_row(which, *(_shown(measured[name][which]) for name in names))
    table = Table("", *names, title="where the time goes, median ms", title_justify="left")
    columns = {name: phases(results[name]) for name in names}
    for phase in dict.fromkeys(phase for column in columns.values() for phase in column):
        indent = "  " * phase.count("/")
        table.add_row(indent + phase.rpartition("/")[2], *(_shown(columns[name].get(phase)) for name in names))
    return [periods, table]


def _period(result: LaneResult) -> dict[str, float | None]:
    # If no two batches followed each other, the duration of a batch is the best estimate.
    measured = stats.periods_ms(result) or [batch.duration_ms for batch in result.batches]
    return {"median": stats.percentile(measured, 50), "p99": stats.percentile(measured, 99)}


def _slowest(progress: dict[str, Any]) -> dict[str, float]:
    instances = progress["instances"]
    return max(instances, key=lambda i: i["wallSeconds"])["phasesMs"] if instances else {}


def _shown(ms: float | None) -> str:
    return "" if ms is None else f"{ms:,.1f}"


BENCHMARK = Benchmark(
    name="latency",
    line="period of small batches of a running count and sum, and where the time goes",
    options={"keys": 100_000, "rows": 5_000, "warmup": WARMUP_BATCHES, "baselines": "spark-rocksdb,spark-memory"},
    lanes=lanes,
    extra=extra,
    tables=tables,
)
