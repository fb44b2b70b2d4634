"""Random plans of the front end's nodes, as functions that Spark's batch engine can run too.

Every step turns rows of (k, ts, n) into rows of the same columns, so steps fit together in any order. ``ts`` is an event time with a
watermark in a stream; in a batch the watermark means nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F


@dataclass(frozen=True)
class Plan:
    """What a user writes, in words and as a function of the source's rows."""

    text: str
    build: Callable[[DataFrame], DataFrame]

    def __str__(self) -> str:
        return self.text


SOURCE = Plan("rows", lambda rows: rows.select("k", "ts", "n"))
EXPLODED = Plan("rows | explode", lambda rows: rows.select("k", "ts", F.explode("tags").alias("n")))
WINDOWS = (("10 seconds",), ("20 seconds", "5 seconds"), ("15 seconds", "10 seconds", "3 seconds"))


def then(plan: Plan, text: str, step: Callable[[DataFrame], DataFrame]) -> Plan:
    return Plan(f"{plan.text} | {text}", lambda rows: step(plan.build(rows)))


def _select(plan: Plan, add: int) -> Plan:
    return then(plan, f"n * 2 + {add}", lambda rows: rows.withColumn("n", F.col("n") * 2 + add))


def _filter(plan: Plan, rest: int) -> Plan:
    return then(plan, f"filter n % 3 <> {rest}", lambda rows: rows.filter(F.col("n") % 3 != rest))


def _window(plan: Plan, case: tuple[tuple[str, ...], str]) -> Plan:
    window, call = case

    def step(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy("k", F.window("ts", *window)).agg(F.expr(call).alias("n"))
        return grouped.select("k", F.window_time("window").alias("ts"), F.col("n").cast("int"))

    return then(plan, f"{call} by window{window}", step)


def _chained(plan: Plan, call: str) -> Plan:
    """Windows of windows, without ``window_time``."""

    def step(rows: DataFrame) -> DataFrame:
        first = rows.groupBy("k", F.window("ts", "5 seconds")).agg(F.count("*").alias("n"))
        again = first.groupBy("k", F.window("window", "20 seconds")).agg(F.expr(call).alias("n"))
        return again.select("k", F.window_time("window").alias("ts"), F.col("n").cast("int"))

    return then(plan, f"{call} by windows of windows", step)


def _session(plan: Plan, gap: int) -> Plan:
    def step(rows: DataFrame) -> DataFrame:
        grouped = rows.groupBy("k", F.session_window("ts", f"{gap} seconds")).agg(F.max("n").alias("n"))
        return grouped.select("k", F.window_time("session_window").alias("ts"), "n")

    return then(plan, f"sessions({gap})", step)


def _distinct(plan: Plan, by_method: bool) -> Plan:
    def step(rows: DataFrame) -> DataFrame:
        keys = rows.select("k", "ts")
        return (keys.dropDuplicates(["k", "ts"]) if by_method else keys.distinct()).withColumn("n", F.lit(1))

    return then(plan, "dropDuplicates" if by_method else "distinct", step)


def _top(plan: Plan, case: tuple[str, int, tuple[str, ...], bool]) -> Plan:
    function, limit, window, by_key = case

    def step(rows: DataFrame) -> DataFrame:
        spec = Window.partitionBy("w", *(["k"] if by_key else []))
        # Rows that tie in all columns are equal, so it does not matter which of them are kept.
        ordered = spec.orderBy(F.desc("n"), "ts", "k") if function == "row_number" else spec.orderBy(F.desc("n"))
        numbered = rows.withColumn("w", F.window("ts", *window)).withColumn("place", getattr(F, function)().over(ordered))
        return numbered.filter(F.col("place") <= limit).select("k", F.window_time("w").alias("ts"), "n")

    return then(plan, f"{function} <= {limit} by window{window}{' and key' if by_key else ''}", step)


def _over(plan: Plan, call: str) -> Plan:
    def step(rows: DataFrame) -> DataFrame:
        windowed = rows.withColumn("w", F.window("ts", "20 seconds")).withColumn("over", F.expr(f"{call} OVER (PARTITION BY w, k)"))
        return windowed.select("k", F.window_time("w").alias("ts"), F.col("over").cast("int").alias("n"))

    return then(plan, f"{call} OVER a window", step)


def _join(left: Plan, right: Plan, case: tuple[str, int, int]) -> Plan:
    how, before, after = case

    def build(rows: DataFrame) -> DataFrame:
        other = right.build(rows).select(F.col("k").alias("k2"), F.col("ts").alias("ts2"), F.col("n").alias("n2"))
        bounds = F.expr(f"k = k2 AND ts2 BETWEEN ts - INTERVAL {before} SECONDS AND ts + INTERVAL {after} SECONDS")
        joined = left.build(rows).join(other, bounds, how)
        return joined.select("k", "ts", "n") if how == "leftsemi" else joined.select("k", "ts", (F.col("n") + F.col("n2")).alias("n"))

    return Plan(f"({left.text}) {how} join(-{before}, +{after}) ({right.text})", build)


def _union(left: Plan, right: Plan) -> Plan:
    return Plan(f"({left.text}) + ({right.text})", lambda rows: left.build(rows).union(right.build(rows)))


CALLS = ("sum(n)", "count(*)", "max(n)", "count(DISTINCT n)", "sum(DISTINCT n)", "min(n) FILTER (WHERE n > 1)")
STEPS: tuple[tuple[Callable[[Plan, Any], Plan], st.SearchStrategy[Any]], ...] = (
    (_select, st.integers(0, 3)),
    (_filter, st.integers(0, 2)),
    (_window, st.tuples(st.sampled_from(WINDOWS), st.sampled_from(CALLS))),
    (_chained, st.sampled_from(("sum(n)", "max(n)"))),
    (_session, st.sampled_from((3, 7))),
    (_distinct, st.booleans()),
    (
        _top,
        st.tuples(
            st.sampled_from(("row_number", "rank", "dense_rank")), st.integers(1, 3), st.sampled_from(WINDOWS[:2]), st.booleans()
        ),
    ),
    (_over, st.sampled_from(("sum(n)", "count(*)", "max(n)"))),
)  # fmt: skip
HOWS = ("inner", "left", "leftsemi")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """One to four steps; in between, branches that are joined or put together."""
    plan = draw(st.sampled_from((SOURCE, SOURCE, EXPLODED)))
    for _ in range(draw(st.integers(1, 3))):
        step, cases = draw(st.sampled_from(STEPS))
        plan = step(plan, draw(cases))
    way = draw(st.sampled_from(("on", "on", "union", "join")))
    if way == "on":
        return plan
    other = draw(st.sampled_from((SOURCE, EXPLODED)))
    step, cases = draw(st.sampled_from(STEPS))
    other = step(other, draw(cases))
    plan = (
        _union(plan, other)
        if way == "union"
        else _join(plan, other, draw(st.tuples(st.sampled_from(HOWS), st.integers(0, 9), st.integers(0, 9))))
    )
    if draw(st.booleans()):
        step, cases = draw(st.sampled_from(STEPS))
        plan = step(plan, draw(cases))
    return plan
