"""The file sink is Spark's own. It delivers exactly once, because its log skips a batch that it already has."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pyspark.sql import DataFrame

from headrace.errors import SinkError
from headrace.ids import Version
from headrace.operators.kernel import OutputMode
from headrace.runtime.options import Options
from headrace.runtime.sinks.base import EXACTLY_ONCE, Sink, SinkRequest
from headrace.spark.sinks import LoggedFiles


class FileSink(Sink):
    """The formats parquet, json, csv, orc and text."""

    guarantee: ClassVar[str] = EXACTLY_ONCE
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
        self._begun = False
        """True once results were delivered since this start."""

    def check_follows(self, newest: Version | None, delivered: Version | None) -> None:
        latest = self._files.latest_batch()
        if latest is None:
            return
        if newest is None:
            raise SinkError(
                "a query with a new checkpoint starts at batch 0, and this folder's log would skip it as already written",
                where=self.request.where,
                found=f"{self.path}, written by another query up to batch {latest}",
                hint="give the query a folder of its own, or restart it with the checkpointLocation that it had",
            )
        if latest > newest:
            what = f"the query continues at batch {newest + 1}, and this folder's log would skip batches up to {latest} as already written"
            raise self._other_moment(what, newest, latest)
        if delivered is not None and latest < delivered and self._files.has_rows():
            what = f"the query continues behind batch {delivered}, so batches {latest + 1} to {delivered} would be missing in this folder"
            raise self._other_moment(what, delivered, latest)

    def _other_moment(self, what: str, wanted: int, latest: int) -> SinkError:
        return SinkError(
            what,
            where=self.request.where,
            wanted=f"an output folder with batches up to {wanted}, as the checkpoint says",
            found=f"{self.path}, written up to batch {latest}",
            hint="restore checkpoint and output folder from one moment, or give the query a new output folder; "
            "to compute everything again, start with a new checkpointLocation and a new output folder",
        )

    def deliver(self, version: Version, rows: DataFrame | None) -> None:
        if not self._begun:
            latest = self._files.latest_batch()
            if version and (latest is None or latest < version - 1):
                # The folder is new to a query that has run before.
                self._files.begin_at(version)
            self._begun = True
        if rows is not None:
            self._files.add(version, rows)
        else:
            self._files.add_empty(version)
