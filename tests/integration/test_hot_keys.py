"""A key with more rows than one instance can do is spread over all of them, and the windows stay what they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.errors import QueryError
from headrace.testing import QueryTest, Source

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k long, ts timestamp, v long"
ARROW = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64())])
END_S = 10_000
ROWS = 300


def skewed() -> list[pa.Table]:
    """Nine of ten rows are of one key. The last table moves the watermark past all others."""
    random = np.random.default_rng(3)
    tables = []
    for at in range(4):
        keys = np.where(random.random(ROWS) < 0.9, 7, random.integers(0, 40, ROWS))
        times = [START + timedelta(seconds=int(s)) for s in at * 12 + random.integers(0, 20, ROWS)]
        tables.append(pa.table({"k": keys, "ts": times, "v": random.integers(0, 10**6, ROWS)}, ARROW))
    return [*tables, pa.table({"k": [0], "ts": [START + timedelta(seconds=END_S)], "v": [0]}, ARROW)]


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def run(t: QueryTest, rows: Source, table: pa.Table) -> list[int]:
    """One batch; gives the rows of each instance."""
    rows.add(table)
    t.run()
    return [each["rows"] for each in t.query.lastProgress["headrace"]["instances"]]


def windowed(rows: Any) -> Any:
    return rows.withWatermark("ts", "20 seconds").groupBy("k", F.window("ts", "30 seconds", "10 seconds")).agg(F.sum("v"), F.count("*"))


def test_a_hot_key_is_spread_and_its_windows_are_whole(t: QueryTest) -> None:
    rows = t.source(SCHEMA)
    t.start(windowed, instances=2, combine="never", depthMax=2)
    first, second, third, fourth, end = skewed()
    assert max(run(t, rows, first)) > 0.9 * ROWS
    t.rescale(3)
    assert max(run(t, rows, second)) < 0.5 * ROWS, "a third each, more or less"
    run(t, rows, third)
    t.query.spread([])
    assert max(run(t, rows, fourth)) > 0.85 * ROWS
    run(t, rows, end)
    t.assert_same_as_spark()
    assert t.rows()


def sizes(rows: Any) -> Any:
    """Windows over windows: those of a minute, whatever their key."""
    ended = windowed(rows).groupBy(F.window(F.window_time("window"), "60 seconds"))
    return ended.agg(F.count("*").alias("windows"), F.sum("count(1)").alias("rows"))


def test_windows_that_close_together_with_those_they_are_made_of_are_whole(t: QueryTest) -> None:
    """What one flush gives and closes lies with the owner of its slot, also where the slot is spread."""
    rows = t.source(SCHEMA)
    t.start(sizes, instances=3, combine="never")
    for table in skewed():
        run(t, rows, table)
        t.query.spread([(0, 4096)], list(t.query.routing())[-1])
    t.assert_same_as_spark()
    assert t.rows()


def test_what_must_tell_current_values_is_not_spread(t: QueryTest) -> None:
    t.source(SCHEMA)
    t.start(lambda rows: rows.groupBy("k").agg(F.sum("v")), "update", instances=2)
    with pytest.raises(QueryError, match="append mode"):
        t.query.spread(7)


def test_skew_makes_a_running_aggregate_combine_first(t: QueryTest) -> None:
    """One hot key, and otherwise every row a key of its own: combining leaves most rows, and pays all the same."""
    rows = t.source(SCHEMA)
    t.start(lambda rows: rows.groupBy("k").agg(F.count("*").alias("n")), "update", instances=8)
    for at in range(3):
        keys = [7 if row % 4 == 0 else 100 + at * 4000 + row for row in range(4000)]
        run(t, rows, pa.table({"k": keys, "ts": [START] * 4000, "v": [1] * 4000}, ARROW))
        shuffled = sum(each["rowsShuffled"] for each in t.query.lastProgress["headrace"]["instances"])
        # 3,000 keys of their own, and the hot one once or twice for each task that read it.
        assert shuffled < 3100
    t.assert_same_as_spark()


def test_a_hot_slot_of_several_keys_is_cut_and_their_state_stays_whole(t: QueryTest) -> None:
    """Nine of ten rows are of keys that share a slot. Dealing out slots cannot help; cutting that one does."""
    hashed = t.spark.range(30_000).select("id", F.shiftrightunsigned(F.xxhash64("id"), 52).alias("slot")).toPandas()
    slot = int(hashed["slot"].value_counts().index[0])
    together = hashed["id"][hashed["slot"] == slot].to_numpy()
    random = np.random.default_rng(5)

    def table() -> pa.Table:
        keys = np.where(random.random(ROWS) < 0.9, random.choice(together, ROWS), random.integers(0, 40, ROWS))
        return pa.table({"k": keys, "ts": [START] * ROWS, "v": random.integers(0, 10**6, ROWS)}, ARROW)

    def cuts() -> tuple[float, ...]:
        return t.query.routing()["aggregate"].units.cuts

    rows = t.source(SCHEMA)
    t.start(
        lambda rows: rows.groupBy("k").agg(F.sum("v"), F.count("*"), F.max_by("v", "v")), "update", instances=2, combine="never", depthMax=2
    )
    assert max(run(t, rows, table())) > 0.85 * ROWS
    assert not cuts()
    t.rescale(3)
    assert max(run(t, rows, table())) < 0.6 * ROWS, "a third each, more or less"
    assert cuts()
    assert all(slot < each < slot + 1 for each in cuts())
    run(t, rows, table())
    # Put together again what was cut apart: its pieces' states are one slot's.
    t.move(slot, to=0)
    assert max(run(t, rows, table())) > 0.85 * ROWS
    run(t, rows, table())
    t.assert_same_as_spark()
