"""Two of Spark's own sinks, which Headrace calls directly: the memory table, and files with a log of batches."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.ids import Version
from headrace.spark.gateway import class_named, first_line, java_array, java_frame, java_session, jvm_of, none, scala_map, seq
from headrace.spark.plans import analyzed, empty_frame

_log = logging.getLogger(__name__)

_SOURCES = "org.apache.spark.sql.execution.datasources"
FILE_FORMATS = {
    "parquet": f"{_SOURCES}.parquet.ParquetFileFormat",
    "json": f"{_SOURCES}.json.JsonFileFormat",
    "csv": f"{_SOURCES}.csv.CSVFileFormat",
    "orc": f"{_SOURCES}.orc.OrcFileFormat",
    "text": f"{_SOURCES}.text.TextFileFormat",
}
"""Formats of the file sink, and Spark's class for each."""
FILE_STATUS = "org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus"


class MemoryTable:
    """Spark's memory sink, and a table over its rows."""

    def __init__(self, session: SparkSession, schema: StructType) -> None:
        jvm = jvm_of(session)
        streaming = jvm.org.apache.spark.sql.execution.streaming.sources
        self._sink = streaming.MemorySink()
        plan = streaming.MemoryPlan(self._sink, analyzed(empty_frame(session, schema)).output())
        self._table = jvm.org.apache.spark.sql.classic.Dataset.ofRows(java_session(session), plan)

    def publish(self, name: str) -> None:
        """Create the temporary view of this name, or replace it."""
        self._table.createOrReplaceTempView(name)

    def write(self, version: Version, rows: DataFrame, replace: bool) -> None:
        """Add a batch's rows, or replace all rows by them. A batch that was written before is ignored."""
        self._sink.write(version, replace, java_frame(rows).collect())


class LoggedFiles:
    """Spark's file sink. Its log names the files of each batch, so that a batch is written once and readers see all of it or nothing."""

    def __init__(self, session: SparkSession, format: str, path: str, partition_by: Sequence[str], options: Mapping[str, str]) -> None:
        self._session, self._path = session, path
        jvm = jvm_of(session)
        no_classes, no_objects = (java_array(session, kind, []) for kind in (jvm.java.lang.Class, jvm.java.lang.Object))
        file_format = class_named(session, FILE_FORMATS[format]).getDeclaredConstructor(no_classes).newInstance(no_objects)
        self._arguments = (path, file_format, seq(session, list(partition_by)), scala_map(session, dict(options)))
        self._open()

    def _open(self) -> None:
        session = self._session
        sinks = jvm_of(session).org.apache.spark.sql.execution.streaming.sinks
        self._sink = sinks.FileStreamSink(java_session(session), *self._arguments)
        version = sinks.FileStreamSinkLog.VERSION()
        self._log = sinks.FileStreamSinkLog(version, java_session(session), f"{self._path.rstrip('/')}/_spark_metadata", none(session))

    def latest_batch(self) -> int | None:
        """The newest batch in the log, or None if the log is empty."""
        latest = self._log.getLatestBatchId()
        return int(latest.get()) if latest.isDefined() else None

    def has_rows(self) -> bool:
        """True if the log names a file. Reads the whole log."""
        return len(self._log.allFiles()) > 0

    def begin_at(self, version: Version) -> None:
        """Let a log without rows begin at this batch.

        Readers, and the compaction of every tenth entry, need all entries since the compaction before. So these are written, without rows.
        """
        interval = int(self._log.compactInterval())
        first = version // interval * interval
        if first:
            self._add_compacted(first - 1)
        for each in range(first, version):
            self.add_empty(Version(each))
        # Spark reads the interval from the compacted entries, once for each log object.
        self._open()

    def _add_compacted(self, batch: int) -> None:
        path = self._log.batchIdToPath(batch)
        parts = jvm_of(self._session).org.apache.hadoop.fs
        temporary = parts.Path(path.getParent(), f".{path.getName()}.tmp")
        files = path.getFileSystem(java_session(self._session).sessionState().newHadoopConf())
        out = files.create(temporary, True)
        self._log.serialize(self._no_files(), out)
        out.close()
        files.rename(temporary, path)

    def add(self, version: Version, rows: DataFrame) -> None:
        """Write a batch. One that is in the log is ignored."""
        self._sink.addBatch(version, java_frame(rows))

    def add_empty(self, version: Version) -> None:
        """Log a batch without rows. The log needs an entry for every batch, and this one takes no Spark job."""
        latest = self.latest_batch()
        if latest is None or latest < version:
            self._log.add(version, self._no_files())

    def _no_files(self) -> Any:
        return jvm_of(self._session).java.lang.reflect.Array.newInstance(class_named(self._session, FILE_STATUS), 0)


def has_format(session: SparkSession, name: str) -> bool:
    """True if Spark finds a data source of this name."""
    conf = java_session(session).sessionState().conf()
    try:
        jvm_of(session).org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(name, conf)
    except Exception as refused:
        _log.debug("Spark finds no data source %r: %s", name, first_line(refused))
        return False
    return True


def table_location(session: SparkSession, name: str) -> tuple[str | None, str]:
    """The format of a table in the session's catalog, and its folder. A view gives None and "".

    Raises what Spark raises if there is no such table.
    """
    state: Any = java_session(session).sessionState()
    table = state.catalog().getTableMetadata(state.sqlParser().parseTableIdentifier(name))
    provider = table.provider()
    return (str(provider.get()), str(table.location().toString())) if provider.isDefined() else (None, "")
