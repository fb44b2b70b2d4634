"""Files, exactly once: Spark's own file sink, whose log skips a batch that it already has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import DataFrame

from headrace.errors import SinkError
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import Options
from headrace.runtime.sinks.base import Sink, SinkRequest

FORMATS = {
    "parquet": "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat",
    "json": "org.apache.spark.sql.execution.datasources.json.JsonFileFormat",
    "csv": "org.apache.spark.sql.execution.datasources.csv.CSVFileFormat",
    "orc": "org.apache.spark.sql.execution.datasources.orc.OrcFileFormat",
    "text": "org.apache.spark.sql.execution.datasources.text.TextFileFormat",
}


class FileSink(Sink):
    """parquet, json, csv, orc, text."""

    guarantee: ClassVar[str] = "exactly-once"
    modes: ClassVar[tuple[OutputMode, ...]] = (OutputMode.APPEND,)

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request)
        path = request.options.get("path")
        if not path:
            raise SinkError(
                where=request.where, wanted="a path for the files", found="none", hint="give option('path', ...) or start(path)"
            )
        self.path = path if "://" in path or path.startswith("file:") else str(Path(path).absolute())
        jvm: Any = request.session._jvm
        self._jvm = jvm
        self._sink = self._spark_sink(self.path)
        log_version = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog.VERSION()
        self._log = jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSinkLog(
            log_version, request.session._jsparkSession, f"{self.path.rstrip('/')}/_spark_metadata", jvm.scala.Option.empty()
        )

    def check_new_query(self) -> None:
        latest = self._log.getLatestBatchId()
        if latest.isDefined():
            raise SinkError(
                "a query with a new checkpoint starts at batch 0, and this folder's log would skip it as already written",
                where=self.request.where,
                found=f"{self.path}, written by another query up to batch {latest.get()}",
                hint="give the query a folder of its own, or restart it with the checkpointLocation that it had",
            )

    def deliver(self, version: int, rows: DataFrame | None) -> None:
        if rows is not None:
            self._sink.addBatch(version, rows._jdf)
            return
        # The log wants an entry for every batch, and writing an empty one takes no Spark job.
        status = self._jvm.java.lang.Class.forName("org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus")
        latest = self._log.getLatestBatchId()
        if latest.isEmpty() or latest.get() < version:
            self._log.add(version, self._jvm.java.lang.reflect.Array.newInstance(status, 0))

    def _spark_sink(self, path: str) -> Any:
        jvm, request = self._jvm, self.request
        gateway: Any = request.session.sparkContext._gateway
        name = FORMATS[request.format.lower()]
        no_classes = gateway.new_array(jvm.java.lang.Class, 0)
        options = Options(request.options.spark())
        options["path"] = path
        no_objects = gateway.new_array(jvm.java.lang.Object, 0)
        file_format = jvm.java.lang.Class.forName(name).getDeclaredConstructor(no_classes).newInstance(no_objects)
        return jvm.org.apache.spark.sql.execution.streaming.sinks.FileStreamSink(
            request.session._jsparkSession,
            path,
            file_format,
            jvm.PythonUtils.toSeq(list(request.partition_by)),
            jvm.PythonUtils.toScalaMap(dict(options)),
        )
