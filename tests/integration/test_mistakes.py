"""Wrong use is reported when the query is built or started, by an error that says where, what was found, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

import headrace as hr
from headrace.errors import (
    CheckpointMismatchError,
    HeadraceError,
    QueryError,
    SinkError,
    SourceError,
    StateSchemaError,
    UnsupportedError,
)

SCHEMA = "k string, ts timestamp, v int, w double, tags array<string>"

SPARKS_WORDS = re.compile(r"Traceback|\n\s+at |org\.apache\.spark|Py4J|JVM stacktrace|SQLSTATE|~|'Project|'Aggregate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mistakes")


@pytest.fixture
def calls(spark: SparkSession, folder: Path) -> Any:
    source = folder / "in"
    source.mkdir(exist_ok=True)
    return hr.stream(spark.readStream.schema(SCHEMA).parquet(str(source)))


def timed(calls: Any) -> Any:
    return calls.withWatermark("ts", "1 minute")


def counted(calls: Any) -> Any:
    return calls.groupBy("k").count()


def windowed(calls: Any) -> Any:
    return timed(calls).groupBy("k", F.window("ts", "1 minute")).count()


def refused(build: Callable[[], Any], kind: type[HeadraceError]) -> HeadraceError:
    with pytest.raises(kind) as caught:
        build()
    error = caught.value
    assert not SPARKS_WORDS.search(str(error)), str(error)
    assert error.where
    assert error.found
    # Nothing of Spark hangs on to it when it is printed.
    assert error.__cause__ is None or not SPARKS_WORDS.search(str(error.__cause__))
    return error


def _python_sum() -> Any:
    def total(values: pd.Series) -> int:
        return int(values.sum())

    annotate: Any = pandas_udf
    # As annotations are texts here, the types are set by hand.
    total.__annotations__ = {"values": pd.Series, "return": int}
    return annotate(total, "long")


BUILDING: dict[str, tuple[type[HeadraceError], Callable[[Any], Any], tuple[str, ...]]] = {
    "unknown column in groupBy": (QueryError, lambda s: s.groupBy("caller"), ("caller", "printSchema", "test_mistakes.py:")),
    "unknown column in an aggregate": (
        QueryError,
        lambda s: s.groupBy("k").agg(F.sum("duration")),
        ("duration", "agg at test_mistakes.py:"),
    ),
    "unknown column before": (QueryError, lambda s: s.filter(F.col("x") > 1), ("filter at", "x")),
    "unknown column after the aggregate": (QueryError, lambda s: counted(s).filter("v > 1"), ("filter at", "v", "printSchema")),
    "unknown column in dropDuplicates": (QueryError, lambda s: s.dropDuplicates(["x"]), ("x",)),
    "text instead of a list": (QueryError, lambda s: s.dropDuplicates("k"), ("list",)),
    "a number as a column": (QueryError, lambda s: s.groupBy(3.5), ("3.5",)),
    "no aggregate": (QueryError, lambda s: s.groupBy("k").agg(), ("count",)),
    "a plain column as an aggregate": (QueryError, lambda s: s.groupBy("k").agg(F.col("v")), ("v",)),
    "a function written in Python": (
        UnsupportedError,
        lambda s: s.groupBy("k").agg(_python_sum()("v")),
        ("written in Python", "process"),
    ),
    "function that makes rows": (UnsupportedError, lambda s: s.groupBy("k").agg(F.explode(F.collect_set("v"))), ("rows",)),
    "array as key": (UnsupportedError, lambda s: s.groupBy("tags").count(), ("tags", "array<string>", "atomic")),
    "array among duplicates": (UnsupportedError, lambda s: s.dropDuplicates(), ("tags", "array<string>")),
    "two windows": (UnsupportedError, lambda s: s.groupBy(F.window("ts", "1 hour"), F.window("ts", "1 day")), ("two windows",)),
    "a window as SQL text": (UnsupportedError, lambda s: timed(s).groupBy(F.expr("window(ts, '1 hour')")).count(), ("F.window", "agg at")),
    "a gap that differs from row to row": (
        UnsupportedError,
        lambda s: s.groupBy(F.session_window("ts", F.when(F.col("v") > 1, "1 hour").otherwise("2 hours"))),
        ("differs from row to row",),
    ),
    "windows of no rows": (QueryError, lambda s: s.groupBy(hr.count_window(0)).count(), ("above 0",)),
    "counted without a watermark": (QueryError, lambda s: s.groupBy("k", hr.count_window(3)).count(), ("withWatermark", "arrival")),
    "a split of nothing": (QueryError, lambda s: s.split(otherwise="rest"), ("at least one branch",)),
    "a branch over no column": (QueryError, lambda s: s.split(some="nobody > 1"), ("nobody",)),
    "a window that slides too far": (QueryError, lambda s: s.groupBy(F.window("ts", "1 hour", "2 hours")).count(), ("slide",)),
    "a window of no duration": (QueryError, lambda s: s.groupBy(F.window("ts", "soon")).count(), ("soon",)),
    "a window of months": (QueryError, lambda s: s.groupBy(F.window("ts", "1 month")).count(), ("month",)),
    "a window over numbers": (QueryError, lambda s: s.groupBy(F.window("v", "1 hour")).count(), ("window",)),
    "a watermark over text": (QueryError, lambda s: s.withWatermark("k", "1 hour"), ("k",)),
    "a watermark of nonsense": (QueryError, lambda s: s.withWatermark("ts", "soon"), ("soon",)),
    "second stateful operator": (
        UnsupportedError,
        lambda s: counted(s).groupBy("count").count(),
        ("results change", "F.window"),
    ),
    "duplicates of results": (UnsupportedError, lambda s: counted(s).dropDuplicates(), ("results change",)),
    "an aggregate of a source hidden in select": (UnsupportedError, lambda s: s.select(F.sum("v")), ("several rows", "select at")),
    "an aggregate hidden in select": (UnsupportedError, lambda s: counted(s).select(F.sum("count")), ("several rows", "groupBy")),
    "union of other columns": (QueryError, lambda s: s.union(s.select("k")), ("union at",)),
    "watermark too late": (UnsupportedError, lambda s: counted(s).withWatermark("k", "1 hour"), ("belongs to the source",)),
}


@pytest.mark.parametrize("what", list(BUILDING))
def test_a_mistake_in_building(calls: Any, what: str) -> None:
    kind, build, words = BUILDING[what]
    error = refused(lambda: build(calls), kind)
    for word in words:
        assert word in str(error), str(error)


STARTING: dict[str, tuple[type[HeadraceError], Callable[[Any, Path], Any], tuple[str, ...]]] = {
    "append without watermark": (
        QueryError,
        lambda s, p: counted(s).writeStream.format("memory").queryName("q"),
        ("withWatermark", "update"),
    ),
    "unknown option": (QueryError, lambda s, p: console(s).option("headrace.instance", 2), ("headrace.instance", "headrace.instances")),
    "bad value": (QueryError, lambda s, p: console(s).option("headrace.instances", "many"), ("headrace.instances", "'many'")),
    "value out of range": (QueryError, lambda s, p: console(s).option("headrace.instances", -1), ("-1", "from 0")),
    "bad choice": (QueryError, lambda s, p: console(s).option("headrace.combine", "perhaps"), ("always or never",)),
    "unknown format": (SinkError, lambda s, p: console(s).format("papyrus"), ("papyrus", "parquet")),
    "files without path": (SinkError, lambda s, p: windowed(s).writeStream.format("parquet"), ("path",)),
    "files in update mode": (SinkError, lambda s, p: console(s).format("parquet").option("path", str(p / "o")), ("append", "foreachBatch")),
    "no checkpoint": (
        QueryError,
        lambda s, p: windowed(s).writeStream.format("parquet").option("path", str(p / "o")),
        ("checkpointLocation",),
    ),
    "unknown partition column": (
        SinkError,
        lambda s, p: windowed(s).writeStream.format("json").option("path", str(p / "o")).partitionBy("month"),
        ("month", "k", "window"),
    ),
    "memory without name": (SinkError, lambda s, p: counted(s).writeStream.format("memory").outputMode("update"), ("queryName",)),
    "nothing to complete": (QueryError, lambda s, p: s.writeStream.format("console").outputMode("complete"), ("append or update",)),
    "duplicates in complete mode": (
        QueryError,
        lambda s, p: s.dropDuplicates(["k"]).writeStream.format("console").outputMode("complete"),
        ("complete",),
    ),
    "remote checkpoint": (HeadraceError, lambda s, p: console(s).option("checkpointLocation", "ftp://host/x"), ("ftp", "path")),
}


def console(calls: Any) -> Any:
    return counted(calls).writeStream.format("console").outputMode("update")


@pytest.mark.parametrize("what", list(STARTING))
def test_a_mistake_in_starting(calls: Any, tmp_path: Path, what: str) -> None:
    kind, writer, words = STARTING[what]
    error = refused(lambda: writer(calls, tmp_path).start(), kind)
    for word in words:
        assert word in str(error), str(error)


def test_mistakes_in_the_writer(calls: Any) -> None:
    write = counted(calls).writeStream
    assert "append, update or complete" in str(refused(lambda: write.outputMode("replace"), QueryError))
    assert "one trigger" in str(refused(lambda: write.trigger(), QueryError))
    assert "continuous" in str(refused(lambda: write.trigger(continuous="1 second"), UnsupportedError))
    assert "function" in str(refused(lambda: write.foreachBatch("f"), QueryError))


def test_sources_that_do_not_fit(spark: SparkSession) -> None:
    assert "readStream" in str(refused(lambda: hr.stream(spark.range(3)), SourceError))
    assert "list" in str(refused(lambda: hr.stream([1, 2]), SourceError))  # type: ignore[arg-type]
    socket = spark.readStream.format("socket").option("host", "localhost").option("port", 1).load()
    counts = hr.stream(socket).groupBy("value").count().writeStream.outputMode("update").format("noop")
    found = str(refused(counts.option("headrace.checkpointSeconds", 5).start, SourceError))
    assert "the socket source discards rows that were processed" in found
    assert "recovery('peer')" in found


STATE_OF_SPARK: dict[str, tuple[Callable[[Any], Any], str]] = {
    "offset": (lambda df: df.offset(3), "offset"),
}


def test_state_of_spark_below_a_stream(spark: SparkSession, folder: Path) -> None:
    """What Headrace has no operator for is refused, whatever Spark would do with it."""
    df = spark.readStream.schema(SCHEMA).parquet(str(folder / "in")).withWatermark("ts", "1 minute")
    for what, (build, word) in STATE_OF_SPARK.items():
        error = refused(lambda build=build: hr.stream(build(df)), UnsupportedError)  # type: ignore[misc]
        assert word in error.found, f"{what}: {error}"
        assert "stream at test_mistakes.py:" in error.where
    for mode in ("append", "update"):
        writer = hr.stream(df.sort("v")).writeStream.outputMode(mode).format("noop")
        assert "sort(...)" in refused(writer.start, UnsupportedError).found


def test_static_dataframes_joined_below_a_stream_may_be_made_in_any_way(spark: SparkSession, folder: Path) -> None:
    df = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    names = spark.createDataFrame([("a", 1)], "k string, n int").dropDuplicates().groupBy("k").agg(F.max("n").alias("n")).limit(9)
    ranked = names.withColumn("rank", F.row_number().over(Window.partitionBy("k").orderBy("n")))
    below = df.join(ranked, "k").union(df.join(ranked, "k", "left")).repartition(2).filter("rank > 0")
    assert hr.stream(below).select("k", "n").columns == ["k", "n"]
    above = hr.stream(df).join(ranked, "k").withColumn("m", F.col("n") + 1)
    assert above.groupBy("k").agg(F.sum("m").alias("m")).join(ranked, "k").selectExpr("m + rank AS x").columns == ["x"]


def start(stream: Any, location: Path) -> None:
    query = (
        stream.writeStream.format("noop")
        .outputMode("update")
        .option("checkpointLocation", str(location))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_checkpoints_that_belong_to_something_else(spark: SparkSession, calls: Any, folder: Path, tmp_path: Path) -> None:
    spark.createDataFrame([("a", None, 1, 1.0, None)], SCHEMA).write.mode("append").parquet(str(folder / "in"))
    mine = tmp_path / "mine"
    start(calls.groupBy("k").agg(F.sum("v").alias("x")), mine)
    other_function = refused(lambda: start(calls.groupBy("k").agg(F.sum("w").alias("x")), mine), StateSchemaError)
    assert "sum(w) would start without the rows before" in str(other_function)
    assert "new checkpointLocation" in str(other_function)
    refused(lambda: start(calls.groupBy("k").agg(F.max("v").alias("x")), mine), StateSchemaError)
    refused(lambda: start(calls.groupBy("v").agg(F.sum("v").alias("x")), mine), CheckpointMismatchError)
    refused(lambda: start(calls.dropDuplicates(["k"]), mine), CheckpointMismatchError)
    plain = tmp_path / "plain"
    source = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    spark_query = source.writeStream.format("noop").option("checkpointLocation", str(plain)).trigger(availableNow=True).start()
    spark_query.awaitTermination()
    assert "plain Spark" in str(refused(lambda: start(counted(calls), plain), CheckpointMismatchError))
    # The right query still runs.
    start(calls.groupBy("k").agg(F.sum("v").alias("x")), mine)
