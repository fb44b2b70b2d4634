"""Steps that multiply rows move from Spark's streaming plan to the batch's: which ones, and that nothing changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.compile.boundary import boundary
from tests.integration.both import Feed, assert_equal, compiled

pytestmark = pytest.mark.spark

SCHEMA = "at timestamp, text string, more array<int>, unused string"


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    texts = [["a b a", "", "c  b a", None], ["d a", "a a a a b"], ["z"], ["b"]]
    seconds = [[1, 2, 31, 40], [33, 70], [200], [400]]
    tables = [
        pa.table(
            {
                "at": pa.array([second * 1_000_000 for second in at], pa.timestamp("us", "UTC")),
                "text": pa.array(text, pa.string()),
                "more": pa.array([list(range(n)) for n in range(len(text))], pa.list_(pa.int32())),
                "unused": pa.array(["x"] * len(text)),
            }
        )
        for at, text in zip(seconds, texts, strict=True)
    ]
    return Feed.of(tmp_path_factory.mktemp("texts"), SCHEMA, tables)


def words(stream: Any) -> Any:
    return stream.select("at", "more", F.explode(F.split("text", " ")).alias("word")).filter("word != ''")


def running(stream: Any) -> Any:
    return words(stream).groupBy("word").agg(F.count("*").alias("n"), F.sum(F.length("word")).alias("letters"))


def marked_before(stream: Any) -> Any:
    return words(stream.withWatermark("at", "10 seconds")).groupBy("word", F.window("at", "30 seconds")).count()


def marked_after(stream: Any) -> Any:
    return words(stream).withWatermark("at", "10 seconds").groupBy("word", F.window("at", "30 seconds")).count()


def twice(stream: Any) -> Any:
    return words(stream).select("word", F.explode_outer("more").alias("m")).groupBy(F.upper("word").alias("w"), "m").count()


def distinct(stream: Any) -> Any:
    return words(stream.withWatermark("at", "10 seconds")).select("word", "at").dropDuplicates(["word", "at"])


@pytest.mark.parametrize(
    ("query", "mode", "keys", "options"),
    [
        pytest.param(running, "update", 1, {"instances": 2}, marks=pytest.mark.extra),
        pytest.param(running, "complete", 1, {"combine": "never"}, marks=pytest.mark.extra),
        (marked_before, "append", 2, {"instances": 2}),
        pytest.param(marked_before, "update", 2, {"combine": "never"}, marks=pytest.mark.extra),
        pytest.param(marked_after, "append", 2, {}, marks=pytest.mark.extra),
        pytest.param(twice, "update", 2, {}, marks=pytest.mark.extra),
        pytest.param(distinct, "append", 2, {}, marks=pytest.mark.extra),
    ],
)
def test_the_answers_are_sparks(spark: SparkSession, feed: Feed, tmp_path: Path, query: Any, mode: str, keys: int, options: Any) -> None:
    with compiled(spark):
        assert_equal(spark, [feed], query, mode, tmp_path, keys=keys, **options)


def below(spark: SparkSession, feed: Feed, tmp_path: Path, query: Any, shared: bool = False) -> list[str] | None:
    found = boundary(query(feed.stream(spark, tmp_path)), shared)
    return None if found is None else found.below.columns


def test_what_is_below_has_the_columns_that_are_used(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    assert below(spark, feed, tmp_path, lambda s: words(s).select("word")) == ["at", "text", "more"]
    assert below(spark, feed, tmp_path, lambda s: s.select(F.explode("more"))) == ["more"]

    def twice(stream: Any) -> Any:
        return stream.filter("text > ''").select("text", F.explode("more").alias("m")).select(F.explode(F.split("text", " ")))

    assert below(spark, feed, tmp_path, twice) == ["text", "more"]


@pytest.mark.parametrize(
    "query",
    [
        lambda s: s.select("text"),
        lambda s: words(s).withWatermark("at", "10 seconds"),
        lambda s: s.select(F.explode("more").alias("m")).filter(F.rand() < 0.5),
        lambda s: s.select(F.current_timestamp().alias("now"), F.explode("more")),
        lambda s: s.select("at", F.explode("more")).filter("at < now()"),
        lambda s: s.select(F.explode("more").alias("m")).union(s.select(F.explode("more").alias("m"))),
    ],
    ids=["nothing to move", "a watermark above", "chance", "the time of the batch", "the time in a filter", "two branches"],
)
def test_what_stays_in_the_streaming_plan(spark: SparkSession, feed: Feed, tmp_path: Path, query: Any) -> None:
    assert below(spark, feed, tmp_path, query) is None


def test_for_several_readers_only_steps_that_cost_little_move(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def copies(stream: Any) -> Any:
        return stream.withColumn("copy", F.explode(F.sequence(F.lit(0), F.lit(2)))).withColumn("m", F.col("copy") * 2 + 1)

    assert below(spark, feed, tmp_path, copies, shared=True) == ["at", "text", "more", "unused"]
    assert below(spark, feed, tmp_path, lambda s: copies(s).select("m", "text"), shared=True) == ["at", "text", "more", "unused"]
    assert below(spark, feed, tmp_path, words, shared=True) is None
    assert below(spark, feed, tmp_path, lambda s: copies(s).withColumn("up", F.upper("text")), shared=True) is None


def test_several_operators_and_sinks_read_what_was_multiplied(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def multiplied(frame: Any) -> Any:
        return frame.select("text", F.explode("more").alias("m")).withColumn("twice", F.col("m") * 2)

    found: dict[str, list[tuple[Any, ...]]] = {"counts": [], "texts": [], "plain": []}

    def note(name: str) -> Any:
        return lambda rows, _batch: found[name].extend(tuple(row) for row in rows.collect())

    files = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(feed.folder / "waiting"))
    stream = hr.stream(multiplied(files))
    counts = stream.groupBy("twice").count()
    texts = stream.filter("m > 0").groupBy("text").agg(F.max("m").alias("most"))
    plain = stream.filter("m = 1").select("text", "twice")
    writers = [
        counts.writeStream.outputMode("update").foreachBatch(note("counts")),
        texts.writeStream.outputMode("update").foreachBatch(note("texts")),
        plain.writeStream.foreachBatch(note("plain")),
    ]
    with compiled(spark):
        query = hr.start(*writers, checkpointLocation=str(tmp_path / "checkpoint"), availableNow=True)
        query.awaitTermination()
    whole = multiplied(feed.batch(spark))
    assert dict(found["counts"]) == {row[0]: row[1] for row in whole.groupBy("twice").count().collect()}
    assert dict(found["texts"]) == {row[0]: row[1] for row in whole.filter("m > 0").groupBy("text").agg(F.max("m")).collect()}
    plain_rows = [tuple(row) for row in whole.filter("m = 1").select("text", "twice").collect()]
    assert sorted(found["plain"], key=repr) == sorted(plain_rows, key=repr)
