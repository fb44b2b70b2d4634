"""Shows the state of a query's operators in the Structured Streaming tab of Spark's UI, in the thread of the history.

Spark's own listener puts a batch into the tab a little after the batch's end. Only then it can be completed, so batches wait here.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from headrace.logs import logger
from headrace.spark.gateway import GONE
from headrace.spark.streaming_tab import StreamingTab

WAIT_S = 5.0
"""A batch that the tab does not have after this time is left out."""
_log = logger(__name__)


@dataclass
class SparkTab:
    """The tab, and batches that it does not have yet."""

    tab: StreamingTab | None
    _waiting: deque[tuple[float, dict[str, Any], list[dict[str, Any]]]] = field(default_factory=deque)

    @classmethod
    def of(cls, session: SparkSession) -> SparkTab:
        try:
            return cls(StreamingTab.of(session))
        except GONE as gone:
            _log.debug("Spark's UI is not reached: %s", gone)
            return cls(None)

    def add(self, spark: dict[str, Any] | None, operators: list[dict[str, Any]]) -> None:
        """Take Spark's progress of a batch, and the state of its operators."""
        if self.tab is not None and spark is not None and operators:
            self._waiting.append((time.monotonic(), dict(spark), operators))

    def tell(self) -> bool:
        """Show what can be shown. True if batches still wait."""
        while self.tab is not None and self._waiting:
            since_s, spark, operators = self._waiting[0]
            try:
                told = self.tab.tell(spark, operators)
            except GONE as gone:
                _log.debug("Spark's UI does not take the state of operators: %s", gone)
                self.tab = None
                break
            if not told and time.monotonic() - since_s < WAIT_S:
                return True
            self._waiting.popleft()
        self._waiting.clear()
        return False
