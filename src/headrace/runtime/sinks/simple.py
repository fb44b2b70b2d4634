"""The sinks memory, console, noop, foreachBatch, and any batch format by name."""

from __future__ import annotations

from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.errors import SinkError
from headrace.ids import Version
from headrace.operators.kernel import OutputMode
from headrace.runtime.sinks.base import EXACTLY_ONCE, Sink, SinkRequest
from headrace.runtime.sinks.upsert import Upsert
from headrace.spark.plans import empty_frame
from headrace.spark.sinks import MemoryTable, has_format
from headrace.spark.streaming_writes import StreamingWrite

ONLY_APPENDS = ("kafka",)
"""Formats whose batch writers refuse to overwrite."""


class MemorySink(Sink):
    """A table in the driver's memory with the query's name. After a restart it is empty, as in Spark."""

    guarantee: ClassVar[str] = "exactly-once within a run"

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request)
        if not request.query_name:
            raise SinkError(where=request.where, wanted="a name for the table of the memory sink", found="none", hint="call queryName(...)")
        self._name = request.query_name
        self._table = MemoryTable(request.session, request.schema)

    def begin(self) -> None:
        # Not earlier, because a running query may have the same name.
        self._table.publish(self._name)

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if rows is None:
            rows = empty_frame(self.request.session, self.request.schema)
        self._table.write(version, rows, replace=self.request.mode is OutputMode.COMPLETE)


class ConsoleSink(Sink):
    """Prints each version's results."""

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request)
        number = request.options.get("numRows", "20")
        if not (number.isascii() and number.isdigit()):
            raise SinkError(where=f"{request.where}, option 'numRows'", wanted="a number of rows", found=repr(number))

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        count = int(self.request.options.get("numRows", "20"))
        truncate = self.request.options.get("truncate", "true").lower() == "true"
        print(f"{'-' * 43}\nBatch: {version}\n{'-' * 43}")
        if rows is None:
            rows = empty_frame(self.request.session, self.request.schema)
        rows.show(count, truncate)


class NoopSink(Sink):
    """Computes everything and keeps nothing."""

    direct: ClassVar[bool] = True

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if rows is not None:
            rows.write.format("noop").mode("overwrite").save()


class ForeachBatchSink(Sink):
    """Calls the user's function with the rows and the version's number. If the function is idempotent by it, results are exactly once."""

    def identify(self, query: str, number: int) -> None:
        if isinstance(self.request.foreach_batch, Upsert):
            self.request.foreach_batch.identify(query, number, self.request.mode)

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        assert self.request.foreach_batch is not None
        frame = rows if rows is not None else empty_frame(self.request.session, self.request.schema)
        self.request.foreach_batch(frame, version)


class AnyFormatSink(Sink):
    """Any format that Spark can write in batches (jdbc, kafka, avro, ...). After a crash, a version may be written twice.

    In complete mode, each version's results replace those before. A log such as a Kafka topic can only be appended to, so each version
    appends all its results, as Spark's own sink does.
    """

    def __init__(self, request: SinkRequest) -> None:
        super().__init__(request)
        if not has_format(request.session, request.format):
            raise SinkError(
                where=request.where,
                wanted="a format that Spark can write",
                found=repr(request.format),
                hint="use parquet, json, csv, orc, memory, console, noop, foreachBatch, or add the format's package to the session",
            )

    def own_options(self, version: Version) -> dict[str, str]:
        """Options for the version beside the user's."""
        return {}

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if rows is None:
            return
        replaced = self.request.mode is OutputMode.COMPLETE and self.request.format.lower() not in ONLY_APPENDS
        mode = "overwrite" if replaced else "append"
        options = {**self.request.options.spark(), **self.own_options(version)}
        writer = rows.write.format(self.request.format).options(**options).mode(mode)
        if self.request.partition_by:
            writer = writer.partitionBy(*self.request.partition_by)
        writer.save()


class PythonSink(Sink):
    """A data source that was written in Python. Its ``streamWriter`` gets each version with its number, as in Spark."""

    def identify(self, query: str, number: int) -> None:
        self._query = f"{query}-{number}"

    def begin(self) -> None:
        request = self.request
        replace = request.mode is OutputMode.COMPLETE
        self._write = StreamingWrite(request.session, request.format, request.schema, request.options.spark(), self._query, replace)

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        self._write.write(version, empty_frame(self.request.session, self.request.schema) if rows is None else rows)


class DeltaSink(AnyFormatSink):
    """A table of Delta Lake. Its log notes an application and a version with each write, and skips a version that it has."""

    guarantee: ClassVar[str] = EXACTLY_ONCE

    def identify(self, query: str, number: int) -> None:
        self._application = f"headrace-{query}-{number}"

    def own_options(self, version: Version) -> dict[str, str]:
        return {"txnAppId": self._application, "txnVersion": str(version)}
