"""`hr.listener`: a listener of Spark's gets the progress of Headrace's queries with what Spark's own progress lacks."""

from __future__ import annotations

from headrace.runtime.progress_log import merged_progress
from headrace.spark.listeners import Enriched, StreamingQueryListener


def listener(listener: StreamingQueryListener) -> StreamingQueryListener:
    """Give ``listener`` the whole progress of Headrace's queries: ``spark.streams.addListener(hr.listener(mine))``.

    Spark tells all its listeners about our queries, but its progress has no state operators, because Spark's plan has none of ours. With
    this, ``event.progress.stateOperators`` has them, ``event.progress["headrace"]`` is that of ``query.lastProgress``, and
    ``event.progress.json`` has both. Events of other queries are passed on as they are. To remove it, keep what this returns:
    ``spark.streams.removeListener(it)``.
    """
    return Enriched(listener, merged_progress)
