"""What Spark's streaming refuses and Headrace runs: top-N per key and window, other window functions, distinct aggregates.

The results are those of Spark's batch engine over the same files, at one and at three instances, with a rescale and a restart.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import headrace as hr
from tests.integration.both import Feed, Values, assert_same_rows, settings, values

pytestmark = pytest.mark.spark
SCHEMA = "k string, n int, x double, m decimal(20,2), s string, u long, ts timestamp"
ARROW = pa.schema(
    [
        *(("k", pa.string()), ("n", pa.int32()), ("x", pa.float64()), ("m", pa.decimal128(20, 2)), ("s", pa.string())),
        *(("u", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))),
    ]
)
BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
LAST = "the last"
"""The key of a row that moves the watermark past all others."""


def tables() -> list[pa.Table]:
    random = Random(5)
    found, u = [], 0
    for at in range(4):
        rows: list[dict[str, Any]] = []
        for _ in range(60):
            values: dict[str, Any] = {
                "k": random.choice(["a", "b", "c", None]),
                "n": random.choice([1, 2, 2, 3, None]),
                "x": random.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), None]),
                "m": random.choice([Decimal("1.25"), Decimal("-3"), None]),
                "s": random.choice(["x", "y", "Z", "", None]),
                "u": u,
                "ts": BEGIN + timedelta(seconds=at * 30 + random.randrange(40)),
            }
            rows.append(values)
            u += 1
        found.append(pa.Table.from_pylist(rows, schema=ARROW))
    found.append(pa.Table.from_pylist([{"k": LAST, "u": u, "ts": BEGIN + timedelta(days=1)}], schema=ARROW))
    return found


@dataclass(frozen=True)
class Program:
    """A query of streams and of batches, and its output mode."""

    name: str
    mode: str
    query: Callable[[DataFrame], DataFrame]


def by_window(*more: str) -> Any:
    return Window.partitionBy("w", *more)


def timed(rows: DataFrame, *window: str) -> DataFrame:
    return rows.withColumn("w", F.window("ts", *(window or ("20 seconds",))))


def ranked(rows: DataFrame) -> DataFrame:
    spec = by_window("k").orderBy(F.desc("n"))
    both = timed(rows).withColumn("r", F.rank().over(spec)).withColumn("d", F.dense_rank().over(spec))
    return both.filter("d <= 2").select("k", "n", "u", "w.start", "r", "d")


def sql(text: str) -> Callable[[DataFrame], DataFrame]:
    def query(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("beyond_rows")
        return rows.sparkSession.sql(text)

    return query


PROGRAMS = [
    Program(
        "top 3 of each window and key",
        "append",
        lambda rows: timed(rows).withColumn("r", F.row_number().over(by_window("k").orderBy(F.desc("x"), "u"))).filter("r <= 3"),
    ),
    Program("rank and dense_rank keep ties", "append", ranked),
    Program(
        "top 2 of sums by window",
        "append",
        lambda rows: (
            rows.groupBy(F.window("ts", "30 seconds", "10 seconds").alias("w"), "k")
            .agg(F.sum("n").alias("n"))
            .withColumn("r", F.rank().over(by_window().orderBy(F.desc_nulls_last("n"))))
            .filter("2 >= r")
        ),
    ),
    Program(
        "SQL over a sliding window",
        "append",
        sql(
            """SELECT k, u, w.start, r FROM (
                SELECT *, row_number() OVER (PARTITION BY w, k ORDER BY n NULLS LAST, s DESC, u) AS r
                FROM (SELECT window(ts, '20 seconds', '10 seconds') AS w, * FROM beyond_rows)) WHERE r < 3"""
        ),
    ),
    Program(
        "top 2 of each key, all rows so far",
        "complete",
        lambda rows: rows.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy(F.desc("m"), "u"))).filter("r <= 2"),
    ),
    Program(
        "top of all",
        "complete",
        lambda rows: rows.withColumn("r", F.rank().over(Window.orderBy(F.struct("n", "s")))).filter("r = 1"),
    ),
    Program(
        "top 2 of counts, all rows so far",
        "complete",
        lambda rows: (
            rows.groupBy("k", "s").count()
            .withColumn("r", F.dense_rank().over(Window.partitionBy("k").orderBy(F.desc("count")))).filter("r <= 2")
        ),
    ),
    Program(
        "other window functions",
        "append",
        lambda rows: timed(rows).select(
            "k", "u", F.lag("u").over(by_window("k").orderBy("u")).alias("before"), F.sum("n").over(by_window("k")).alias("n"),
            F.percent_rank().over(by_window("k").orderBy("n")).alias("part"), F.ntile(3).over(by_window().orderBy("u")).alias("third"),
        ),
    ),
    Program(
        "distinct values by window",
        "append",
        lambda rows: rows.groupBy("k", F.window("ts", "30 seconds", "15 seconds").alias("w")).agg(
            F.count_distinct("s").alias("s"), F.sum_distinct("n").alias("n"), F.expr("avg(DISTINCT m)").alias("m"),
            F.count("*").alias("rows"),
        ),
    ),
    Program(
        "distinct values, all rows so far",
        "complete",
        sql(
            """SELECT k, count(DISTINCT s, n) AS pairs, count(DISTINCT x) AS x, sum(DISTINCT m) AS m, max(DISTINCT n) AS n,
                count(DISTINCT s) FILTER (WHERE n > 1) AS some, sum(n) AS total FROM beyond_rows GROUP BY k"""
        ),
    ),
]  # fmt: skip


@pytest.fixture
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    yield hr.enable(spark)
    hr.disable(spark)


def run(spark: SparkSession, program: Program, feed: Feed, root: Path, instances: int) -> list[Values]:
    """The results of the stream: all rows in append mode, those of the last batch in complete mode. It is rescaled and restarted."""
    steps: list[list[Values]] = []
    folder = root / "in"

    def start() -> hr.HeadraceQuery:
        frame = program.query(feed.stream(spark, folder).withWatermark("ts", "5 seconds"))
        writer = frame.writeStream.outputMode(program.mode).option("checkpointLocation", str(root / "ckpt"))
        query = writer.option("headrace.instances", instances).foreachBatch(lambda rows, _: steps.append(values(rows))).start()
        assert isinstance(query, hr.HeadraceQuery)
        return query

    query = start()
    try:
        for at, (file,) in enumerate(feed.files):
            if at == 2:
                query.rescale(4 - instances)
            if at == 3:
                query.stop()
                query = start()
            shutil.copy(file, folder / file.name)
            query.processAllAvailable()
    finally:
        query.stop()
    return steps[-1] if program.mode == "complete" else [row for step in steps for row in step]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "instances"),
    [
        pytest.param(each, instances, id=f"{each.name}, {instances}", marks=[] if at in (1, 9) and instances == 1 else pytest.mark.extra)
        for at, each in enumerate(PROGRAMS)
        for instances in (1, 3)
    ],
)
def test_results_are_those_of_a_batch(enabled: SparkSession, tmp_path: Path, program: Program, instances: int) -> None:
    feed = Feed.of(tmp_path, SCHEMA, tables())
    found = run(enabled, program, feed, tmp_path, instances)
    with settings(enabled, spark__sql__shuffle__partitions="2"):
        frame = program.query(feed.batch(enabled))
        wanted = values(frame)
    if program.mode == "append":
        # Its window is still open. Where it is not among the results, there is only its time.
        wanted = [row for row in wanted if not is_last(row, frame.columns)]
    assert wanted
    assert_same_rows(found, wanted, frame.columns, program.name)


def is_last(row: Values, columns: list[str]) -> bool:
    return row[columns.index("k")] == LAST


MISTAKES = [
    ("update", lambda rows: timed(rows).withColumn("r", F.rank().over(by_window().orderBy("n"))), "in output mode update"),
    ("append", lambda rows: rows.withColumn("r", F.rank().over(Window.partitionBy("k").orderBy("n"))), "partitions have no event time"),
    ("append", lambda rows: rows.groupBy("k", F.window("ts", "1 hour")).agg(F.expr("stddev(DISTINCT n)")), "with DISTINCT"),
    ("append", lambda rows: timed(rows).withColumn("r", F.sum("n").over(by_window())).dropDuplicates(["u", "ts"]), "other event times: ts"),
]


@pytest.mark.extra
@pytest.mark.parametrize(("mode", "query", "words"), MISTAKES, ids=[words for _, _, words in MISTAKES])
def test_what_has_no_clear_meaning_is_refused(
    enabled: SparkSession, tmp_path: Path, mode: str, query: Callable[[DataFrame], DataFrame], words: str
) -> None:
    rows = Feed.of(tmp_path, SCHEMA, []).stream(enabled, tmp_path / "in").withWatermark("ts", "5 seconds")
    with pytest.raises(hr.HeadraceError, match=words):
        query(rows).writeStream.outputMode(mode).format("noop").start()


@pytest.mark.extra
def test_the_state_of_a_bounded_rank_is_bounded(enabled: SparkSession, tmp_path: Path) -> None:
    """Three rows of each key are kept, however many have come. Rows with equal order are decided by their other columns."""
    feed = Feed.of(tmp_path, SCHEMA, tables())
    rows = feed.stream(enabled, tmp_path / "in").drop("ts")
    top = rows.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("n"))).filter("r < 4").select("k", "u", "n")
    query = top.writeStream.outputMode("complete").format("memory").queryName("bounded").option("headrace.instances", 2).start()
    for (file,) in feed.files:
        shutil.copy(file, tmp_path / "in" / file.name)
        query.processAllAvailable()
    assert isinstance(query, hr.HeadraceQuery)
    kept = [len(row["rows"]) for row in query.state().collect()]
    query.stop()
    assert sorted(kept) == [1, 3, 3, 3, 3]
    by_tie = Window.partitionBy("k").orderBy("n", "k", "n", "x", "m", "s", "u")
    wanted = feed.batch(enabled).withColumn("r", F.row_number().over(by_tie)).filter("r < 4").select("k", "u", "n")
    assert_same_rows(values(enabled.table("bounded")), values(wanted), wanted.columns, "ties")
