"""A source of rows for a test: a folder that the query reads, and to which files are added batch by batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from headrace.api.origin import user_line
from headrace.errors import QueryError
from headrace.testing.values import to_table, zone_of


@dataclass(frozen=True)
class SourcePart:
    """The rows of one source in one batch, in a file that will be moved into the source's folder."""

    source: Source
    waiting: Path
    late: bool

    def put(self) -> None:
        """Make the rows visible to the query. A rename is atomic, so the query never reads half a file."""
        self.waiting.rename(self.source.folder / self.waiting.name)
        self.source.given.append(self)

    @property
    def path(self) -> Path:
        """Where the rows are once the query can see them."""
        return self.source.folder / self.waiting.name


@dataclass(eq=False)
class Source:
    """A source of rows for a query under test; ``QueryTest.source`` makes it."""

    session: SparkSession
    """The session."""
    name: str
    """The name of the source in error messages."""
    schema: T.StructType
    """The columns of its rows."""
    folder: Path
    """The folder that the query reads."""
    waiting: Path
    """The folder to which files are written first."""
    offer: Callable[[SourcePart], None]
    """Called with each part that is added; puts it into a batch."""
    given: list[SourcePart] = field(default_factory=list)
    """The parts that the query can see."""
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.waiting.mkdir(exist_ok=True)

    @cached_property
    def frame(self) -> DataFrame:
        """The streaming DataFrame that the query reads."""
        return self.session.readStream.schema(self.schema).parquet(str(self.folder))

    def add(self, *rows: Any, late: bool = False) -> None:
        """Add ``rows`` as one micro-batch; inside of ``QueryTest.batch`` several calls make one batch.

        A row is a tuple, a Row, or a dict, in which columns that are left out are null. For a source of one column it may be a plain value.
        Timestamps and dates may be texts, such as ``"2026-01-01 00:00:01"``. Instead of rows there may be one Arrow table or one
        DataFrame. Without rows, the batch is empty. A row that does not fit the schema raises ``QueryError``.

        ``late=True`` says that the query must drop the rows as late. Spark's batch answer is then computed without them.
        """
        table = self._table(rows, user_line(f"source {self.name!r}, add"))
        waiting = self.waiting / f"{self.name}-{next(self._numbers):06d}.parquet"
        pq.write_table(table, waiting)
        self.offer(SourcePart(self, waiting, late))

    def advance(self, to: Any, column: str | None = None) -> None:
        """Add one row with the event time ``to`` and null in all other columns. It moves the watermark to ``to`` minus the delay.

        ``column`` is needed if the source has several timestamp columns. The row is like any other: filters before ``withWatermark``
        may drop it, and running aggregates count it.
        """
        times = [f.name for f in self.schema.fields if isinstance(f.dataType, T.TimestampType | T.TimestampNTZType)]
        if column is None and len(times) != 1:
            found = ", ".join(times) or "none"
            where = user_line(f"source {self.name!r}, advance")
            raise QueryError(where=where, wanted="column=..., one of the columns with times", found=found)
        self.add({column or times[0]: to})

    def as_batch(self) -> DataFrame:
        """All rows that the query can see, as a batch DataFrame, without those that were added as late."""
        reader = self.session.read.schema(self.schema)
        paths = [str(part.path) for part in self.given if not part.late]
        return reader.parquet(*paths) if paths else self.session.createDataFrame([], self.schema)

    def _table(self, rows: tuple[Any, ...], where: str) -> pa.Table:
        if len(rows) == 1 and isinstance(rows[0], DataFrame):
            rows = (rows[0].toArrow(),)
        if len(rows) == 1 and isinstance(rows[0], pa.Table):
            wanted = to_table((), self.schema, zone_of(self.session), where).schema
            try:
                return rows[0].select(wanted.names).cast(wanted)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError, ValueError) as refused:
                raise QueryError(where=where, wanted=f"columns {self.schema.simpleString()}", found=str(refused)) from None
        return to_table(rows, self.schema, zone_of(self.session), where)
