"""Joins of streams are Spark's own answers: in several batches, in any order of arrival, at one instance and at many."""

from __future__ import annotations

import shutil
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
from headrace.compile.build import compile_flow
from headrace.config import Config
from headrace.errors import QueryError, UnsupportedError
from headrace.operators.kernel import OutputMode
from headrace.spark.gateway import java_frame
from tests.integration.both import Feed, Values, assert_same_rows, ours, settings, values

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
        last: dict[str, list[Any]] = {"k": ["end"], "ts": [moment(END + 500 * side)], "v": [5], "x": [0.0], "note": ["end"]}
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


@pytest.mark.parametrize("how", ["inner", "full", *(pytest.param(how, marks=pytest.mark.extra) for how in ("left", "right"))])
def test_a_join_is_sparks_join(spark: SparkSession, tmp_path: Path, how: str) -> None:
    calls, bills = feeds(tmp_path, *tables(seed=len(how), batches=3, rows=60, keys=4, spread=12))
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


GRIDS = [{"instances": 3, "productGrid": "2x3"}, {"instances": 1, "productGrid": "1x1", "depthMax": 1}]


@pytest.mark.parametrize("options", [GRIDS[0], pytest.param(GRIDS[1], marks=pytest.mark.extra)])
def test_a_product_is_sparks_cross_join_with_a_filter(spark: SparkSession, tmp_path: Path, options: dict[str, Any]) -> None:
    calls, bills = feeds(tmp_path, *tables(seed=7, batches=3, rows=60, keys=4, spread=12))
    near = "abs(v - v_right) <= 1 and (k < k_right or x > 0.2)"

    def query(left: Any, right: Any) -> Any:
        timed = left.withWatermark("ts", "20 seconds"), right.withWatermark("ts", "20 seconds")
        return timed[0].crossJoin(timed[1], within="7 seconds", where=near)

    right = bills.batch(spark).toDF("ts_right", "k_right", "v_right", "note")
    bound = "ts between ts_right - interval 7 seconds and ts_right + interval 7 seconds"
    wanted = values(calls.batch(spark).crossJoin(right).filter(bound).filter(near))
    found = ours(spark, [calls, bills], query, "append", tmp_path, **options)
    assert found.columns == ["k", "ts", "v", "x", "ts_right", "k_right", "v_right", "note"]
    assert_same_rows(found.rows, wanted, found.columns, str(options))


@pytest.mark.parametrize("instances", [3, pytest.param(1, marks=pytest.mark.extra)])
def test_a_stream_joined_with_itself_is_read_once_and_can_be_aggregated(spark: SparkSession, tmp_path: Path, instances: int) -> None:
    (calls,) = feeds(tmp_path, tables(seed=11, batches=2, rows=50, keys=4, spread=25)[0])

    def query(rows: Any) -> Any:
        timed = rows.withWatermark("ts", "20 seconds")
        pairs = timed.join(timed, on="k", within="10 seconds", where=(F.col("v") < F.col("v_right")) & F.col("x").isNotNull())
        return pairs.groupBy("k", F.window("ts_right", "15 seconds")).agg(F.count("*").alias("n"), F.sum("v_right").alias("s"))

    whole = calls.batch(spark)
    pairs = by_spark(whole, whole, "inner", "10 seconds", F.col("a.v") < F.col("b.v"))
    wanted = pairs.groupBy("k", F.window("ts_right", "15 seconds")).agg(F.count("*").alias("n"), F.sum("v_right").alias("s"))
    found = ours(spark, [calls], query, "append", tmp_path, instances=instances)
    assert_same_rows(finished(found.rows), finished(values(wanted)), found.columns, f"{instances} instances")
    flow = compile_flow([(query(hr.stream(calls.stream(spark, tmp_path / "nothing"))).rows, OutputMode.APPEND, "")], Config())
    assert len(flow.sources) == 1
    assert [op.id for op in flow.ops] == ["join", "aggregate"]
    assert set(flow.ops[0].plan.operator.stores) == {"rows"}
    assert flow.ops[1].hold_ms == 10_000


def test_a_restart_in_the_middle_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    both = feeds(tmp_path, *tables(seed=13, batches=4, rows=25, keys=3, spread=12))
    found: list[Values] = []
    for steps, instances in (([0, 1], 1), ([2, 3, 4], 2)):
        streams = [hr.stream(feed.stream(spark, tmp_path / f"in{at}")) for at, feed in enumerate(both)]
        timed = [stream.withWatermark("ts", "20 seconds") for stream in streams]
        # A condition that numpy does not know is Spark's; an outer join's belongs to the join, so there it must be known.
        joined = timed[0].join(timed[1], ["K"], "outer", within=timedelta(seconds=10), suffixes=("_a", "_b"), where="v_a <= v_b")
        writer = joined.writeStream.option("checkpointLocation", str(tmp_path / "ckpt")).option("headrace.instances", instances)
        query = writer.foreachBatch(lambda frame, _: found.extend(values(frame))).start()
        try:
            for step in steps:
                for at, feed in enumerate(both):
                    for path in feed.files[step]:
                        shutil.copy(path, tmp_path / f"in{at}" / path.name)
                query.processAllAvailable()
            if steps[0] == 0:
                assert set(query.state("join.left").columns) == {"k", "ts", "v", "x"}
        finally:
            query.stop()
    wanted = by_spark(*(feed.batch(spark) for feed in both), "full", "10 seconds", F.col("a.v") <= F.col("b.v"))  # type: ignore[call-arg]
    assert_same_rows(finished(found), finished(values(wanted)), joined.columns, "after a restart")
    assert joined.columns == ["k", "ts_a", "v_a", "x", "ts_b", "v_b", "note"]


def test_tuple_count_joins_do_not_depend_on_arrival_or_instances(spark: SparkSession, tmp_path: Path) -> None:
    both = feeds(tmp_path, *tables(seed=17, batches=4, rows=25, keys=3, spread=12))

    def query(left: Any, right: Any) -> Any:
        timed = left.withWatermark("ts", "20 seconds"), right.withWatermark("ts", "20 seconds")
        return timed[0].join(timed[1], on="k", last=3, where="substring(note, 6) <> '1' and v >= 0")

    def columns(frame: DataFrame, side: int) -> DataFrame:
        tie = F.xxhash64(*frame.columns)
        return frame.filter("k is not null and ts is not null").select(
            "k", F.struct("*").alias("row"), "ts", F.lit(side).alias("side"), tie.alias("tie")
        )

    rows = columns(both[0].batch(spark), 0).collect() + columns(both[1].batch(spark), 1).collect()
    order = sorted(rows, key=lambda row: (row.ts, row.side, row.tie))
    wanted: list[tuple[Any, ...]] = []
    for at, row in enumerate(order):
        for other in [each for each in order[:at] if each.side != row.side and each.k == row.k][-3:]:
            a, b = (row.row, other.row) if row.side == 0 else (other.row, row.row)
            if b.note is not None and b.note[5:] != "1":
                wanted.append((a.k, a.ts, a.v, a.x, b.ts, b.v, b.note))
    micros = [tuple(_micros(x) for x in row) for row in wanted]
    found = ours(spark, both, query, "append", tmp_path, instances=2)
    assert_same_rows(finished(found.rows), finished(micros), found.columns, "the last three")


def _micros(value: Any) -> Any:
    return (
        (value.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        if isinstance(value, datetime)
        else value
    )


@pytest.mark.extra
def test_a_window_per_cell_depends_on_the_grid(spark: SparkSession, tmp_path: Path) -> None:
    calls, _ = feeds(tmp_path, *tables(seed=19, batches=2, rows=60, keys=3, spread=12))

    def query(rows: Any) -> Any:
        timed = rows.withWatermark("ts", "20 seconds")
        return timed.crossJoin(timed, last_per_cell=5, where="v = v_right and x < x_right")

    found = [len(ours(spark, [calls], query, "append", tmp_path, productGrid=grid).rows) for grid in ("1x1", "3x2")]
    assert 0 < found[0] < found[1]


def test_a_dataframe_that_does_not_change_is_joined_by_spark(spark: SparkSession, tmp_path: Path) -> None:
    (calls,) = feeds(tmp_path, tables(seed=23, batches=2, rows=30, keys=4, spread=12)[0])
    names = spark.createDataFrame([("key 1", "one"), ("key 2", "two")], "k string, name string")

    def query(rows: Any) -> Any:
        return rows.join(names, "k", "left").groupBy("name").agg(F.sum("v").alias("s")).join(names.withColumnRenamed("k", "key"), "name")

    found = ours(spark, [calls], query, "complete", tmp_path)
    assert_same_rows(found.steps[-1], values(query(calls.batch(spark))), found.columns, "before and after an aggregate")


def test_a_static_dataframe_is_broadcast_only_where_spark_would(spark: SparkSession, tmp_path: Path) -> None:
    timed = hr.stream(Feed(tmp_path, CALLS, []).stream(spark, tmp_path)).withWatermark("ts", "1 minute")
    large, small = spark.range(10).select(F.col("id").cast("string").alias("k")), spark.createDataFrame([("a",)], "k string")

    def joined_by(stream: Any) -> str:
        # Results of an operator are joined batch by batch; the template shows what Spark makes of it.
        return str(java_frame(stream.rows.frame).queryExecution().executedPlan().toString())

    with settings(spark, spark__sql__autoBroadcastJoinThreshold="-1"):
        results = timed.groupBy("k", F.window("ts", "1 minute")).count()
        assert "BroadcastHashJoin" not in joined_by(results.join(large, "k"))
        assert "BroadcastHashJoin" in joined_by(results.join(F.broadcast(large), "k")), "a hint of the user's counts"
    with settings(spark, spark__sql__autoBroadcastJoinThreshold="10MB"):
        results = timed.groupBy("k", F.window("ts", "1 minute")).count()
        assert "BroadcastHashJoin" in joined_by(results.join(small.limit(1), "k"))


@pytest.mark.extra
def test_joins_of_two_sources_beside_other_readers(spark: SparkSession, tmp_path: Path) -> None:
    """The sources are then read once, and the join's columns are taken out of what was read."""
    both = feeds(tmp_path, *tables(seed=29, batches=3, rows=25, keys=3, spread=12))

    def query(left: Any, right: Any) -> Any:
        a, b = (side.withWatermark("ts", "20 seconds").filter("v > 1") for side in (left, right))
        totals = a.groupBy("k", F.window("ts", "10 seconds")).agg(F.max("v").alias("top"), F.max("ts").alias("at"))
        joined = a.join(b, on="k", within="5 seconds", where="concat(k, note) <> 'key 1note 2'")
        return joined.select("k", "v_right").union(totals.select("k", "top"))

    def by_batch(left: DataFrame, right: DataFrame) -> DataFrame:
        a, b = (side.filter("v > 1 and ts is not null") for side in (left, right))
        joined = by_spark(a, b, "inner", "5 seconds", F.expr("concat(a.k, b.note) <> 'key 1note 2'"))
        totals = a.groupBy("k", F.window("ts", "10 seconds")).agg(F.max("v").alias("top"))
        return joined.select("k", "v_right").union(totals.select("k", "top"))

    found = ours(spark, both, query, "append", tmp_path)
    wanted = values(by_batch(*(feed.batch(spark) for feed in both)))
    assert_same_rows(finished(found.rows), finished(wanted), found.columns, "beside an aggregate")


@pytest.mark.parametrize(
    ("build", "error", "parts"),
    [
        (lambda a, b, df: a.join(b, on="k"), QueryError, ("within='60 seconds'", "last=100")),
        (lambda a, b, df: a.join(b, within="1 minute"), QueryError, ("on='column'", "crossJoin")),
        (lambda a, b, df: a.join(b, on="x", within="1 minute"), QueryError, ("'x' on the right side", "ts, k, v, note")),
        (lambda a, b, df: a.join(b, on=F.col("k"), within="1 minute"), UnsupportedError, ("column name",)),
        (lambda a, b, df: a.join(b, on="k", within="a while"), QueryError, ("duration", "a while")),
        (lambda a, b, df: a.join(b, on="k", within="1 minute", last=3), QueryError, ("within or last",)),
        (lambda a, b, df: a.join(b, on="k", last=0), QueryError, ("above 0",)),
        (lambda a, b, df: a.join(b, on="k", last=3, how="left"), UnsupportedError, ("inner",)),
        (lambda a, b, df: a.join(b, on="k", how="semi", within="1 minute"), UnsupportedError, ("semi", "inner, left, right, full")),
        (lambda a, b, df: a.join(b, on="k", within="1 minute", where="w > 1"), QueryError, ("w",)),
        (lambda a, b, df: a.join(b, on="k", within="1 minute", where="v"), QueryError, ("boolean",)),
        (lambda a, b, df: a.join(b, on="k", how="left", within="1 minute", where="note like '%1%2'"), UnsupportedError, ("Like", "inner")),
        (lambda a, b, df: a.join(b, on="k", within="1 minute", suffixes=("", "")), QueryError, ("ts, v twice", "suffixes")),
        (lambda a, b, df: a.join(b.withColumn("k", F.col("v")), on="k", within="1 minute"), QueryError, ("string", "bigint", "cast")),
        (lambda a, b, df: a.join(df, "k", "right"), UnsupportedError, ("inner, left",)),
        (lambda a, b, df: a.join(df, "k", within="1 minute"), UnsupportedError, ("within",)),
        (lambda a, b, df: a.join(b.rows.frame, "k", within="1 minute"), QueryError, ("hr.stream",)),
        (lambda a, b, df: a.join(b.select("k", F.col("v").alias("w")), on="k", within="1 minute"), QueryError, ("withWatermark",)),
        (lambda a, b, df: a.crossJoin(b), QueryError, ("within='60 seconds'",)),
        (lambda a, b, df: a.crossJoin(b, within="1 minute", where="upper(k) = note"), UnsupportedError, ("Upper",)),
        (lambda a, b, df: a.crossJoin(df, within="1 minute"), UnsupportedError, ("join(df",)),
    ],
)
def test_mistakes_are_told_at_the_users_line(
    spark: SparkSession, tmp_path: Path, build: Callable[..., Any], error: type[Exception], parts: tuple[str, ...]
) -> None:
    calls, bills = (Feed(tmp_path, schema, []) for schema in (CALLS, BILLS))
    streams = [hr.stream(feed.stream(spark, tmp_path)).withWatermark("ts", "1 minute") for feed in (calls, bills)]
    with pytest.raises(error) as raised:
        build(*streams, spark.createDataFrame([], "k string, name string"))
    assert "test_joins.py" in str(raised.value)
    for part in parts:
        assert part in str(raised.value)
