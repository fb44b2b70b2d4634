"""The query of the aggregate benchmark, and how its parallelism is changed while it runs."""

from __future__ import annotations

from benchmarks.aggregate.query import query, source, write
from headrace.bench.model import OURS
from headrace.bench.runner import Runner

__all__ = ["change", "query", "source", "write"]


def change(runner: Runner) -> None:
    """Headrace: one call. Spark: stop, rewrite the state into another number of partitions, start again."""
    instances = int(runner.lane.params["to"])
    if runner.lane.engine == OURS:
        runner.query.rescale(instances)
        return
    runner.stop()
    # A batch that the stop interrupted runs again after the restart, so the state misses nothing.
    manager = runner.spark._streamingCheckpointManager
    manager.repartition(str(runner.folder / "checkpoint"), instances, enforce_exactly_once_sink=False)
    runner.start()
