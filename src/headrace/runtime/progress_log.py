"""The progress of a query's last batches: Headrace's half and Spark's half in one."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.ids import OperatorId
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.progress import BatchProgress
from headrace.runtime.spark_query import SparkQuery

RECENT = "spark.sql.streaming.numRecentProgressUpdates"
"""Spark's setting of how much progress it keeps; as much is kept of ours."""


class ProgressLog:
    """Filled by the batch loop, read by the query's handle and the control endpoint."""

    def __init__(
        self, spark: SparkQuery, inputs: Mapping[OperatorId, tuple[str, ...]], trigger_s: float, autoscaler: Autoscaler | None
    ) -> None:
        self._spark, self._inputs, self._trigger_s, self._autoscaler = spark, inputs, trigger_s, autoscaler
        self._batches: deque[BatchProgress] = deque(maxlen=int(spark.session.conf.get(RECENT, "100") or 100))

    def add(self, progress: BatchProgress) -> None:
        """A batch has ended: keep what it did, and let the policy know."""
        scaler = self._autoscaler
        decisions = () if scaler is None else scaler.decisions.drain()
        progress = replace(progress, decisions=decisions, inputs=self._inputs, trigger_s=self._trigger_s)
        self._batches.append(progress)
        if scaler is not None:
            scaler.offer(progress)

    def last(self) -> dict[str, Any] | None:
        """The newest batch; None before the first one has ended."""
        if not self._batches:
            return None
        ours, spark = self._batches[-1], self._spark.handle.lastProgress
        # Spark reports a batch a little after it has ended; until then Headrace's own half is all there is.
        return self._merged(ours, json.loads(spark.json) if spark is not None and spark["batchId"] == ours.version else None)

    def recent(self) -> list[dict[str, Any]]:
        """Spark's progress of the batches that ran, each with Headrace's own."""
        spark = {int(p["batchId"]): json.loads(p.json) for p in self._spark.handle.recentProgress}
        return [self._merged(ours, spark.get(ours.version)) for ours in list(self._batches)]

    def _merged(self, ours: BatchProgress, spark: dict[str, Any] | None) -> dict[str, Any]:
        handle = self._spark.handle
        whole = spark or {"id": str(handle.id), "runId": str(handle.runId), "name": handle.name, "batchId": ours.version}
        whole["stateOperators"] = ours.operators()
        if ours.event_time():
            whole["eventTime"] = {**whole.get("eventTime", {}), **ours.event_time()}
        whole["headrace"] = ours.headrace() | {"latencyMs": ours.latency(whole.get("eventTime", {}))}
        return whole
