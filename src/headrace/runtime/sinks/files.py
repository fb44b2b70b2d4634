"""The file sink is Spark's own. It delivers exactly once, because its log skips a batch that it already has."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.errors import SinkError
from headrace.ids import Version
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import Options
from headrace.runtime.sinks.base import Sink, SinkRequest
from headrace.spark.sinks import LoggedFiles


class FileSink(Sink):
    """The formats parquet, json, csv, orc and text."""

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
        options = Options(request.options.spark())
        options["path"] = self.path
        self._files = LoggedFiles(request.session, request.format.lower(), self.path, request.partition_by, options)

    def check_new_query(self) -> None:
        latest = self._files.latest_batch()
        if latest is not None:
            raise SinkError(
                "a query with a new checkpoint starts at batch 0, and this folder's log would skip it as already written",
                where=self.request.where,
                found=f"{self.path}, written by another query up to batch {latest}",
                hint="give the query a folder of its own, or restart it with the checkpointLocation that it had",
            )

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if rows is not None:
            self._files.add(version, rows)
        else:
            self._files.add_empty(version)
