"""A running count on executors. An instance is added and removed repeatedly."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.aggregate.query import query, source
from benchmarks.handover.query import wait_until
from headrace.bench.runner import Runner

__all__ = ["change", "query", "source", "write"]


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    writer = writer.outputMode("update").format("noop").trigger(processingTime="500 milliseconds")
    return writer.option("headrace.instances", 1).option("headrace.readyExecutors", params["ready"])


def change(runner: Runner) -> None:
    placement, ready = runner.query._engine.routing.placement, int(runner.lane.params["ready"])
    for _ in range(int(runner.lane.params["repeats"])):
        runner.notes.append(grow(runner.query, ready))
        runner.query.rescale(1)
        if placement is not None:
            # Wait until unneeded executors were released, or the pool is full again. It may be larger, because the query has just grown.
            wait_until(lambda: len(placement.executors.live()) >= 1 + ready if ready else len(placement.executors.live()) == 1)
            time.sleep(2)


def grow(query: Any, ready: int) -> dict[str, Any]:
    """Add an instance and return the time until it has run a batch on a new executor."""
    homes = set(query._engine.routing.homes().get("aggregate", ()))
    began = time.monotonic()
    query.rescale(2)
    asked_s = time.monotonic() - began

    def done() -> bool:
        return any(each["executor"] not in homes for each in query.lastProgress["headrace"]["instances"])

    wait_until(done)
    return {"ready": ready, "asked_s": round(asked_s, 3), "first_batch_s": round(time.monotonic() - began, 3)}
