"""Columns may be called anything: every operator, with names that Spark's parser would read as something else.

All the names are columns of one stream, so each operator meets all of them at once. Answers are compared with Spark's own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

import headrace as hr
from tests.integration.both import Feed, assert_equal, assert_same_rows, ours

pytestmark = pytest.mark.spark

NAMES = ("a.b", "a`b", "a b", "Ä", "`", "select", "a.b.`c`", "1", "x)")
TIME = "t.`s"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def q(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def c(name: str) -> Any:
    return F.col(q(name))


SCHEMA = ", ".join([f"{q(name)} long" for name in NAMES] + [f"{q(TIME)} timestamp"])


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in frame.select(*[_shown(c(f.name), f) for f in frame.schema.fields]).collect()]


def _shown(column: Any, field: Any) -> Any:
    return F.unix_micros(column) if field.dataType.typeName() == "timestamp" else column


def tables(seed: int) -> list[pa.Table]:
    rng = random.Random(seed)
    made = []
    for at in range(2):
        rows = 12
        columns: dict[str, Any] = {name: [rng.randrange(3) for _ in range(rows)] for name in NAMES}
        columns[TIME] = [BEGIN + timedelta(minutes=10 * at, seconds=rng.randrange(500)) for _ in range(rows)]
        made.append(pa.table(columns))
    return made


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed.of(tmp_path, SCHEMA, tables(7))


@pytest.fixture
def other(tmp_path: Path) -> Feed:
    return Feed.of(tmp_path, SCHEMA, tables(8))


def stateless(rows: Any) -> Any:
    """Every method without state."""
    rows = rows.select(*[c(name) for name in NAMES], c(TIME)).filter(f"{q('a.b')} >= 0 and {q('`')} < 9").where(c("a`b") >= 0)
    rows = rows.withColumn("new.`", c("a b") + 1).withColumns({"also.new": c("Ä") + c("`")}).withColumnRenamed("x)", "y.(")
    rows = rows.selectExpr("*", f"{q('y.(')} + 1 AS {q('z`.')}").drop("1", c("select"))
    return rows.union(rows).unionByName(rows)


def test_stateless_steps_and_duplicates(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: Any) -> Any:
        return stateless(rows).dropDuplicates(["a.b", "a`b", "`", "also.new"]).select(c("a.b"), c("a`b"), c("`"), c("also.new"))

    assert_equal(spark, [feed], query, "append", tmp_path)


@pytest.mark.extra
def test_duplicates_of_whole_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    assert_equal(spark, [feed], lambda rows: rows.drop(c(TIME)).dropDuplicates(), "append", tmp_path)


def test_keys_and_aggregates_and_what_follows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: Any) -> Any:
        sums = [F.sum(c(name)).alias(f"sum.`{name}") for name in NAMES[2:]]
        found = rows.groupBy(c("a.b"), q("a`b")).agg(*sums, F.max(c("`")).alias("`"))
        return found.withColumn("more.", c("sum.`Ä") + 1).filter(f"{q('more.')} > 0").drop("sum.`1").withColumnRenamed("`", "``")

    assert_equal(spark, [feed], query, "update", tmp_path, keys=2, batch=True)


def test_a_dict_of_aggregates(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: Any) -> Any:
        found = rows.groupBy(q("a.b")).agg({q("a`b"): "sum", q("Ä"): "mean", "*": "count"})
        # Spark's columns come in the order of a hash table, ours in that of the dict.
        return found.select(*[c(name) for name in sorted(found.columns)])

    assert_equal(spark, [feed], query, "update", tmp_path, keys=1)


def test_windows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: Any) -> Any:
        timed = rows.withWatermark(q(TIME), "10 seconds")
        found = timed.groupBy(F.window(c(TIME), "1 minute").alias("w.`"), c("a.b")).agg(F.count("*").alias("n."))
        return found.select(c("w.`").start.alias("from.`"), "*").drop("w.`")

    assert_equal(spark, [feed], query, "append", tmp_path)


@pytest.mark.extra
def test_sessions(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: Any) -> Any:
        timed = rows.withWatermark(q(TIME), "10 seconds")
        return timed.groupBy(c("a`b"), F.session_window(c(TIME), "20 seconds").alias("s.`")).agg(F.sum(c("`")).alias("`"))

    assert_equal(spark, [feed], query, "append", tmp_path)


@pytest.mark.extra
def test_windows_of_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(rows: hr.Stream) -> hr.Stream:
        timed = rows.withWatermark(q(TIME), "0 seconds")
        window = hr.count_window(2).alias("two.`")
        return timed.groupBy(c("a.b"), window).agg(F.sum(c("`")).alias("`")).select(c("a.b"), c("two.`").number.alias("number"), c("`"))

    found = ours(spark, [feed], query, "append", tmp_path)
    numbered = feed.batch(spark).withColumn("row", F.row_number().over(Window.partitionBy(c("a.b")).orderBy(c(TIME))) - 1)
    pairs = numbered.groupBy(c("a.b"), F.floor(F.col("row") / 2).alias("number")).agg(F.sum(c("`")).alias("`"), F.count("*").alias("n"))
    # A window is emitted once the watermark has passed its last row; these have.
    last = feed.batch(spark).agg(F.max(c(TIME))).first()
    assert last is not None
    wanted = {tuple(row)[:3] for row in pairs.filter("n = 2").collect()}
    assert set(found.rows) <= wanted
    assert len(wanted) - len(found.rows) <= 1, "only the window with the very last row may wait"


def pairs(left: DataFrame, right: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Spark's batch answer to a join within ten seconds, in Headrace's columns."""
    renamed = right.select(*[c(name).alias(f"{name}_r") for name in right.columns])
    near = F.abs(F.unix_micros(c(TIME)) - F.unix_micros(c(f"{TIME}_r"))) <= 10_000_000
    equal = near
    for key in keys:
        equal = equal & (c(key) == c(f"{key}_r"))
    rest = [name for name in left.columns if name not in keys]
    return left.join(renamed, equal).select(
        *[c(key) for key in keys], *[c(name) for name in rest], *[c(f"{name}_r") for name in rest if name not in keys]
    )


def test_joins(spark: SparkSession, feed: Feed, other: Feed, tmp_path: Path) -> None:
    keys = ("a.b", "a`b")

    def query(left: hr.Stream, right: hr.Stream) -> hr.Stream:
        a, b = left.withWatermark(q(TIME), "20 minutes"), right.withWatermark(q(TIME), "20 minutes")
        where = f"{q('`')} + {q('`_r')} >= 0"
        return a.join(b, on=list(keys), within="10 seconds", where=where, suffixes=("", "_r"))

    found = ours(spark, [feed, other], query, "append", tmp_path)
    wanted = pairs(feed.batch(spark), other.batch(spark), keys)
    assert found.columns == wanted.columns
    assert found.rows
    assert_same_rows(found.rows, rows_of(wanted), found.columns, "against Spark's batch join")


@pytest.mark.extra
def test_cross_joins(spark: SparkSession, feed: Feed, other: Feed, tmp_path: Path) -> None:
    def query(left: hr.Stream, right: hr.Stream) -> hr.Stream:
        a, b = left.withWatermark(q(TIME), "20 minutes"), right.withWatermark(q(TIME), "20 minutes")
        where = f"{q('`')} = {q('`_r')} and {q('a.b')} <= {q('a.b_r')}"
        return a.crossJoin(b, within="10 seconds", where=where, suffixes=("", "_r"))

    found = ours(spark, [feed, other], query, "append", tmp_path)
    wanted = pairs(feed.batch(spark), other.batch(spark), ()).filter((c("`") == c("`_r")) & (c("a.b") <= c("a.b_r")))
    assert found.columns == wanted.columns
    assert found.rows
    assert_same_rows(found.rows, rows_of(wanted), found.columns, "against Spark's batch product")


@pytest.mark.extra
def test_a_join_with_a_dataframe(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    prices = spark.createDataFrame([(0, 5), (1, 6)], f"{q('a.b')} long, {q('price.`')} long")

    def query(rows: Any) -> Any:
        return rows.join(prices, on="a.b", how="left").groupBy(c("a.b")).agg(F.sum(c("price.`")).alias("price.`"))

    assert_equal(spark, [feed], query, "update", tmp_path, keys=1, batch=True)


class Longest(hr.KeyProcessor):
    """The rows of a key so far, and the greatest of a column."""

    def process(self, key: Any, rows: Any, state: Any) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            state.rows = (state.rows or 0) + 1
            state.most = max(state.most or 0, row[NAMES.index("`")])
        yield *key, state.rows, state.most


class Counted(hr.Processor):
    """The same of rows, for all keys at once."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        new = rows.group_by(["a.b", "a`b"]).aggregate([("`", "count")])
        old = state.get(new)
        total = pc.add(new["`_count"], pc.fill_null(old["rows"], 0))
        totals = pa.table({"a.b": new["a.b"], "a`b": new["a`b"], "rows": total})
        state.put(totals)
        return totals.rename_columns(["a.b", "a`b", "n.`"])


@pytest.mark.extra
@pytest.mark.parametrize("vectorised", [False, True])
def test_processors_with_state_to_start_with(spark: SparkSession, feed: Feed, tmp_path: Path, vectorised: bool) -> None:
    keys = f"{q('a.b')} long, {q('a`b')} long"
    initial = spark.createDataFrame([(0, 0, 100, 0)], f"{keys}, rows long, most long")

    def query(rows: hr.Stream) -> hr.Stream:
        by_key = rows.groupBy(c("a.b"), c("a`b"))
        if vectorised:
            return by_key.process(Counted(), f"{keys}, {q('n.`')} long", state="rows long", initial=initial.drop("most"))
        schema = f"{keys}, {q('n.`')} long, {q('most`')} long"
        return by_key.process(Longest(), schema, state="rows long, most long", initial=initial, orderBy=["a b", TIME])

    found = ours(spark, [feed], query, "update", tmp_path)
    grouped = feed.batch(spark).groupBy(c("a.b"), c("a`b")).agg(F.count("*").alias("n"), F.max(c("`")).alias("most"))
    counted = grouped.withColumn("n", F.col("n") + F.when((c("a.b") == 0) & (c("a`b") == 0), 100).otherwise(0))
    wanted = rows_of(counted if not vectorised else counted.drop("most"))
    assert_same_rows(found.last(2), wanted, found.columns, "the last of each key")


@pytest.mark.extra
def test_branches_and_files_and_state(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    rows = hr.stream(feed.stream(spark, feed.folder / "waiting"))
    parts = rows.split(low=f"{q('a.b')} = 0", high=c("a.b") > 0)
    low = parts.low.union(parts.high.filter(c("a`b") == 0)).dropDuplicates(["a.b", "`"]).select(c("a.b"), c("`"))
    high = parts.high.groupBy(c("a b")).agg(F.sum(c("Ä")).alias("sum.Ä"))
    folder = tmp_path / "low"
    query = hr.start(
        low.writeStream.format("parquet").option("path", str(folder)).partitionBy("a.b"),
        high.writeStream.format("memory").queryName("high").outputMode("complete"),
        checkpointLocation=str(tmp_path / "ckpt"),
        availableNow=True,
    )
    query.awaitTermination()
    batch = feed.batch(spark)
    wanted = batch.filter((c("a.b") == 0) | (c("a`b") == 0)).select(c("a.b"), c("`")).distinct()
    assert_same_rows(rows_of(spark.read.parquet(str(folder)).select(c("a.b").cast("long"), c("`"))), rows_of(wanted), [], "files")
    sums = rows_of(batch.filter(c("a.b") > 0).groupBy(c("a b")).agg(F.sum(c("Ä"))))
    assert_same_rows(rows_of(spark.table("high")), sums, [], "memory")
    state = query.state("aggregate")
    assert state.columns == ["a b", "sum.Ä"]
    assert_same_rows(rows_of(state), sums, [], "state")
    assert query.state("dropDuplicates").columns == ["a.b", "`"]
