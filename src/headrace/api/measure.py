"""StreamCloud's query instantiator: how many instances each operator needs, from what its rows cost on a sample of the real stream."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from headrace.api.origin import user_line
from headrace.api.stream import Stream
from headrace.compile.dataflow import Dataflow
from headrace.compile.render import query_graph
from headrace.compile.strategies import UTILISATION_TARGET, QueryGraph, instantiate, split
from headrace.errors import QueryError

_POLL_S = 0.1


@dataclass(frozen=True)
class Measured:
    """What a row costs where."""

    graph: QueryGraph
    rows: int
    """Rows of the sample."""
    cost_us: dict[str, float] = field(default_factory=dict)
    """CPU time per row that comes in: by operator, and for what Spark does before them, under the source's name."""
    selectivity: dict[str, float] = field(default_factory=dict)
    """Rows out per row in."""

    def instances(self, rate: float, utilisation: float = UTILISATION_TARGET) -> dict[str, int]:
        """How many instances each operator needs for so many rows a second, if each is to be busy to this share."""
        wanted = instantiate(self.graph, split(self.graph), rate, utilisation)
        return {name: number for name, number in wanted.items() if name in self.cost_us and name in self.selectivity}

    def option(self, rate: float, utilisation: float = UTILISATION_TARGET) -> str:
        """The same, for ``option("headrace.instancesOf", ...)``."""
        return ",".join(f"{name}={number}" for name, number in self.instances(rate, utilisation).items())


def measure(stream: Stream, seconds: float = 10.0) -> Measured:
    """Run a query on its own source for some seconds, throw the results away, and tell what its rows cost.

    The first batch compiles code and does not count, unless it is the only one. State and results of the sample are removed.
    """
    where = user_line("measure")
    folder = tempfile.mkdtemp(prefix="headrace-measure-")
    writer = stream.writeStream.format("noop").option("checkpointLocation", folder)
    query = writer.outputMode("append" if stream.rows.append_only else "update").start()
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and query.isActive and not _idle(query):
            time.sleep(_POLL_S)
        query.stop()
        if (failed := query.exception()) is not None:
            raise QueryError(where=where, found=str(failed))
        batches = [p["headrace"] for p in query.recentProgress]
        batches = [b for b in batches if b["rows"]]
        if not batches:
            raise QueryError(where=where, wanted="rows to measure with", found=f"none within {seconds:g} s", hint="give it more seconds")
        cores = stream.sparkSession.sparkContext.defaultParallelism
        return _measured(query._engine.flow, batches[1:] or batches, cores)
    finally:
        if query.isActive:
            query.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _idle(query: Any) -> bool:
    status = query.status
    return bool(query.recentProgress) and not status["isDataAvailable"] and not status["isTriggerActive"]


def _measured(flow: Dataflow, batches: list[dict[str, Any]], cores: int) -> Measured:
    rows = sum(b["rows"] for b in batches)
    of: dict[str, dict[str, float]] = {}
    for report in (report for b in batches for report in b["instances"]):
        total = of.setdefault(report["operator"], {"rows": 0.0, "out": 0.0, "cpu": 0.0})
        total["rows"] += report["rows"]
        total["out"] += report["rowsOut"]
        total["cpu"] += report["cpuSeconds"]
    costs = {name: 1e6 * each["cpu"] / max(1.0, each["rows"]) for name, each in of.items()}
    selectivity = {name: each["out"] / max(1.0, each["rows"]) for name, each in of.items()}
    # What Spark's own tasks took is not told apart by operator: all that the jobs' cores were busy with and Python was not.
    busy_s = sum(b["phasesMs"].get("job", 0.0) for b in batches) / 1000 * cores
    spark_us = 1e6 * max(0.0, busy_s - sum(each["cpu"] for each in of.values())) / max(1, rows)
    costs |= dict.fromkeys(flow.sources, spark_us)
    return Measured(query_graph(flow, costs, selectivity), rows, costs, selectivity)
