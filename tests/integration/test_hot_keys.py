"""A key with more rows than one instance can do is spread over all of them, and the windows stay what they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import QueryError
from tests.integration.both import Feed, assert_same_rows, ours, spark_batch

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
ARROW = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
END_S = 10_000
ROWS = 300


def skewed(root: Path) -> Feed:
    """Nine of ten rows are of one key."""
    random = np.random.default_rng(3)
    tables = []
    for at in range(4):
        keys = np.where(random.random(ROWS) < 0.9, 7, random.integers(0, 40, ROWS))
        times = [START + timedelta(seconds=int(s)) for s in at * 12 + random.integers(0, 20, ROWS)]
        tables.append(pa.table({"k": keys, "ts": times, "v": random.integers(0, 10**6, ROWS)}, ARROW))
    tables.append(pa.table({"k": [0], "ts": [START + timedelta(seconds=END_S)], "v": [0]}, ARROW))
    return Feed.of(root, "k long, ts timestamp, v long", tables)


def windowed(rows: Any) -> Any:
    return rows.withWatermark("ts", "20 seconds").groupBy("k", F.window("ts", "30 seconds", "10 seconds")).agg(F.sum("v"), F.count("*"))


def test_a_hot_key_is_spread_and_its_windows_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    rows = skewed(tmp_path)
    shares: list[list[int]] = []

    def rescale_then_look(query: hr.HeadraceQuery) -> None:
        if query.lastProgress is None:
            return
        shares.append([each["rows"] for each in query.lastProgress["headrace"]["instances"]])
        if len(shares) == 1:
            query.rescale(3)
        elif len(shares) == 3:
            query.spread([])

    found = ours(spark, [rows], windowed, "append", tmp_path, between=rescale_then_look, instances=2, combine="never", depthMax=2)
    end = int((START + timedelta(seconds=END_S - 100)).timestamp()) * 1_000_000
    wanted = [row for row in spark_batch(spark, [rows], windowed).rows if row[1][1] < end]
    assert_same_rows(found.rows, wanted, found.columns, "spread")
    before, spread, _, gathered = shares
    assert max(before) > 0.9 * ROWS
    assert max(spread) < 0.5 * ROWS, "a third each, more or less"
    assert max(gathered) > 0.85 * ROWS


def sizes(rows: Any) -> Any:
    """Windows over windows: those of a minute, whatever their key."""
    ended = windowed(rows).groupBy(F.window(F.window_time("window"), "60 seconds"))
    return ended.agg(F.count("*").alias("windows"), F.sum("count(1)").alias("rows"))


def test_windows_that_close_together_with_those_they_are_made_of_are_whole(spark: SparkSession, tmp_path: Path) -> None:
    """What one flush gives and closes lies with the owner of its slot, also where the slot is spread."""
    rows = skewed(tmp_path)

    def spread_behind(query: hr.HeadraceQuery) -> None:
        if query.lastProgress is not None:
            query.spread([(0, 4096)], list(query.routing())[-1])

    found = ours(spark, [rows], sizes, "append", tmp_path, between=spread_behind, instances=3, combine="never")
    end = int((START + timedelta(seconds=END_S - 200)).timestamp()) * 1_000_000
    wanted = [row for row in spark_batch(spark, [rows], sizes).rows if row[0][1] < end]
    assert wanted
    assert_same_rows(found.rows, wanted, found.columns, "windows over windows")


def test_what_must_tell_current_values_is_not_spread(spark: SparkSession, tmp_path: Path) -> None:
    rows = skewed(tmp_path)
    running = hr.stream(rows.stream(spark, tmp_path / "in")).groupBy("k").agg(F.sum("v"))
    query = running.writeStream.outputMode("update").format("noop").option("headrace.instances", 2).start()
    try:
        with pytest.raises(QueryError, match="append mode"):
            query.spread(7)
    finally:
        query.stop()


def test_skew_makes_a_running_aggregate_combine_first(spark: SparkSession, tmp_path: Path) -> None:
    """One hot key, and otherwise every row a key of its own: combining leaves most rows, and pays all the same."""
    feed = []
    for at in range(3):
        keys = [7 if row % 4 == 0 else 100 + at * 4000 + row for row in range(4000)]
        feed.append(pa.table({"k": keys, "ts": [START] * 4000, "v": [1] * 4000}, ARROW))
    rows = Feed.of(tmp_path, "k long, ts timestamp, v long", feed)
    shuffled: list[int] = []

    def look(query: hr.HeadraceQuery) -> None:
        if query.lastProgress is not None:
            shuffled.append(sum(each["rowsShuffled"] for each in query.lastProgress["headrace"]["instances"]))

    def running(stream: Any) -> Any:
        return stream.groupBy("k").agg(F.count("*").alias("n"))

    found = ours(spark, [rows], running, "update", tmp_path, between=look, instances=8)
    assert max(row[1] for row in found.last(1)) == 3000
    # 3,000 keys of their own, and the hot one once or twice for each task that read it.
    assert all(each < 3100 for each in shuffled), shuffled


def test_a_hot_slot_of_several_keys_is_cut_and_their_state_stays_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Nine of ten rows are of keys that share a slot. Dealing out slots cannot help; cutting that one does."""
    hashed = spark.range(30_000).select("id", F.shiftrightunsigned(F.xxhash64("id"), 52).alias("slot")).toPandas()
    slot = int(hashed["slot"].value_counts().index[0])
    together = hashed["id"][hashed["slot"] == slot].to_numpy()
    random = np.random.default_rng(5)
    feed = []
    for _ in range(5):
        keys = np.where(random.random(ROWS) < 0.9, random.choice(together, ROWS), random.integers(0, 40, ROWS))
        feed.append(pa.table({"k": keys, "ts": [START] * ROWS, "v": random.integers(0, 10**6, ROWS)}, ARROW))
    rows = Feed.of(tmp_path, "k long, ts timestamp, v long", feed)
    shares: list[list[int]] = []
    cut: list[tuple[float, ...]] = []

    def rescale_then_look(query: hr.HeadraceQuery) -> None:
        if query.lastProgress is None:
            return
        shares.append([each["rows"] for each in query.lastProgress["headrace"]["instances"]])
        (routing,) = query.routing().values()
        cut.append(routing.units.cuts)
        if len(shares) == 1:
            query.rescale(3)
        elif len(shares) == 3:
            # Put together again what was cut apart: its pieces' states are one slot's.
            query.move(slot, to=0)

    def running(stream: Any) -> Any:
        return stream.groupBy("k").agg(F.sum("v"), F.count("*"), F.max_by("v", "v"))

    found = ours(spark, [rows], running, "update", tmp_path, between=rescale_then_look, instances=2, combine="never", depthMax=2)
    assert_same_rows(found.last(1), spark_batch(spark, [rows], running).rows, found.columns, "cut")
    before, after, _, gathered = shares
    assert max(before) > 0.85 * ROWS
    assert max(after) < 0.6 * ROWS, "a third each, more or less"
    assert max(gathered) > 0.85 * ROWS
    assert not cut[0]
    assert cut[1]
    assert all(slot < each < slot + 1 for each in cut[1])
