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

from headrace.errors import UnsupportedError
from headrace.logs import logger, suppressed
from headrace.spark.gateway import (
    JavaFailure,
    class_name,
    full_class_name,
    iterated,
    java_context,
    java_failure_of,
    jvm_of,
    private_field,
    singleton,
)
from headrace.spark.kafka import newest_offsets
from headrace.spark.plans import analyzed
from headrace.spark.trees import walk

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
_REFERENCE = "CTERelationRef"
"""Class of a leaf that stands for a query of a WITH clause. The plan contains that query elsewhere."""
_KAFKA_PACKAGE = "org.apache.spark.sql.kafka010."
"""Package of Spark's Kafka sources. They are not part of PySpark, so the contract cannot check their classes."""
STOP_TEXT = "py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException"
"""Message of an exception that Spark attributes to its own stop, so that the query ends without a failure.

Spark looks for an interrupted call into the JVM in the exception's text. Its regular expression overflows the stack on texts of some
thousand characters, so the text must be short and the exception must have no cause.
"""


UNREAD, LISTED, SEEN = "unreadFiles", "allFilesForTriggerAvailableNow", "seenFiles"
"""Private fields of Spark's source of files: those that the last batch left, all of a query that ends with them, and those it knows."""


@dataclass(frozen=True)
class SourceOffsets:
    """One source's offsets in a batch, as JSON."""

    kind: str
    """Full name of the class of the source."""
    counts_rows: bool
    """True if the numbers in the offsets count rows, by topic and partition. Those of Kafka do."""
    start: str | None
    """Where the batch begins."""
    end: str | None
    """Where the batch ends."""
    latest: str | None
    """The newest offset when Spark planned the batch."""
    now: str | None = None
    """The newest offset now. Only Kafka is asked for it; None for other sources, and if Kafka gave no answer."""


def execution_of(query: StreamingQuery) -> Any:
    """Spark's ``StreamExecution`` of a query."""
    return _java_query(query).streamingQuery()


def _java_query(query: StreamingQuery) -> Any:
    """The Scala query behind a Python one."""
    return query._jsq


class ProgressTexts:
    """The progress of a query's batches as JSON. PySpark rebuilds all of it from the history at each call."""

    def __init__(self, query: StreamingQuery) -> None:
        self._java = _java_query(query)

    def after(self, batch: int) -> list[str]:
        """The progress of batches that ended after this one, oldest first. Most calls find one or none, and read only the last."""
        last = self._java.lastProgress()
        newest = -1 if last is None else int(last.batchId())
        if newest <= batch:
            return []
        return [last.json()] if newest == batch + 1 else self.recent()

    def last(self) -> str | None:
        """The progress of the last batch, or None before the first has ended."""
        last = self._java.lastProgress()
        return None if last is None else str(last.json())

    def recent(self) -> list[str]:
        """The progress of the batches that Spark keeps, oldest first."""
        return [str(each.json()) for each in self._java.recentProgress()]


def ends_within(query: StreamingQuery, seconds: float) -> bool:
    """Wait for the end of a query. False after so many seconds; raises StreamingQueryException if the query failed."""
    return bool(_java_query(query).awaitTermination(int(seconds * 1000)))


def await_end(query: StreamingQuery) -> None:
    """Wait until the thread of a query has ended. With a time limit, Spark calls a query ended as soon as somebody stops it."""
    _java_query(query).awaitTermination()


def await_initialised(query: StreamingQuery, seconds: float) -> None:
    """Wait until Spark has made the sources and the plan of a query, or so many seconds. Not for the query's own thread, which has them."""
    execution_of(query).awaitInitialization(int(seconds * 1000))


def query_session(query: StreamingQuery, session: SparkSession) -> SparkSession:
    """The clone of the session in which Spark runs a query. Inside ``foreachBatch`` it is ``batch.sparkSession``."""
    return SparkSession(session.sparkContext, execution_of(query).sparkSessionForStream())


def failure_of(query: StreamingQuery) -> JavaFailure | None:
    """The Java exception that ended a query, or None."""
    found = _java_query(query).exception()
    return java_failure_of(found.get()) if found.isDefined() else None


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


def source_offsets(execution: Any, session: SparkSession) -> list[SourceOffsets]:
    """The offsets of the batch that a StreamExecution runs now, per source. File sources are left out."""
    start, end, latest = execution.getStartOffsetsOfLatestBatch(), execution.availableOffsets(), execution.latestOffsets()
    found = []
    for source in iterated(end.keysIterator()):
        kind = full_class_name(source)
        if not kind.endswith(f".{FILE_SOURCE}"):
            first, last, newest = (_json(each, source) for each in (start, end, latest))
            is_kafka = kind.startswith(_KAFKA_PACKAGE)
            found.append(SourceOffsets(kind, is_kafka, first, last, newest, newest_offsets(session, source) if is_kafka else None))
    return found


def files_wait(execution: Any) -> bool:
    """True if a source of files knew more files than the batch could take when Spark planned it. So the next batch has rows too."""
    sources = iterated(execution.availableOffsets().keysIterator())
    return any(_leaves_files(source) for source in sources if full_class_name(source).endswith(f".{FILE_SOURCE}"))


def _leaves_files(source: Any) -> bool:
    if private_field(source, UNREAD) is not None:
        return True
    listed = private_field(source, LISTED)
    if listed is None or not listed.size():
        return False
    # Batches take the files in the order of this list.
    last = listed.last()
    return bool(private_field(source, SEEN).isNewFile(private_field(last, "path"), private_field(last, "timestamp")))


def _json(offsets: Any, source: Any) -> str | None:
    found = offsets.get(source)
    return str(found.get().json()) if found.isDefined() else None


def reads_stream(node: Any) -> bool:
    """True for a leaf that reads a stream.

    Raises if a streaming leaf has an unknown class: its rows would be taken for those of a static DataFrame.
    """
    kind = class_name(node)
    if kind in RELATIONS:
        return True
    if kind != _REFERENCE and not node.children().size() and node.isStreaming():
        raise UnsupportedError(where="the source of a stream", wanted=f"one of {', '.join(RELATIONS)} in Spark's plan", found=kind)
    return False


def relations(frame: DataFrame) -> list[Any]:
    """The leaves of a DataFrame's plan that read streams, in the order in which Spark stores their offsets."""
    return [node for node in walk(analyzed(frame)) if reads_stream(node)]


def source_names(frame: DataFrame) -> list[str]:
    """The formats of a streaming DataFrame's sources, with the path for files."""
    return [source_name(relation) for relation in relations(frame)]


def source_paths(frame: DataFrame) -> list[str | None]:
    """For each source, in the order in which Spark stores their offsets: the path that it was loaded with. None without one."""
    return [_path(relation) for relation in relations(frame)]


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


def _path(relation: Any) -> str | None:
    """The option ``path`` of a source of Spark's first API, to which all files belong."""
    if class_name(relation) != "StreamingRelation":
        return None
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
