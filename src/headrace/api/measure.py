"""``hr.measure``: the cost of a row in each operator, measured on a sample of the real stream.

From the costs follows how many instances each operator needs for a given rate. This is StreamCloud's query instantiator.
"""

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
from headrace.compile.strategies import UTILISATION_TARGET, QueryGraph, instantiate, subqueries_of
from headrace.errors import QueryError

_POLL_S = 0.1


@dataclass(frozen=True)
class Measured:
    """The result of ``hr.measure``: the cost of a row in each operator, and the instances needed for a rate."""

    graph: QueryGraph
    rows: int
    """The number of rows in the sample."""
    cost_us: dict[str, float] = field(default_factory=dict)
    """CPU microseconds per input row, by operator. The work of Spark before the operators is listed under the name of the source."""
    selectivity: dict[str, float] = field(default_factory=dict)
    """Output rows per input row, by operator."""

    def instances(self, rate: float, utilisation: float = UTILISATION_TARGET) -> dict[str, int]:
        """The number of instances that each operator needs for ``rate`` rows a second, at the ``utilisation`` that each should have."""
        wanted = instantiate(self.graph, subqueries_of(self.graph), rate, utilisation)
        return {name: number for name, number in wanted.items() if name in self.cost_us and name in self.selectivity}

    def option(self, rate: float, utilisation: float = UTILISATION_TARGET) -> str:
        """What ``instances(rate, utilisation)`` returns, as text for ``option("headrace.instancesOf", ...)``."""
        return ",".join(f"{name}={number}" for name, number in self.instances(rate, utilisation).items())


def measure(stream: Stream, seconds: float = 10.0) -> Measured:
    """Run the query of ``stream`` on its own source for up to ``seconds``, discard the results, and return what its rows cost.

    The first batch compiles code and does not count, unless it is the only one. State and results of the sample are removed. Raises
    ``QueryError`` if the query fails, or if no rows come in time. An example (it needs a stream with rows)::

        measured = hr.measure(calls.groupBy("src").count(), seconds=20)
        writer.option("headrace.instancesOf", measured.option(rate=100_000))
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
    # The cost of Spark's own tasks is not known by operator. It is the time that the jobs' cores were busy and Python was not.
    busy_s = sum(b["phasesMs"].get("job", 0.0) for b in batches) / 1000 * cores
    spark_us = 1e6 * max(0.0, busy_s - sum(each["cpu"] for each in of.values())) / max(1, rows)
    costs |= dict.fromkeys(flow.sources, spark_us)
    return Measured(query_graph(flow, costs, selectivity), rows, costs, selectivity)
