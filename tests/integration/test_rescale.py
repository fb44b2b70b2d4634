"""A running query is scaled out, scaled in and rebalanced, and gives the same results as an undisturbed one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.chaos.changes import change_at_random
from headrace.errors import QueryError
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k long, ts timestamp, v long"
ARROW = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
END_S = 10_000


def tables(seed: int, files: int = 5, rows: int = 80) -> list[pa.Table]:
    """Rows of 30 keys, some of them much more often than others; the last table only pushes the watermark past the rest."""
    rng = np.random.default_rng(seed)
    made = []
    for at in range(files):
        seconds = at * 12 + rng.integers(0, 20, rows)
        keys = np.minimum(rng.zipf(1.5, rows), 30)
        made.append([keys.tolist(), [START + timedelta(seconds=int(s)) for s in seconds], rng.integers(0, 100, rows).tolist()])
    # ... in both branches of a join: a filter that no row passes would hold it back.
    made.append([[0, 0], [START + timedelta(seconds=END_S), START + timedelta(seconds=END_S)], [0, 99]])
    return [pa.table(dict(zip(ARROW.names, each, strict=True)), ARROW) for each in made]


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def windowed(rows: Any) -> Any:
    return rows.withWatermark("ts", "20 seconds").groupBy("k", F.window("ts", "30 seconds", "10 seconds")).agg(F.sum("v"), F.count("*"))


def running(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.sum("v"), F.max("v"))


def joined(rows: Any) -> Any:
    timed = rows.withWatermark("ts", "20 seconds")
    pairs = timed.filter("v < 50").join(timed.filter("v >= 50"), on="k", within="5 seconds")
    return pairs.groupBy("k", F.window("ts", "20 seconds")).agg(F.count("*").alias("n"), F.sum("v_right").alias("s"))


def joined_by_spark(rows: Any) -> Any:
    low, high = rows.filter("v < 50"), rows.filter("v >= 50").toDF("k2", "ts_right", "v_right")
    near = "k = k2 and ts between ts_right - interval 5 seconds and ts_right + interval 5 seconds"
    return low.join(high, F.expr(near)).groupBy("k", F.window("ts", "20 seconds")).agg(F.count("*").alias("n"), F.sum("v_right").alias("s"))


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.extra) for seed in (1, *range(3, 9)))])
@pytest.mark.parametrize("query", [windowed, pytest.param(running, marks=pytest.mark.extra), joined])
def test_random_changes_change_nothing(t: QueryTest, query: Callable[[Any], Any], seed: int) -> None:
    rows, random = t.source(SCHEMA), Random(seed)
    t.start(query, "update" if query is running else "append", instances=2, depthMax=2)
    for table in tables(seed):
        for _ in range(random.randint(1, 2)):
            change_at_random(t.query, random)
        rows.add(table)
        t.run()
    t.assert_same_as_spark(joined_by_spark if query is joined else query)
    assert len(t.rows()) > 20


def test_a_change_holds_from_the_next_batch_on_and_is_reported(t: QueryTest) -> None:
    rows = t.source(SCHEMA)
    t.start(running, "update", instances=2)
    rows.add(tables(1)[0])
    t.run()
    assert [i["instance"] for i in t.query.lastProgress["headrace"]["instances"]] == [0, 1]
    # While the stream is idle: at once.
    t.rescale(3)
    assert t.query.routing()["aggregate"].instances == 3
    rows.add(tables(1)[1])
    t.run()
    progress = t.query.lastProgress["headrace"]
    assert [i["instance"] for i in progress["instances"]] == [0, 1, 2]
    assert sum(i["rows"] for i in progress["instances"]) == 80
    assert progress["routing"] == {"aggregate": {"epoch": 1, "instances": 3, "homes": []}}
    (change,) = progress["changes"]
    assert (change["operator"], change["instancesBefore"], change["instances"]) == ("aggregate", 2, 3)
    assert 0 < change["slotsMoved"] < 4096 * 0.9
    assert change["protocol"] == "state recreation"
    t.query.rebalance()
    t.rescale("aggregate", 1)
    assert t.query.routing()["aggregate"].ranges == (((0, 4096),),)
    # No batch came since; the change is kept all the same, unless a number is asked for.
    t.restart(instances=None)
    assert t.query.routing()["aggregate"].instances == 1
    t.restart(instances=4)
    assert t.query.routing()["aggregate"].instances == 4


def test_a_change_waits_for_the_batch_that_runs(spark: SparkSession, tmp_path: Path) -> None:
    """Batches come one after another, and so do changes, from another thread; no batch sees two routings."""
    seen: list[int] = []
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).option("numPartitions", 2).load()
    counted = hr.stream(stream).groupBy((F.col("value") % 100).alias("k")).agg(F.count("*").alias("n"))
    writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.instances", 1)
    query = writer.foreachBatch(lambda frame, version: seen.extend(row.n for row in frame.collect() if row.k == 7)).start()
    errors: list[Exception] = []

    def change() -> None:
        try:
            for instances in (3, 1, 4, 2, 3):
                query.rescale(instances)
        except Exception as error:
            errors.append(error)

    try:
        threads = [threading.Thread(target=change) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        while len(seen) < 8 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert not errors
    assert query.exception() is None
    # Every batch brings five rows of the key.
    assert seen == [5 * (at + 1) for at in range(len(seen))]
    assert query.routing()["aggregate"].instances == 3


def test_wrong_requests_are_refused_and_change_nothing(t: QueryTest) -> None:
    t.source(SCHEMA)
    t.start(joined, instances=2)
    before = t.query.routing()
    for wrong, message in [
        (lambda: t.rescale(0), "from 1 to 4096"),
        (lambda: t.rescale("jion", 2), "an operator of the query: join, aggregate"),
        (lambda: t.rescale(), r"rescale\(instances\)"),
        (lambda: t.rescale("join"), r"rescale\(instances\)"),
        (lambda: t.move(4096, to=0, operator="join"), "slots"),
        (lambda: t.move(range(9, 3), to=0, operator="join"), "slots"),
        (lambda: t.move(5, to=2, operator="join"), "an instance of join, 0 to 1"),
        (lambda: t.move(5, to=1), "the operator whose slots are to move: join, aggregate"),
        (lambda: t.query.rebalance("x"), "an operator of the query"),
    ]:
        with pytest.raises(QueryError, match=message):
            wrong()
    assert t.query.routing() == before
