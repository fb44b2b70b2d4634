"""Spark's streaming query, on which a Headrace query runs.

The parts of a query are put together before Spark starts it, and Spark may run the first batch before it returns its query. So the parts
share this object, and a part that needs Spark's query waits here until it is attached.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.logs import logger
from headrace.spark.gateway import GONE, JavaFailure, context_is_stopped
from headrace.spark.streaming import SourceOffsets, await_end, ends_within, execution_of, failure_of, source_offsets

ATTACH_SECONDS_MAX = 60
_log = logger(__name__)


class SparkQuery:
    """Spark's query, which is known once Spark has started it."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._query: StreamingQuery | None = None
        self._attached = threading.Event()
        self._gone = False
        """True after a call to the JVM has failed."""

    def attach(self, query: StreamingQuery) -> None:
        """Set Spark's query, and wake those that wait for it."""
        self._query = query
        self._attached.set()

    @property
    def handle(self) -> StreamingQuery:
        """PySpark's handle of the query. Waits until it is known."""
        self._attached.wait(ATTACH_SECONDS_MAX)
        assert self._query is not None
        return self._query

    def name(self) -> str | None:
        """The name that the user gave the query, or None. Asked when the JVM may have ended."""
        try:
            return None if self._query is None else self._query.name
        except GONE:
            return None

    def is_active(self) -> bool:
        """True while Spark reports the query as active and its session runs. Spark does not stop the queries of a stopped session."""
        try:
            # The first batch may begin before Spark has returned its query.
            return self._query is None or (bool(self._query.isActive) and not self.session_is_gone())
        except GONE as gone:
            _log.log(logging.DEBUG if self._gone else logging.INFO, "the JVM has ended: %s: %s", type(gone).__name__, gone)
            self._gone = True
            return False

    def session_is_gone(self) -> bool:
        """True if the session was stopped."""
        return context_is_stopped(self.session)

    def is_idle(self) -> bool:
        """True if the query has nothing to do: no batch runs, and Spark is not busy before or after one."""
        return self._query is None or not self._query.status["isDataAvailable"]

    def execution(self) -> Any:
        """Spark's ``StreamExecution``. It has the plans of the current batch, and with them the event-time statistics."""
        return execution_of(self.handle)

    def source_offsets(self) -> list[SourceOffsets]:
        """The offsets of the sources in the current batch."""
        return source_offsets(self.execution(), self.session)

    def ends_within(self, seconds: float) -> bool:
        """Wait for the end of the query. Returns False after this many seconds, and raises StreamingQueryException if the query failed."""
        return ends_within(self.handle, seconds)

    def await_end(self) -> None:
        """Wait until Spark's thread of the query has ended. Raises StreamingQueryException if the query failed."""
        await_end(self.handle)

    def failure(self) -> JavaFailure | None:
        """The Java exception that ended the query; None if there was none."""
        return None if self.session_is_gone() else failure_of(self.handle)
