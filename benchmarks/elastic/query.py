"""The query of the aggregate benchmark. One lane has its instances from the start, the other reaches the same number by rescaling."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.aggregate.query import query, source
from headrace.bench.runner import Runner

__all__ = ["query", "source", "started", "write"]


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("update").format("noop").option("headrace.instances", params["path"][0])


def started(runner: Runner) -> None:
    """Rescale through several numbers of instances, a few batches each, long before anything is measured."""
    path = runner.lane.params["path"]
    if len(path) > 1:
        threading.Thread(target=_rescale, args=(runner, path[1:]), daemon=True).start()


def _rescale(runner: Runner, path: list[int]) -> None:
    query = runner.query
    for instances in path:
        last = query.lastProgress
        wanted = (last["batchId"] if last else -1) + 2
        while query.isActive and ((query.lastProgress or {"batchId": -1})["batchId"]) < wanted:
            time.sleep(0.05)
        query.rescale(instances)
