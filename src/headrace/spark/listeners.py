"""Spark's listeners of streaming queries, with a progress that has more than Spark's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

__all__ = ["Enriched", "StreamingQueryListener"]
NOT_MEASURED = ("allUpdatesTimeMs", "allRemovalsTimeMs", "commitTimeMs", "numRowsDroppedByWatermark")
"""Fields that Spark's class of an operator's progress wants."""
Enrich = Callable[[dict[str, Any]], Mapping[str, Any] | None]
"""From Spark's progress to the whole one; None for a query of somebody else."""


class Enriched(StreamingQueryListener):
    """Passes events on to another listener, progress as the whole one."""

    def __init__(self, inner: StreamingQueryListener, enrich: Enrich) -> None:
        self._inner, self._enrich = inner, enrich

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._inner.onQueryStarted(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._inner.onQueryProgress(with_progress(event, self._enrich))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._inner.onQueryIdle(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._inner.onQueryTerminated(event)


def with_progress(event: QueryProgressEvent, enrich: Enrich) -> QueryProgressEvent:
    """The event with the whole progress; the event itself for a query of somebody else."""
    whole = enrich(json.loads(event.progress.json))
    if whole is None:
        return event
    operators = [{**dict.fromkeys(NOT_MEASURED, 0), **each} for each in whole["stateOperators"]]
    progress = StreamingQueryProgress.fromJson({**whole, "stateOperators": operators})
    # The class takes over only the fields that it knows.
    progress["headrace"] = whole["headrace"]
    return QueryProgressEvent(progress)
