"""What the front end makes of Spark's analysed plans: windows with their durations, joins with their bounds, steps that stay Spark's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

import headrace as hr
from headrace.frontend.lower import has_state, lower
from headrace.graph.nodes import AggregateNode, Rows, StreamJoinNode
from headrace.graph.windows import SessionSpec, WindowSpec

SECOND = 1_000_000


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().withWatermark("timestamp", "10 seconds").withColumn("k", F.col("value") % 7)


def origin(frame: DataFrame) -> Any:
    return lower(frame, "the test").origin


@pytest.mark.parametrize(
    ("window", "wanted"),
    [
        (lambda: F.window("timestamp", "1 minute"), (60, 60, 0)),
        (lambda: F.window("timestamp", "1 minute", "20 seconds"), (60, 20, 0)),
        (lambda: F.window("timestamp", "50 seconds", "20 seconds", "5 seconds"), (50, 20, 5)),
        (lambda: F.window("timestamp", "1 day", "1 hour").alias("w"), (86_400, 3600, 0)),
        (lambda: F.window(F.col("timestamp").cast("timestamp_ntz"), "1 minute", "30 seconds"), (60, 30, 0)),
        (lambda: F.window(F.col("timestamp") + F.expr("interval 3 seconds"), "10 seconds"), (10, 10, 0)),
    ],
    ids=["tumbling", "sliding", "odd", "long", "no zone", "computed"],
)
def test_windows_are_recognised_with_their_durations(rows: DataFrame, window: Callable[[], Column], wanted: tuple[int, int, int]) -> None:
    node = origin(rows.groupBy("k", window()).count())
    assert isinstance(node, AggregateNode)
    assert isinstance(node.window, WindowSpec)
    assert (node.window.size_us, node.window.advance_us, node.window.offset_us) == tuple(each * SECOND for each in wanted)
    assert node.window_at == 1


def test_session_windows_are_recognised(rows: DataFrame) -> None:
    node = origin(rows.groupBy(F.session_window("timestamp", "90 seconds"), "k").count())
    assert isinstance(node.window, SessionSpec)
    assert (node.window.gap_us, node.window_at) == (90 * SECOND, 0)


def test_a_window_that_is_used_in_another_way_is_a_column(rows: DataFrame) -> None:
    """The aggregate reads the window's end, so Spark computes the window before the operator."""
    node = origin(rows.groupBy(F.window("timestamp", "1 minute")).agg(F.max("window.end")))
    assert node.window is None
    assert origin(rows.withColumn("w", F.window("timestamp", "1 minute")).groupBy("w").count()).window is None


@pytest.mark.parametrize(
    ("condition", "how", "keep_ms"),
    [
        ("rt >= timestamp AND rt <= timestamp + interval 1 hour", "inner", (3_600_001, 1)),
        ("rt > timestamp AND rt < timestamp + interval 1 hour", "left", (3_600_000, 0)),
        ("rt BETWEEN timestamp - interval 5 seconds AND timestamp + interval 10 seconds", "left_semi", (10_001, 5_001)),
        ("rt >= timestamp + interval 5 minutes AND rt <= timestamp + interval 1 hour", "left", (3_600_001, -299_999)),
        ("rt >= timestamp", "inner", (None, 1)),
        ("true", "inner", (None, None)),
    ],
    ids=["closed", "open", "between", "not before", "one bound", "none"],
)
def test_bounds_of_joins_are_sparks(rows: DataFrame, condition: str, how: str, keep_ms: tuple[int | None, int | None]) -> None:
    right = rows.select(F.col("timestamp").alias("rt"), F.col("k").alias("rk"))
    node = origin(rows.join(right, F.expr(f"k = rk AND {condition}"), how))
    assert isinstance(node, StreamJoinNode)
    assert node.keep_us == tuple(None if each is None else each * 1000 for each in keep_ms)


def test_a_join_on_windows_forgets_by_the_window(rows: DataFrame) -> None:
    per_key = rows.groupBy(F.window("timestamp", "1 minute"), "k").count()
    total = rows.groupBy(F.window("timestamp", "1 minute")).agg(F.sum("value").alias("total"))
    found = lower(per_key.join(total, "window"), "the test")
    assert found.columns == ["window", "k", "count", "total"]
    assert isinstance(found.origin, StreamJoinNode)
    assert (found.origin.keep_us, found.origin.times) == ((0, 0), ("window", "window_2"))


def test_a_bound_on_a_column_without_a_watermark_is_refused(rows: DataFrame) -> None:
    """Spark would forget rows by their event time, which the condition does not bound."""
    left = rows.withColumn("seen", F.col("timestamp").cast("long").cast("timestamp"))
    right = rows.select(F.col("timestamp").alias("rt"), F.col("k").alias("rk"))
    with pytest.raises(hr.UnsupportedError, match="no watermark"):
        lower(left.join(right, F.expr("k = rk AND rt >= seen AND rt <= seen + interval 1 minute"), "left"), "the test")


def test_steps_behind_an_operator_are_one_piece(rows: DataFrame) -> None:
    shown = rows.groupBy("k").count().filter("count > 1").withColumn("twice", F.col("count") * 2).select("k", "twice")
    found = lower(shown, "the test")
    assert [step.method for step in found.steps] == ["filter then select then select"]
    assert found.columns == ["k", "twice"]


def test_without_state_there_is_nothing_to_lower(rows: DataFrame, spark: SparkSession) -> None:
    static = spark.range(3).groupBy("id").count()
    stateless = rows.join(static, rows.k == static.id).filter("count > 0")
    assert not has_state(stateless)
    assert not has_state(rows.limit(5))
    found = lower(stateless, "the test")
    assert isinstance(found, Rows)
    assert found.origin is None


def test_what_one_reader_of_a_join_leaves_out_stays_for_the_other(rows: DataFrame) -> None:
    other = rows.select(F.col("k").alias("k2"), F.col("timestamp").alias("t2"))
    joined = rows.join(other, F.expr("k = k2 AND t2 BETWEEN timestamp AND timestamp + INTERVAL 5 SECONDS"))
    both = origin(joined.filter("k = 1").union(joined.filter("k = 2")))
    mine, theirs = (each.origin for each in both.inputs)
    assert mine is theirs
    assert "Filter" not in plan_of_source(mine)
    alone = origin(joined.filter("k = 1"))
    assert "Filter (k" in plan_of_source(alone)


def test_a_rank_with_two_limits_keeps_the_rows_of_both(rows: DataFrame) -> None:
    by = Window.partitionBy(F.window("timestamp", "1 minute")).orderBy("value")
    ranked = rows.withColumn("place", F.row_number().over(by))
    both = origin(ranked.filter("place <= 2").union(ranked.filter("place <= 5")))
    assert [each.origin.first for each in both.inputs] == [None, None]
    assert origin(ranked.filter("place <= 2")).first.limit == 2


def test_a_condition_on_the_groups_drops_rows_before_the_aggregate(rows: DataFrame) -> None:
    counts = rows.groupBy(F.window("timestamp", "1 minute"), F.col("k").alias("key")).count()
    assert "Filter (k" in plan_of_source(origin(counts.filter("key = 1 AND count > 3").select("key")))
    assert "Filter" not in plan_of_source(origin(counts.filter("count > 3")))
    assert "Filter" not in plan_of_source(origin(counts.limit(3).filter("key = 1")))
    named = hr.named(counts, "counts").filter("key = 1")
    assert "Filter" not in plan_of_source(origin(named)), "the state of an operator with a name has all groups"
    both = origin(counts.filter("key = 1").union(counts.filter("key = 2")))
    assert all("Filter" not in plan_of_source(each.origin) for each in both.inputs)


def test_a_condition_that_needs_an_earlier_one_is_evaluated_after_it(rows: DataFrame) -> None:
    counts = rows.withColumn("t", F.col("k").cast("string")).groupBy("t").count()
    plan = plan_of_source(origin(counts.filter("t RLIKE '^[0-9]+$'").filter("CAST(t AS int) > 5")))
    assert plan.index("RLIKE") < plan.index("cast(t")


def test_a_branch_of_a_source_is_no_operator_to_name(rows: DataFrame) -> None:
    (branch,) = hr.split(rows, some="value > 1").values()
    with pytest.raises(hr.QueryError, match="rows of a source named 'some'"):
        lower(hr.named(branch, "some"), "the test")


def plan_of_source(node: Any) -> str:
    return str(node.inputs[0].frame._jdf.queryExecution().analyzed().toString())
