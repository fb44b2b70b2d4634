"""Average over a sliding window of an hour by a minute, append mode, written as Parquet."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of

WARMUP = 4
"""The number of warm-up batches. The first fills the state; the others compile code and fill caches."""


def lanes(options: Options) -> list[Lane]:
    step_s = int(options["step_s"])
    params = {"keys": int(options["keys"]), "rows": int(options["rows"]), "step_s": step_s}
    return [Lane(engine, engine, params, warmup_batches=WARMUP) for engine in engines_of(options)]


BENCHMARK = Benchmark(
    name="sliding",
    line="average over windows of an hour that advance by a minute, append mode, Parquet files",
    options={"keys": 10_000, "rows": 2_000_000, "step_s": 60, "baselines": "spark-rocksdb,spark-memory"},
    lanes=lanes,
)
