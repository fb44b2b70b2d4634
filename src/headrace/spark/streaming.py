"""Structured Streaming's own objects: a running query, its sources and offsets, and the thread that calls ``foreachBatch``."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.logs import logger, suppressed
from headrace.spark.gateway import class_name, iterated, java_context, jvm_of, singleton

_log = logger(__name__)
_PACKAGE = "org.apache.spark.sql.execution.streaming"
FILE_MANAGER = f"{_PACKAGE}.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's checkpoint file manager that commits a file by renaming it."""
HEAP_STORE, ROCKSDB_STORE = f"{_PACKAGE}.state.HDFSBackedStateStoreProvider", f"{_PACKAGE}.state.RocksDBStateStoreProvider"
"""Spark's own state stores, for comparisons."""
FILE_SOURCE = "FileStreamSource"
"""Class of the file source. Its offset is the number of an entry in its own log."""
RELATIONS = ("StreamingRelation", "StreamingRelationV2", "StreamingExecutionRelation", "StreamingDataSourceV2Relation")
"""Classes of the leaves that read a stream."""
STOP_TEXT = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
"""Message of an exception that Spark attributes to its own stop, so that the query ends without a failure.

Spark looks for an interrupted call into the JVM in the exception's text. Its regular expression overflows the stack on texts of some
thousand characters, so the text must be short and the exception must have no cause.
"""


@dataclass(frozen=True)
class SourceOffsets:
    """One source's offsets in a batch, as JSON."""

    kind: str
    """Class of the source."""
    start: str | None
    """Where the batch begins."""
    end: str | None
    """Where the batch ends."""
    latest: str | None
    """The newest offset when Spark planned the batch."""


def execution_of(query: StreamingQuery) -> Any:
    """Spark's ``StreamExecution`` of a query."""
    return java_query(query).streamingQuery()


def java_query(query: StreamingQuery) -> Any:
    """The Scala query behind a Python one. Its progress costs less to read than the Python query's, which rebuilds all of it."""
    return query._jsq


def ends_within(query: StreamingQuery, seconds: float) -> bool:
    """Wait for the end of a query. False after so many seconds; raises StreamingQueryException if the query failed."""
    return bool(java_query(query).awaitTermination(int(seconds * 1000)))


def await_end(query: StreamingQuery) -> None:
    """Wait until the thread of a query has ended. With a time limit, Spark calls a query ended as soon as somebody stops it."""
    java_query(query).awaitTermination()


def failure_of(query: StreamingQuery) -> Any | None:
    """The Java exception that ended a query, or None."""
    found = java_query(query).exception()
    return found.get() if found.isDefined() else None


@contextmanager
def planning_paused(query: StreamingQuery) -> Iterator[None]:
    """Meanwhile Spark plans no batch of this query, so that the next one gets all that is added to any of its sources.

    It is the lock under which Spark asks the sources for new data, one after the other.
    """
    lock = execution_of(query).awaitProgressLock()
    lock.lock()
    try:
        yield
    finally:
        lock.unlock()


def source_offsets(execution: Any) -> list[SourceOffsets]:
    """The offsets of the batch that a StreamExecution runs now, per source. File sources are left out."""
    start, end, latest = execution.getStartOffsetsOfLatestBatch(), execution.availableOffsets(), execution.latestOffsets()
    found = []
    for source in iterated(end.keysIterator()):
        kind = class_name(source)
        if kind != FILE_SOURCE:
            found.append(SourceOffsets(kind, *(_json(offsets, source) for offsets in (start, end, latest))))
    return found


def _json(offsets: Any, source: Any) -> str | None:
    found = offsets.get(source)
    return str(found.get().json()) if found.isDefined() else None


def source_name(relation: Any) -> str:
    """A source's format, with the path for files: ``FileSource[...]``."""
    kind = class_name(relation)
    return str(relation.sourceName()) if kind in ("StreamingRelation", "StreamingRelationV2") else kind


def source_options(relation: Any) -> dict[str, str]:
    """The options that a source was loaded with."""
    if class_name(relation) == "StreamingRelationV2":
        return {str(key): str(value) for key, value in dict(relation.extraOptions().asCaseSensitiveMap()).items()}
    if class_name(relation) != "StreamingRelation":
        return {}
    return {str(pair._1()): str(pair._2()) for pair in iterated(relation.dataSource().options().iterator())}


def source_path(relation: Any) -> str | None:
    """The option ``path`` of a source, for ``StreamingRelation``."""
    path = relation.dataSource().options().get("path")
    return str(path.get()) if path.isDefined() else None


def takes_for_stop(session: SparkSession, text: str) -> bool:
    """True if Spark attributes a Python exception with this text to its own stop, and so ends the query without a failure."""
    jvm = jvm_of(session)
    execution = jvm.org.apache.spark.sql.execution.streaming.runtime.StreamExecution
    return bool(execution.isInterruptionException(jvm.py4j.Py4JException(text), java_context(session)))


def callback_connection(batch: DataFrame) -> Any:
    """Inside ``foreachBatch``: the connection through which the JVM made the call, or None.

    The JVM never closes such connections. It keeps one for each of its threads that called Python.
    """
    client: Any = getattr(batch.sparkSession.sparkContext._gateway, "_gateway_client", None)
    return client.get_thread_connection() if hasattr(client, "get_thread_connection") else None


def hang_up(connection: Any) -> None:
    """Close a callback connection. The thread that listens to it ends."""
    open_socket = getattr(connection, "socket", None)
    if open_socket is not None:
        with suppressed(_log, "a callback connection was closed already", OSError, level=logging.DEBUG):
            open_socket.shutdown(socket.SHUT_RDWR)


def stop_state_stores(session: SparkSession) -> None:
    """Unload the state stores of Spark's own stopped queries. Otherwise they fill the heap until Spark's next maintenance."""
    singleton(jvm_of(session).org.apache.spark.sql.execution.streaming.state, "StateStore").stop()
