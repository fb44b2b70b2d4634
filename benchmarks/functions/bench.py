"""Running aggregates by key with functions that keep Spark's own buffers, beside functions in vector form."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of, preload

CALLS = "percentile_approx(v, 0.5, 100); hll_sketch_agg(v); skewness(v)"


def lanes(options: Options) -> list[Lane]:
    keys, rows = int(options["keys"]), int(options["rows"])
    found = []
    for call in (each.strip() for each in str(options["calls"]).split(";")):
        name = call.split("(")[0]
        params = {"keys": keys, "rows": rows, "call": call}
        found += [Lane(f"{engine} {name}", engine, params, **preload(keys, rows), group=name) for engine in engines_of(options)]
    return found


BENCHMARK = Benchmark(
    name="functions",
    line="aggregate functions with Spark's buffers, and in vector form",
    options={"keys": 100_000, "rows": 100_000, "calls": CALLS, "baselines": "spark-rocksdb"},
    lanes=lanes,
)
