"""StreamCloud's elasticity query, end to end: from records to heavy customers in Parquet files."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of

WARMUP = 4
"""The number of warm-up batches. The first fills the state; the others compile code and fill caches."""


def lanes(options: Options) -> list[Lane]:
    params = {"keys": int(options["customers"]), "rows": int(options["rows"]), "step_s": int(options["step_s"])}
    return [Lane(engine, engine, params, warmup_batches=WARMUP) for engine in engines_of(options)]


BENCHMARK = Benchmark(
    name="heavy-customers",
    line="customers with long calls over the last hour, every minute, Parquet files",
    options={"customers": 10_000, "rows": 1_000_000, "step_s": 60, "baselines": "spark-rocksdb"},
    lanes=lanes,
)
