"""Running aggregates by key with functions that keep Spark's own buffers, beside functions in vector form."""

from __future__ import annotations

from math import prod
from typing import Any

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results, engines_of, preload

CALLS = "percentile_approx(v, 0.5, 100); hll_sketch_agg(v); skewness(v)"


def lanes(options: Options) -> list[Lane]:
    keys, rows = int(options["keys"]), int(options["rows"])
    found = []
    for call in (each.strip() for each in str(options["calls"]).split(";")):
        name = call.split("(")[0]
        params = {"keys": keys, "rows": rows, "call": call}
        found += [Lane(f"{engine} {name}", engine, params, **preload(keys, rows), group=name) for engine in engines_of(options)]
    return found


def extra(results: Results, options: Options) -> dict[str, Any]:
    """Each engine's rate by function, and the ratio by function. ``ours`` and ``baselines`` are geometric means over the functions."""
    names = [call.split("(")[0].strip() for call in str(options["calls"]).split(";")]
    engines = engines_of(options)
    rates = {engine: {name: _rate(results, f"{engine} {name}") for name in names} for engine in engines}
    ours, baselines = _mean(rates[OURS]), {engine: _mean(rates[engine]) for engine in engines if engine != OURS}
    return {
        "ours": ours,
        "baselines": baselines,
        "ratio": {engine: stats.ratio(ours, mean) for engine, mean in baselines.items()},
        "by_function": {name: {engine: rates[engine][name] for engine in engines} for name in names},
    }


def _rate(results: Results, lane: str) -> float | None:
    result = results.get(lane)
    return None if result is None or result.failed else stats.rate_total(result)


def _mean(rates: dict[str, float | None]) -> float | None:
    known = [rate for rate in rates.values() if rate]
    return round(prod(known) ** (1 / len(known)), 1) if len(known) == len(rates) else None


BENCHMARK = Benchmark(
    name="functions",
    line="aggregate functions with Spark's buffers, and in vector form",
    options={"keys": 100_000, "rows": 100_000, "calls": CALLS, "baselines": "spark-rocksdb"},
    lanes=lanes,
    extra=extra,
)
