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
from pyspark.sql.streaming.query import StreamingQueryManager

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


_ENRICHED = "_headrace_enriched"
_add, _remove = StreamingQueryManager.addListener, StreamingQueryManager.removeListener


def enrich_added(enrich: Enrich) -> None:
    """From now on, listeners that a program adds with ``spark.streams.addListener`` get the whole progress."""

    def add(manager: StreamingQueryManager, listener: Any) -> None:
        if isinstance(listener, StreamingQueryListener) and not isinstance(listener, Enriched):
            # It is kept, so that the program can remove its own listener.
            listener.__dict__.setdefault(_ENRICHED, Enriched(listener, enrich))
        _add(manager, _known(listener))

    def remove(manager: StreamingQueryManager, listener: Any) -> None:
        _remove(manager, _known(listener))

    add.__doc__, remove.__doc__ = _add.__doc__, _remove.__doc__
    StreamingQueryManager.addListener = add  # type: ignore[method-assign,assignment]
    StreamingQueryManager.removeListener = remove  # type: ignore[method-assign,assignment]


def _known(listener: Any) -> Any:
    return getattr(listener, _ENRICHED, listener)


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
