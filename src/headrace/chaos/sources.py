"""Sources under chaos: files that a user's program would read are copied into parts, and released one by one into private folders.

A part is one micro-batch. The parts are Parquet files with the rows of the user's files in order of these files, whatever their format is.
``Redirect`` stands in for ``spark.readStream`` while the user's program is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.chaos.patched import patched
from headrace.errors import SourceError

FILE_FORMATS = ("parquet", "json", "csv", "orc", "text")
EPOCH_S = 1_700_000_000
"""Modification times begin here, a second apart: Spark reads files in that order."""


@dataclass(frozen=True)
class SourceRequest:
    """A source as the user's program asked for it."""

    format: str
    path: str
    options: dict[str, Any]
    schema: StructType | str | None

    def read(self, spark: SparkSession, *paths: str) -> DataFrame:
        """The rows as a batch DataFrame; by default those of the user's path."""
        reader = spark.read.format(self.format).options(**self.options)
        if self.schema is not None:
            reader = reader.schema(self.schema)
        return reader.load(list(paths) if paths else self.path)

    def files(self) -> list[str]:
        """The user's files in the order in which a stream reads them; empty if they are not on this machine."""
        found = [path for path in _local(self.path) if path.is_file() and not path.name.startswith((".", "_"))]
        return [str(path) for path in sorted(found, key=lambda path: (path.stat().st_mtime_ns, str(path)))]


def _local(path: str) -> list[Path]:
    path = path.removeprefix("file://")
    if "://" in path:
        return []
    root = Path(path)
    if root.is_dir():
        return list(root.rglob("*"))
    return [root] if root.exists() else [Path(each) for each in glob(path)]


Opened = Callable[[int, SourceRequest], DataFrame]
"""Called with the number and the request of each source that a program reads; returns what the program gets."""


class Reader:
    """Stands in for Spark's DataStreamReader."""

    def __init__(self, redirect: Redirect) -> None:
        self._redirect = redirect
        self._format = "parquet"
        self._options: dict[str, Any] = {}
        self._schema: StructType | str | None = None

    def format(self, source: str) -> Self:
        self._format = source
        return self

    def schema(self, schema: StructType | str) -> Self:
        self._schema = schema
        return self

    def option(self, key: str, value: Any) -> Self:
        self._options[key] = value
        return self

    def options(self, **options: Any) -> Self:
        self._options.update(options)
        return self

    def load(self, path: str | None = None, format: str | None = None, schema: Any = None, **options: Any) -> DataFrame:
        self._options.update({name: value for name, value in options.items() if value is not None})
        return self._redirect.open(SourceRequest(format or self._format, str(path or ""), self._options, schema or self._schema))

    def table(self, tableName: str) -> DataFrame:
        return self._redirect.open(SourceRequest("table", tableName, self._options, None))

    def __getattr__(self, name: str) -> Any:
        if name not in FILE_FORMATS:
            raise AttributeError(name)
        return lambda path, schema=None, **options: self.load(path, name, schema, **options)


@dataclass
class Redirect:
    """While this context is entered, ``spark.readStream`` gives what ``opened`` returns."""

    spark: SparkSession
    opened: Opened
    requests: list[SourceRequest] = field(default_factory=list)
    _own: Any = None
    """Spark's own ``readStream``."""

    def patch(self) -> AbstractContextManager[None]:
        self._own = vars(type(self.spark))["readStream"]
        return patched(type(self.spark), readStream=property(lambda _: Reader(self)))

    def open(self, request: SourceRequest) -> DataFrame:
        if request.format.lower() not in FILE_FORMATS or not request.path:
            raise SourceError(
                where="chaos",
                wanted=f"sources that read files ({', '.join(FILE_FORMATS)}), so that they can be fed batch by batch",
                found=f"the source {request.format!r}",
                hint="write some of its rows to files, and read those, or give a function and its rows: FILE.py:FUNCTION --input FOLDER",
            )
        self.requests.append(request)
        with patched(type(self.spark), readStream=self._own):
            return self.opened(len(self.requests) - 1, request)


@dataclass(frozen=True)
class Parts:
    """The parts of one source: those that wait, and the folder that the query reads."""

    waiting: Path
    released: Path

    @classmethod
    def of(cls, work: Path, number: int) -> Parts:
        return cls(work / "parts" / str(number), work / "sources" / str(number))

    @staticmethod
    def name(at: int) -> str:
        return f"{at:06d}.parquet"

    @property
    def count(self) -> int:
        return len(list(self.waiting.glob("*.parquet")))

    def between(self, begin: int, end: int) -> list[str]:
        """The files of these parts, as far as there are any."""
        return [str(self.waiting / self.name(at)) for at in range(begin, min(end, self.count))]

    def release(self, at: int) -> None:
        """Let the query see a part. A rename is atomic, so the query never reads half a file."""
        self.released.mkdir(parents=True, exist_ok=True)
        waiting, temporary = self.waiting / self.name(at), self.released / f".{self.name(at)}"
        temporary.unlink(missing_ok=True)
        os.link(waiting, temporary)
        temporary.rename(self.released / waiting.name)

    def write(self, table: pa.Table, count: int, rows_max: int) -> None:
        """Cut rows into parts of equal size. Raises an error if there are too few rows."""
        if table.num_rows < count:
            hint = "ask for fewer faults, or give more rows"
            raise SourceError(where="chaos", wanted=f"at least {count} rows, one for each batch", found=f"{table.num_rows}", hint=hint)
        self.waiting.mkdir(parents=True)
        rows = min(rows_max, table.num_rows // count)
        for at in range(count):
            path = self.waiting / self.name(at)
            pq.write_table(table.slice(at * rows, rows), path)
            os.utime(path, (EPOCH_S + at, EPOCH_S + at))


def rows_of(spark: SparkSession, request: SourceRequest, most: int, order_by: str = "") -> pa.Table:
    """The first rows of a source, in the order of its files, or of a column."""
    files = request.files()
    if order_by or not files:
        frame = request.read(spark)
        return (frame.orderBy(order_by) if order_by else frame).limit(most).toArrow()
    found: list[pa.Table] = []
    while files and sum(table.num_rows for table in found) < most:
        found.append(request.read(spark, files.pop(0)).toArrow())
    return pa.concat_tables(found, promote_options="permissive").slice(0, most)
