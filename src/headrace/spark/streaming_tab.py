"""The Structured Streaming tab of Spark's UI, with the state of Headrace's operators.

Spark takes an operator's state from nodes of its own in the plan of a batch, and ours are none. So it shows a query of Headrace's without
state. It keeps what the tab shows in a store, one entry per batch. Once Spark has written an entry, this module writes it again, with
``stateOperators`` in the form of Spark's own.
"""

from __future__ import annotations

import json
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from headrace.spark.gateway import class_named, java_context, jvm_of, singleton

SHOWN = "spark.sql.streaming.ui.enabled"
ENTRY = "org.apache.spark.sql.streaming.ui.StreamingQueryProgressWrapper"

EMPTY: dict[str, Any] = {"durationMs": {}, "eventTime": {}, "observedMetrics": {}}
"""What Spark leaves out of the JSON if it is empty, and then reads as null."""


class StreamingTab:
    """What the tab shows of batches."""

    def __init__(self, session: SparkSession) -> None:
        jvm = jvm_of(session)
        self._store = java_context(session).statusStore().store()
        self._entry = jvm.org.apache.spark.sql.streaming.ui.StreamingQueryProgressWrapper
        self._kind = class_named(session, ENTRY)
        self._uuid = jvm.java.util.UUID
        self._progress = singleton(jvm.org.apache.spark.sql.streaming, "StreamingQueryProgress")

    @classmethod
    def of(cls, session: SparkSession) -> StreamingTab | None:
        """The tab of a session's application; None if Spark shows none."""
        shown = java_context(session).ui().isDefined() and session.conf.get(SHOWN, "true") == "true"
        return cls(session) if shown else None

    def tell(self, spark: dict[str, Any], operators: list[dict[str, Any]]) -> bool:
        """Show the operators of a batch, of which ``spark`` is Spark's own progress. False if the tab does not have the batch yet."""
        name = self._entry.getUniqueId(self._uuid.fromString(spark["runId"]), spark["batchId"], spark["timestamp"])
        try:
            self._store.read(self._kind, name)
        except Py4JJavaError:
            return False
        whole = EMPTY | spark | {"stateOperators": operators}
        whole["sources"] = [{"metrics": {}} | each for each in whole["sources"]]
        whole["sink"] = {"metrics": {}} | whole["sink"]
        self._store.write(self._entry(self._progress.fromJson(json.dumps(whole))))
        return True
