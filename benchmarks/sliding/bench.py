"""Average over a sliding window of an hour by a minute, append mode, written as Parquet."""

from __future__ import annotations

from headrace.bench.model import Benchmark, Lane, Options, engines_of

WINDOW_S = 3600


def lanes(options: Options) -> list[Lane]:
    step_s = int(options["step_s"])
    params = {"keys": int(options["keys"]), "rows": int(options["rows"]), "step_s": step_s}
    # State is full when event time has passed one window; before that, an engine that keeps panes has it too easy.
    warmup = -(-WINDOW_S // step_s) + 2
    return [Lane(engine, engine, params, warmup_batches=warmup) for engine in engines_of(options)]


BENCHMARK = Benchmark(
    name="sliding",
    line="average over windows of an hour that advance by a minute, append mode, Parquet files",
    options={"keys": 10_000, "rows": 50_000, "step_s": 300, "baselines": "spark-rocksdb,spark-memory"},
    lanes=lanes,
)
