"""Running count and sum by key in update mode, without a sink: the cost of state access."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of, preload


def lanes(options: Options) -> list[Lane]:
    keys, rows = int(options["keys"]), int(options["rows"])
    params = {"keys": keys, "rows": rows}
    return [Lane(engine, engine, params, **preload(keys, rows)) for engine in engines_of(options)]


BENCHMARK = Benchmark(
    name="aggregate",
    line="running count and sum by key",
    options={"keys": 100_000, "rows": 1_000_000, "baselines": "spark-rocksdb,spark-memory"},
    lanes=lanes,
)
