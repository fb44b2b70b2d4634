"""Windows, watermarks, late rows and duplicates: after every file Headrace has the same results as Spark."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.integration.both import Answer, Feed, assert_equal, assert_same_rows, compiled, ours, settings

SCHEMA = "k string, ts timestamp, ntz timestamp_ntz, v int"
ARROW = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("ntz", pa.timestamp("us")), ("v", pa.int32())])
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)


def table(*rows: tuple[str | None, float | None, int | None], epoch: datetime = EPOCH) -> pa.Table:
    """Rows of key, second and value."""
    data = []
    for k, second, v in rows:
        ts = None if second is None else epoch + timedelta(seconds=second)
        data.append({"k": k, "ts": ts, "ntz": None if ts is None else ts.replace(tzinfo=None), "v": v})
    return pa.Table.from_pylist(data, schema=ARROW)


def tables(epoch: datetime = EPOCH) -> list[pa.Table]:
    def t(*rows: tuple[str | None, float | None, int | None]) -> pa.Table:
        return table(*rows, epoch=epoch)

    return [
        t(("a", 1, 1), ("a", 7.5, 2), (None, 9.999999, 3), ("b", 12, 4), ("a", None, 5), ("a", 20, None)),
        # Time jumps: windows close. Then rows too late for some windows, or for all, and a key again.
        t(("c", 60, 6), ("a", 20, 7)),
        t(("a", 2, 8), ("b", 31, 9), ("b", 49, 10), ("a", 50, 11), ("a", 50.000001, 12)),
        t(("a", 200, 13), ("a", 100, 14)),
        t(("a", 150, 15), ("b", 189.999999, 16), ("b", 190, 17), ("b", 400, 18)),
    ]


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return Feed.of(tmp_path_factory.mktemp("windows"), SCHEMA, tables())


def windowed(*args: str, time: str = "ts", key_first: bool = True) -> Any:
    def query(stream: Any) -> Any:
        keys = ["k", F.window(time, *args)]
        # Spark has no watermarks on times without a zone.
        marked = stream.withWatermark(time, "10 seconds") if time == "ts" else stream
        return marked.groupBy(*(keys if key_first else keys[::-1])).agg(
            F.count("*").alias("n"), F.sum("v").alias("sum"), F.collect_set("v").alias("set")
        )

    return query


@pytest.mark.parametrize(
    ("mode", "args", "time", "options"),
    [
        ("append", ("10 seconds",), "ts", {"instances": 3}),
        pytest.param("update", ("10 seconds",), "ts", {"depthMax": 1}, marks=pytest.mark.extra),
        pytest.param("append", ("30 seconds", "10 seconds", "3 seconds"), "ts", {"depthMax": 1}, marks=pytest.mark.extra),
        pytest.param("update", ("30 seconds", "10 seconds", "3 seconds"), "ntz", {"depthMax": 1}, marks=pytest.mark.extra),
        pytest.param("append", ("25 seconds", "10 seconds"), "ts", {"hashBits": 1, "depthMax": 1}, marks=pytest.mark.extra),
        ("update", ("25 seconds", "10 seconds", "-4 seconds"), "ts", {"hashBits": 1}),
        pytest.param("complete", ("25 seconds", "10 seconds"), "ts", {"depthMax": 1, "instances": 2}, marks=pytest.mark.extra),
    ],
)
def test_windows(spark: SparkSession, feed: Feed, tmp_path: Path, mode: str, args: tuple[str, ...], time: str, options: Any) -> None:
    query = windowed(*args, time=time, key_first=mode != "update")
    with compiled(spark) if mode == "append" else nullcontext():
        found = assert_equal(spark, [feed], query, mode, tmp_path, keys=2, batch=mode == "complete", **options)
    if mode == "append":
        # Every window but the newest has been emitted, each once.
        assert len({r[:2] for r in found.rows}) == len(found.rows) > 4


@pytest.mark.parametrize("mode", ["append", pytest.param("complete", marks=pytest.mark.extra)])
def test_times_before_1970(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """Spark's watermark begins at 1970, so its own answers drop such rows, except in complete mode."""
    feed = Feed.of(tmp_path, SCHEMA, tables(datetime(1969, 12, 31, 23, 59, tzinfo=UTC))[:3])
    assert_equal(spark, [feed], windowed("25 seconds", "10 seconds", "3 seconds"), mode, tmp_path, keys=2)


@pytest.mark.extra
@pytest.mark.parametrize("mode", ["append", "update"])
def test_grouping_by_the_event_time_itself(spark: SparkSession, feed: Feed, tmp_path: Path, mode: str) -> None:
    def query(stream: Any) -> Any:
        return stream.withWatermark("ts", "10 seconds").groupBy("ts", F.col("k").alias("who")).agg(F.sum("v").alias("sum"))

    assert_equal(spark, [feed], query, mode, tmp_path, keys=2, depthMax=1)


@pytest.mark.extra
def test_stateless_operators_on_both_sides_in_a_zone_of_its_own(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(stream: Any) -> Any:
        c = F.col
        before = stream.withColumns({"w": c("v") * 2, "x": F.lit(1)}).drop("x").withColumnRenamed("k", "key").filter(c("w") > 2)
        grouped = before.select("key", "ts", "w").withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 day").alias("day"), "key")
        after = grouped.agg(F.sum("w").alias("total"), F.max("ts").alias("newest")).where("total > 4")
        shown = after.withColumn("from", F.date_format("day.start", "yyyy-MM-dd HH:mm")).withColumn("hour", F.hour("newest"))
        return shown.selectExpr("key", "from", "hour", "total + 1 AS more").withColumnRenamed("more", "most")

    with settings(spark, spark__sql__session__timeZone="America/Los_Angeles"):
        assert_equal(spark, [feed], query, "update", tmp_path, keys=2, instances=1)


def test_first_and_last_go_by_event_time(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """Spark's own first and last go by arrival, so the wanted rows are worked out here."""

    def query(stream: Any) -> Any:
        grouped = stream.withWatermark("ts", "10 hours").groupBy("k")
        some = F.expr("last(v, true)").alias("last some")
        return grouped.agg(F.first("v").alias("first"), F.last("v").alias("last"), some, F.any_value("v").alias("any"))

    found = ours(spark, [feed], query, "update", tmp_path)
    rows: dict[Any, list[tuple[Any, Any]]] = {}
    for t in tables():
        for row in t.to_pylist():
            rows.setdefault(row["k"], []).append((row["ntz"], row["v"]))
    wanted = []
    for k, pairs in rows.items():
        timed = sorted(((t, v) for t, v in pairs if t is not None), key=lambda pair: (pair[0], pair[1] is None, pair[1]))
        wanted.append((k, timed[0][1], timed[-1][1], [v for _, v in timed if v is not None][-1], timed[0][1]))
    assert_same_rows(found.last(1), wanted, found.columns, "first and last")


@pytest.mark.extra
def test_duplicates(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """The first row of a key is any of its first batch, so only its columns are compared."""

    def forever(stream: Any) -> Any:
        return stream.select("k", (F.col("v") % 3).alias("m")).dropDuplicates()

    assert_equal(spark, [feed], forever, "append", tmp_path, batch=True, hashBits=2, depthMax=1)


@pytest.mark.extra
def test_duplicates_that_are_late_by_another_column(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(stream: Any) -> Any:
        return stream.withWatermark("ts", "10 seconds").dropDuplicates(["k"]).select("k")

    assert_equal(spark, [feed], query, "append", tmp_path)


def test_duplicates_that_are_forgotten_in_time(spark: SparkSession, tmp_path: Path) -> None:
    def timed(stream: Any) -> Any:
        return stream.withColumn("v", F.lit(1)).withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"])

    again = Feed.of(tmp_path, SCHEMA, [t for t in tables()[:3] for _ in range(2)])
    assert_equal(spark, [again], timed, "append", tmp_path, depthMax=1)


def test_two_sources_with_watermarks_of_their_own(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    slow = Feed.of(tmp_path, SCHEMA, [table(("x", 5, 1)), table(("x", 30, 2)), table(("y", 31, 3)), table(("y", 300, 4))])

    def query(left: Any, right: Any) -> Any:
        both = left.withWatermark("ts", "10 seconds").union(right.withWatermark("ts", "20 seconds"))
        return both.groupBy(F.window("ts", "15 seconds")).agg(F.count("*").alias("n"), F.min("k").alias("k"))

    found: Answer = assert_equal(spark, [feed, slow], query, "append", tmp_path, instances=2)
    assert len(found.rows) > 3
