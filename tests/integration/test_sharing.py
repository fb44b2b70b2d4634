"""Streams of one source share what they have in common, and nothing else: two plans may read alike and give other rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.compile.sharing import shared_sources

pytestmark = pytest.mark.spark

SCHEMA = "k string, v int, xs array<int>, ys array<int>, x_1 int, x_2 int, ts timestamp"
ROWS = [("a", 1, [1, 2], [5], 5, 7), ("b", 2, [], [6], 6, 8), ("c", 3, None, [1], 7, 9), ("a", 4, [3], [3], 8, 1)]

Build = Callable[[DataFrame, DataFrame], DataFrame]


def beside(rows: DataFrame, static: DataFrame) -> DataFrame:
    """Two columns are called k, and two v."""
    return rows.join(static, rows.k == static.k)


ALIKE: dict[str, tuple[Build, Build]] = {
    "static DataFrames with other filters": (
        lambda rows, static: rows.join(static.filter("y = 2020").select("k", "y"), "k"),
        lambda rows, static: rows.join(static.filter("y = 2021").select("k", "y"), "k"),
    ),
    "explode and explode_outer": (
        lambda rows, _: rows.select("k", F.explode("xs").alias("x")),
        lambda rows, _: rows.select("k", F.explode_outer("xs").alias("x")),
    ),
    "filters of two columns of one name": (
        lambda rows, static: beside(rows, static).filter(rows.v > 1).select(rows.k),
        lambda rows, static: beside(rows, static).filter(static.v > 1).select(rows.k),
    ),
    "two columns of one name": (
        lambda rows, static: beside(rows, static).select(rows.k, rows.v).filter("v > 1"),
        lambda rows, static: beside(rows, static).select(rows.k, static.v).filter("v > 1"),
    ),
    "columns with names as lambda variables have": (
        lambda rows, _: rows.filter(F.exists("xs", lambda x: x + 3 < F.col("x_1"))),
        lambda rows, _: rows.filter(F.exists("xs", lambda x: x + 3 < F.col("x_2"))),
    ),
    "lambda variables in another order": (
        lambda rows, _: rows.filter(F.exists(F.zip_with("xs", "ys", lambda x, y: x - y), lambda x: x > 0)),
        lambda rows, _: rows.filter(F.exists(F.zip_with("xs", "ys", lambda x, y: y - x), lambda x: x > 0)),
    ),
    "subqueries": (
        lambda rows, _: rows.filter("v > (select max(v) from known where y = 2020)"),
        lambda rows, _: rows.filter("v > (select min(v) from known where y = 2021)"),
    ),
}


@pytest.fixture
def static(spark: SparkSession) -> DataFrame:
    rows = spark.createDataFrame([("a", 1, 2020), ("b", 9, 2021), ("c", 0, 2021)], "k string, v int, y int")
    rows.createOrReplaceTempView("known")
    return rows


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Path:
    rows = spark.createDataFrame([(*row, None) for row in ROWS], SCHEMA)
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    return tmp_path / "in"


@pytest.mark.parametrize("what", ALIKE)
def test_streams_that_only_read_alike_are_kept_apart(spark: SparkSession, folder: Path, static: DataFrame, what: str) -> None:
    rows = spark.readStream.schema(SCHEMA).parquet(str(folder))
    sources, parts = shared_sources({str(at): build(rows, static) for at, build in enumerate(ALIKE[what])})
    assert len(sources) == 2 or any(rest is not None for _, rest in parts.values())


@pytest.mark.parametrize(
    "what", ["static DataFrames with other filters", pytest.param("explode and explode_outer", marks=pytest.mark.extra)]
)
def test_each_gets_its_own_rows(spark: SparkSession, folder: Path, tmp_path: Path, static: DataFrame, what: str) -> None:
    streaming, batch = spark.readStream.schema(SCHEMA).parquet(str(folder)), spark.read.schema(SCHEMA).parquet(str(folder))
    found: dict[int, list[tuple[object, ...]]] = {}

    def sink(at: int) -> Callable[[DataFrame, int], None]:
        return lambda rows, _: found.update({at: sorted(map(tuple, rows.collect()))})

    writers = [
        hr.stream(build(streaming, static))
        .groupBy("k")
        .count()
        .named(f"part {at}")
        .writeStream.outputMode("complete")
        .foreachBatch(sink(at))
        for at, build in enumerate(ALIKE[what])
    ]
    hr.start(writers[0].trigger(availableNow=True), *writers[1:], checkpointLocation=str(tmp_path / "checkpoint")).awaitTermination()
    assert found == {at: sorted(map(tuple, build(batch, static).groupBy("k").count().collect())) for at, build in enumerate(ALIKE[what])}


def test_the_same_steps_are_shared_though_each_watermark_has_an_id(spark: SparkSession, folder: Path) -> None:
    rows = spark.readStream.schema(SCHEMA).parquet(str(folder))

    def build(delay: str) -> DataFrame:
        return rows.filter("v > 0").withWatermark("ts", delay)

    sources, parts = shared_sources({"a": build("1 minute"), "b": build("1 minute").select("k"), "c": build("1 minute").select("v")})
    assert len(sources) == 1
    assert parts["a"][1] is None
    sources, _ = shared_sources({"a": build("1 minute"), "b": build("2 minutes")})
    assert len(sources) == 2
