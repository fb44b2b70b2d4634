"""The progress of a query's last batches: that of Headrace and that of Spark, merged."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from headrace.ids import InputId, OperatorId
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.history import History, merged
from headrace.runtime.progress import BatchProgress
from headrace.runtime.shedding import Shedder
from headrace.runtime.spark_query import SparkQuery

if TYPE_CHECKING:
    # Only queries that serve metrics need the package.
    from headrace.runtime.metrics import QueryMetrics

RECENT = "spark.sql.streaming.numRecentProgressUpdates"
"""Spark's setting for the number of batches whose progress it keeps. Headrace keeps as many."""


_logs: WeakValueDictionary[str, ProgressLog] = WeakValueDictionary()
"""By the run id of a query of this process."""
_running: list[ProgressLog] = []


def running() -> list[ProgressLog]:
    """The logs of the queries of this process that run."""
    return list(_running)


def merged_progress(spark: dict[str, Any]) -> dict[str, Any] | None:
    """The whole progress of a batch, from Spark's part of it; None if it is of no query of ours."""
    log = _logs.get(str(spark["runId"]))
    return None if log is None else log.of(spark)


class ProgressLog:
    """Keeps the progress of the last batches. The batch loop adds to it; the query's handle and the control endpoint read it."""

    def __init__(
        self,
        spark: SparkQuery,
        inputs: Mapping[OperatorId, tuple[InputId, ...]],
        trigger_s: float,
        autoscaler: Autoscaler | None,
        shedder: Shedder | None = None,
        history: History | None = None,
        metrics: QueryMetrics | None = None,
        name: str = "",
    ) -> None:
        self._spark, self._inputs, self._trigger_s, self._autoscaler = spark, inputs, trigger_s, autoscaler
        self._shedder, self._history, self._metrics = shedder, history, metrics
        self.name = name
        """The query's name, or that of its checkpoint's folder."""
        self._lock = threading.Lock()
        """Held while a batch is added, and while metrics begin: each batch is observed once."""
        self._batches: deque[BatchProgress] = deque(maxlen=int(spark.session.conf.get(RECENT, "100") or 100))

    def add(self, progress: BatchProgress) -> None:
        """Keep the progress of a batch that has ended, and hand it to what learns from it: the autoscaler, and the plans of drops."""
        scaler = self._autoscaler
        decisions = () if scaler is None else scaler.decisions.drain()
        if self._shedder is not None:
            decisions += self._shedder.drain()
        progress = replace(progress, decisions=decisions, inputs=self._inputs, trigger_s=self._trigger_s)
        with self._lock:
            self._batches.append(progress)
            if self._metrics is not None:
                self._metrics.observe(progress)
        if self._history is not None:
            self._history.offer(progress)
        if scaler is not None:
            scaler.offer(progress.report())
        if self._shedder is not None and progress.shed is not None:
            self._shedder.offer(progress, progress.shed)

    def begin(self) -> None:
        """Let listeners of Spark and the monitor find this log. Spark's query has started."""
        _logs[str(self._spark.handle.runId)] = self
        _running.append(self)

    def end(self) -> None:
        """Let the monitor forget this log. Listeners may still hear of the last batches."""
        _running.remove(self)

    def metrics(self) -> QueryMetrics:
        """The metrics of the query. If nobody has asked for them before, they begin with the batches whose progress is kept."""
        from headrace.runtime.metrics import QueryMetrics

        with self._lock:
            if self._metrics is None:
                found = QueryMetrics(self.name)
                for each in self._batches:
                    found.observe(each)
                self._metrics = found
            return self._metrics

    def of(self, spark: dict[str, Any]) -> dict[str, Any] | None:
        """The whole progress of a batch, from Spark's part of it; None if the batch is not known any more."""
        found = next((each for each in reversed(self._batches) if each.version == spark["batchId"]), None)
        return None if found is None else self._merged(found, spark)

    def last(self) -> dict[str, Any] | None:
        """The progress of the newest batch; None before the first one has ended."""
        if not self._batches:
            return None
        ours, spark = self._batches[-1], self._spark.handle.lastProgress
        # Spark reports a batch a little after its end. Until then there is only Headrace's part.
        return self._merged(ours, json.loads(spark.json) if spark is not None and spark["batchId"] == ours.version else None)

    def recent(self) -> list[dict[str, Any]]:
        """The progress of the last batches, oldest first, each with Spark's part if there is one."""
        spark = {int(p["batchId"]): json.loads(p.json) for p in self._spark.handle.recentProgress}
        return [self._merged(ours, spark.get(ours.version)) for ours in list(self._batches)]

    def _merged(self, ours: BatchProgress, spark: dict[str, Any] | None) -> dict[str, Any]:
        return merged(ours, spark, self._spark)
