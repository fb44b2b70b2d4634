"""Calls of one caller within a minute, far apart: a stream joined with itself, written as Parquet."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of

WITHIN_S, DELAY_S = 60, 10


def lanes(options: Options) -> list[Lane]:
    params = {name: int(options[name]) for name in ("keys", "rows", "step_s")}
    # State grows until the first rows expire.
    warmup = -(-(WITHIN_S + DELAY_S) // params["step_s"]) + 3
    return [Lane(engine, engine, params, warmup_batches=warmup) for engine in engines_of(options)]


BENCHMARK = Benchmark(
    name="join",
    line="calls of one caller within 60 seconds, with the distance between them; append mode, Parquet files",
    options={"keys": 200_000, "rows": 100_000, "step_s": 10, "baselines": "spark-rocksdb"},
    lanes=lanes,
)
