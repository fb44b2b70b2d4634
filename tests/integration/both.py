"""Runs one query on Headrace and on Spark, over the same files, and compares the answers.

A query is written once, as a function of a stream: Headrace's streams have the methods of Spark's DataFrames. Both engines get the files
one by one and finish each before the next, so that windows close at the same places.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

import headrace as hr
from headrace.runtime.session import ADAPTIVE, ARROW_ROWS
from headrace.spark.expressions import quoted

Query = Callable[[Any], Any]
Disturb = Callable[[hr.HeadraceQuery], None]
Values = tuple[Any, ...]

_numbers = itertools.count()


@dataclass
class Feed:
    """Parquet files that wait, and the folder that both engines watch."""

    folder: Path
    schema: str
    """The schema, as text in Spark's form."""
    files: list[list[Path]]
    """For each step, the files that appear together."""
    options: dict[str, str] = field(default_factory=dict)
    prefix: Callable[[DataFrame], DataFrame] = lambda rows: rows
    """Steps of Spark before the query gets the rows."""

    @classmethod
    def of(cls, root: Path, schema: str, tables: Iterable[pa.Table]) -> Feed:
        root = root / f"feed{next(_numbers)}"
        waiting = root / "waiting"
        waiting.mkdir(parents=True)
        files = []
        for at, table in enumerate(tables):
            path = waiting / f"{at:03d}.parquet"
            pq.write_table(table, path)
            files.append([path])
        return cls(root, schema, files)

    def stream(self, spark: SparkSession, folder: Path) -> DataFrame:
        folder.mkdir(parents=True, exist_ok=True)
        return self.prefix(spark.readStream.schema(self.schema).parquet(str(folder)))

    def batch(self, spark: SparkSession) -> DataFrame:
        return self.prefix(spark.read.schema(self.schema).parquet(str(self.folder / "waiting")))


@contextmanager
def settings(spark: SparkSession, **values: str | None) -> Iterator[None]:
    """Settings for a while, with ``__`` for a dot; None for Spark's default."""
    names = {name.replace("__", "."): value for name, value in values.items()}
    explicit = spark.conf.getAll
    before = {name: explicit.get(name) for name in names}
    _set(spark, names)
    try:
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


def compiled(spark: SparkSession) -> AbstractContextManager[None]:
    """With code generation, as users have it; the session of the tests runs without."""
    return settings(spark, spark__sql__codegen__wholeStage="true", spark__sql__codegen__factoryMode="FALLBACK")


def plain(spark: SparkSession) -> AbstractContextManager[None]:
    """With Spark's own defaults, as a session has that ``SparkSession.builder.getOrCreate()`` made; but few shuffle partitions."""
    names = (ADAPTIVE, ARROW_ROWS, "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode")
    return settings(spark, **{name.replace(".", "__"): None for name in names})


@dataclass
class Answer:
    """Rows per step."""

    steps: list[list[Values]]
    columns: list[str]

    @property
    def rows(self) -> list[Values]:
        return [row for step in self.steps for row in step]

    def last(self, keys: int) -> list[Values]:
        """The last row of each key: the final result of an update stream."""
        return list({repr(tuple(map(normal, row[:keys]))): row for row in self.rows}.values())


def presentable(frame: DataFrame) -> DataFrame:
    """The same rows in types that reach Python."""
    return frame.select(*[_presentable(F.col(quoted(f.name)), f.dataType).alias(f.name) for f in frame.schema.fields])


def _presentable(column: Any, kind: T.DataType) -> Any:
    if isinstance(kind, T.YearMonthIntervalType):
        return column.cast("string")
    if isinstance(kind, T.ArrayType) and isinstance(kind.elementType, T.YearMonthIntervalType):
        return F.transform(column, lambda x: x.cast("string"))
    if isinstance(kind, T.TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, T.StructType):
        return F.struct(*[_presentable(column[f.name], f.dataType).alias(f.name) for f in kind.fields])
    return column


def values(frame: DataFrame) -> list[Values]:
    return [tuple(row) for row in presentable(frame).collect()]


def ours(
    spark: SparkSession, feeds: list[Feed], query: Query, mode: str, root: Path, between: Disturb | None = None, **options: Any
) -> Answer:
    """Run the query. ``between`` is called with it before each step, and may change it."""
    root = root / f"ours{next(_numbers)}"
    sources = [root / f"in{i}" for i in range(len(feeds))]
    streams = [hr.stream(feed.stream(spark, source)) for feed, source in zip(feeds, sources, strict=True)]
    result = query(*streams)
    steps: list[list[Values]] = []
    writer = result.writeStream.outputMode(mode).option("checkpointLocation", str(root / "ckpt"))
    for name, value in options.items():
        writer = writer.option(f"headrace.{name}", value)
    started = writer.foreachBatch(lambda frame, _: steps.append(values(frame))).start()
    return _fed(started, feeds, sources, steps, result.columns, mode, between)


def spark_stream(spark: SparkSession, feeds: list[Feed], query: Query, mode: str, root: Path) -> Answer:
    root = root / f"spark{next(_numbers)}"
    sources = [root / f"in{i}" for i in range(len(feeds))]
    result = query(*[feed.stream(spark, source) for feed, source in zip(feeds, sources, strict=True)])
    steps: list[list[Values]] = []
    writer = result.writeStream.outputMode(mode).option("checkpointLocation", str(root / "ckpt"))
    # One partition is enough. A query keeps the settings that it was started with.
    with settings(spark, spark__sql__shuffle__partitions="1"):
        started = writer.foreachBatch(lambda frame, _: steps.append(values(frame))).start()
    return _fed(started, feeds, sources, steps, result.columns, mode)


def spark_batch(spark: SparkSession, feeds: list[Feed], query: Query) -> Answer:
    result = query(*[feed.batch(spark) for feed in feeds])
    return Answer([values(result)], result.columns)


def _fed(
    query: Any,
    feeds: list[Feed],
    sources: list[Path],
    steps: list[list[Values]],
    columns: list[str],
    mode: str,
    between: Disturb | None = None,
) -> Answer:
    """Feed the query its files step by step. The results of a step, in any number of batches, belong together."""
    found: list[list[Values]] = []
    try:
        for files in itertools.zip_longest(*[feed.files for feed in feeds], fillvalue=[]):
            before = len(steps)
            if between is not None:
                between(query)
            for source, mine in zip(sources, files, strict=True):
                for path in mine:
                    shutil.copy(path, source / f".{path.name}")
                    (source / f".{path.name}").rename(source / path.name)
            query.processAllAvailable()
            new = steps[before:]
            if mode == "complete":
                found.append(new[-1] if new else [])
            else:
                found.append([row for step in new for row in step])
    finally:
        query.stop()
    return Answer(found, columns)


def normal(value: Any) -> Any:
    """Normalise values so that equal ones compare equal: one zero, one NaN, sorted lists."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return sorted((normal(v) for v in value), key=repr)
    if isinstance(value, tuple):
        return tuple(normal(v) for v in value)
    return value


def close(a: Any, b: Any) -> bool:
    """Doubles within rounding; everything else exactly."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(close(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b) and type(a) is type(b)


def _blurred(row: Values) -> str:
    """To sort by: doubles that differ by rounding only must not change the order."""
    return repr(tuple(f"{v:.5e}" if isinstance(v, float) else v for v in row))


def assert_same_rows(found: list[Values], wanted: list[Values], columns: list[str], what: str) -> None:
    mine, theirs = (sorted((normal(tuple(r)) for r in rows), key=_blurred) for rows in (found, wanted))
    assert len(mine) == len(theirs), f"{what}: {len(mine)} rows, wanted {len(theirs)}\n{_only(mine, theirs)}"
    for a, b in zip(mine, theirs, strict=True):
        if not close(a, b):
            differing = [f"{c}: {x!r}, wanted {y!r}" for c, x, y in zip(columns, a, b, strict=True) if not close(x, y)]
            raise AssertionError(f"{what}: {', '.join(differing)}\nin {a}\nand {b}")


def _only(mine: list[Any], theirs: list[Any]) -> str:
    a, b = {repr(r) for r in mine}, {repr(r) for r in theirs}
    return f"only ours: {sorted(a - b)[:5]}\nonly Spark's: {sorted(b - a)[:5]}"


def assert_equal(
    spark: SparkSession,
    feeds: list[Feed],
    query: Query,
    mode: str,
    root: Path,
    *,
    keys: int = 0,
    batch: bool = False,
    **options: Any,
) -> Answer:
    """Assert that Headrace's results equal those of Spark's streaming after every file, and of Spark's batch engine if ``batch``.

    ``keys`` leading columns identify a row; they are needed in update mode, where only the last row of a key counts.
    """
    wanted = spark_stream(spark, feeds, query, mode, root)
    found = ours(spark, feeds, query, mode, root, **options)
    assert found.columns == wanted.columns
    for at, (mine, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
        if mode == "update":
            mine, theirs = (Answer([rows], []).last(keys) for rows in (mine, theirs))
        assert_same_rows(mine, theirs, found.columns, f"step {at} in {mode} mode")
    if batch:
        mine = found.last(keys) if mode == "update" else found.steps[-1] if mode == "complete" else found.rows
        assert_same_rows(mine, spark_batch(spark, feeds, query).rows, found.columns, "against Spark's batch answer")
    return found
