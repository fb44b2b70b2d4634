"""Joins of streams are Spark's own answers: in several batches, in any order of arrival, at one instance and at many."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import QueryError, UnsupportedError
from tests.integration.both import Feed, Values, assert_same_rows, ours, values

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)
CALLS = "k string, ts timestamp, v long, x double"
BILLS = "ts timestamp, k string, v long, note string"
CALLS_ARROW = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("v", pa.int64()), ("x", pa.float64())])
BILLS_ARROW = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("k", pa.string()), ("v", pa.int64()), ("note", pa.string())])
END = 10_000
"""Rows at the end of all times push the watermark past everything else."""


def moment(seconds: float) -> datetime:
    return START + timedelta(seconds=float(seconds))


def tables(seed: int, batches: int, rows: int, keys: int, spread: float) -> tuple[list[pa.Table], list[pa.Table]]:
    """Both sides, batch by batch, out of order within the watermark's delay of 20 seconds; some keys and times are null."""
    rng = np.random.default_rng(seed)
    found: tuple[list[pa.Table], list[pa.Table]] = ([], [])
    for at in range(batches):
        for side, schema in enumerate((CALLS_ARROW, BILLS_ARROW)):
            # Whole seconds: many differences are exactly the bound.
            times = [moment(s) for s in at * spread + rng.integers(-15, 5, rows)]
            made: dict[str, list[Any]] = {
                "k": [None if rng.random() < 0.1 else f"key {k}" for k in rng.integers(0, keys, rows)],
                "ts": [None if rng.random() < 0.05 else t for t in times],
                "v": [int(v) for v in rng.integers(0, 9, rows)],
                "x": [float(x) for x in rng.normal(size=rows)],
                "note": [None if rng.random() < 0.3 else f"note {n}" for n in rng.integers(0, 4, rows)],
            }
            found[side].append(pa.table({name: made[name] for name in schema.names}, schema))
    for side, schema in enumerate((CALLS_ARROW, BILLS_ARROW)):
        last: dict[str, list[Any]] = {"k": ["end"], "ts": [moment(END + 500 * side)], "v": [0], "x": [0.0], "note": ["end"]}
        found[side].append(pa.table({name: last[name] for name in schema.names}, schema))
    return found


def feeds(root: Path, *parts: list[pa.Table]) -> list[Feed]:
    return [Feed.of(root, schema, each) for schema, each in zip((CALLS, BILLS), parts, strict=False)]


def finished(rows: list[Values]) -> list[Values]:
    """Without rows of the end itself, which the watermark never passes."""
    return [row for row in rows if "end" not in row]


def by_spark(left: DataFrame, right: DataFrame, how: str, within: str, condition: Any = None) -> DataFrame:
    """The same in Spark's batch: conditions of an outer join belong to it."""
    a, b = left.alias("a"), right.alias("b")
    bound = F.expr(f"a.ts between b.ts - interval {within} and b.ts + interval {within}")
    both = (F.col("a.k") == F.col("b.k")) & bound
    pairs = a.join(b, both if condition is None else both & condition, how)
    key = {"right": F.col("b.k"), "full": F.coalesce("a.k", "b.k")}.get(how, F.col("a.k")).alias("k")
    kept = [f"{side}.{c}" for side, each in (("a", left), ("b", right)) for c in each.columns if c != "k"]
    names = [c + ("_right" if c in left.columns else "") for c in right.columns if c != "k"]
    return pairs.select(key, *kept).toDF("k", *[c for c in left.columns if c != "k"], *names)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_a_join_is_sparks_join(spark: SparkSession, tmp_path: Path, how: str) -> None:
    calls, bills = feeds(tmp_path, *tables(seed=len(how), batches=5, rows=40, keys=4, spread=12))
    condition = None if how == "right" else (F.col("a.v") + 2 > F.col("b.v")) & (F.col("a.x") < 1.5)

    def query(left: Any, right: Any) -> Any:
        timed = left.withWatermark("ts", "20 seconds"), right.withWatermark("ts", "20 seconds")
        where = None if how == "right" else "v + 2 > v_right and x < 1.5"
        return timed[0].join(timed[1], on="k", within="10 seconds", where=where, how=how)

    wanted = finished(values(by_spark(calls.batch(spark), bills.batch(spark), how, "10 seconds", condition)))
    found = ours(spark, [calls, bills], query, "append", tmp_path, instances=3)
    assert found.columns == ["k", "ts", "v", "x", "ts_right", "v_right", "note"]
    assert_same_rows(finished(found.rows), wanted, found.columns, how)
    if how == "full":
        colliding = ours(spark, [calls, bills], query, "append", tmp_path, instances=1, hashBits=1)
        assert_same_rows(finished(colliding.rows), wanted, found.columns, "one instance, few hashes")


def test_a_product_is_sparks_cross_join_with_a_filter(spark: SparkSession, tmp_path: Path) -> None:
    calls, bills = feeds(tmp_path, *tables(seed=7, batches=3, rows=60, keys=4, spread=12))
    near = "abs(v - v_right) <= 1 and (k < k_right or x > 0.2)"

    def query(left: Any, right: Any) -> Any:
        timed = left.withWatermark("ts", "20 seconds"), right.withWatermark("ts", "20 seconds")
        return timed[0].crossJoin(timed[1], within="7 seconds", where=near)

    right = bills.batch(spark).toDF("ts_right", "k_right", "v_right", "note")
    bound = "ts between ts_right - interval 7 seconds and ts_right + interval 7 seconds"
    wanted = values(calls.batch(spark).crossJoin(right).filter(bound).filter(near))
    for options in ({"instances": 3, "productGrid": "2x3"}, {"instances": 1, "productGrid": "1x1", "depthMax": 1}):
        found = ours(spark, [calls, bills], query, "append", tmp_path, **options)
        assert found.columns == ["k", "ts", "v", "x", "ts_right", "k_right", "v_right", "note"]
        assert_same_rows(found.rows, wanted, found.columns, str(options))
