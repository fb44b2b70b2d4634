"""Streams that are split and combined again: joins, products and unions of branches of one stream equal Spark's results.

Both sides of such a join are built on one leaf, of which Spark renames the second occurrence.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import InvariantError
from headrace.spark import gateway, plans
from tests.integration.both import Feed, Values, assert_same_rows, ours, values

pytestmark = pytest.mark.spark

SCHEMA = "k string, ts timestamp, side string, v array<int>"
ARROW = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", tz="UTC")), ("side", pa.string()), ("v", pa.list_(pa.int32()))])
START = datetime(2026, 1, 1, tzinfo=UTC)
WITHIN = "ts between ts_right - interval 20 seconds and ts_right + interval 20 seconds"
STRATEGIES = ("operator-set-cloud", "operator-cloud")


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """Two files of rows in the order of time, and one that moves the watermark past them."""
    random = Random(3)
    parts = []
    for at in range(2):
        times = [START + timedelta(seconds=at * 60 + random.randrange(60)) for _ in range(40)]
        parts.append([(f"k{random.randrange(3)}", time, random.choice("lr"), [at, random.randrange(9)]) for time in times])
    parts.append([("end", START + timedelta(hours=9), "l", [0]), ("end", START + timedelta(hours=10), "r", [0])])
    tables = [pa.table(dict(zip(ARROW.names, map(list, zip(*part, strict=True)), strict=True)), ARROW) for part in parts]
    return Feed.of(tmp_path_factory.mktemp("branches"), SCHEMA, tables)


def joined(left: DataFrame, right: DataFrame, on: tuple[str, ...] = ("k",)) -> DataFrame:
    """Spark's own join of two batch DataFrames, with the columns as a join of streams names them."""
    renamed = right.select(*[F.col(c).alias(c if c in on else f"{c}_right") for c in right.columns])
    pairs = left.join(renamed, list(on)) if on else left.crossJoin(renamed)
    return pairs.filter(WITHIN)


def timed(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds")


def halves(rows: Any) -> tuple[Any, Any]:
    return rows.filter("side = 'l'"), rows.filter("side = 'r'")


def branches(rows: Any) -> tuple[Any, Any]:
    parts = timed(rows).split(l="side = 'l'", r="side = 'r'")
    return parts.l, parts.r


def join_of_branches(rows: Any) -> Any:
    left, right = branches(rows)
    return left.join(right, "k", within="20 seconds")


def product_of_branches(rows: Any) -> Any:
    left, right = branches(rows)
    return left.crossJoin(right, within="20 seconds", where="k < k_right")


def join_of_exploded_branches(rows: Any) -> Any:
    """The steps that multiply rows are done behind the boundary of the streaming plan."""
    parts = timed(rows).select("k", "ts", "side", F.explode("v").alias("n")).split(l="side = 'l'", r="side = 'r'")
    return parts.l.join(parts.r, "k", within="20 seconds")


def join_of_filtered_results(rows: Any) -> Any:
    firsts = timed(rows).dropDuplicates(["k", "ts", "side"]).select("k", "ts", "side")
    left, right = halves(firsts)
    return left.join(right, "k", within="20 seconds")


def join_of_results_and_some_of_them(rows: Any) -> Any:
    firsts = timed(rows).dropDuplicates(["k", "ts", "side"]).select("k", "ts", "side")
    return firsts.join(firsts.filter("side = 'r'"), "k", within="20 seconds")


def join_of_filters(rows: Any) -> Any:
    left, right = halves(timed(rows))
    return left.join(right, "k", within="20 seconds")


def join_of_equal_filters(rows: Any) -> Any:
    one, other = (timed(rows).filter("side = 'l'") for _ in range(2))
    return one.join(other, "k", within="20 seconds")


def branches_together_again(rows: Any) -> Any:
    left, right = branches(rows)
    return left.union(right).groupBy("k", F.window("ts", "30 seconds")).agg(F.count("*").alias("n")).select("k", "window.start", "n")


def join_beside_an_aggregate(rows: Any) -> Any:
    """The source has several readers, so the join's inputs are taken out of the batch."""
    left, right = halves(timed(rows))
    counts = timed(rows).groupBy("k", "ts").count().select("k", F.col("ts").alias("ts"), F.lit("n").alias("side"))
    pairs = left.select("k", "ts", "side").join(right.select("k", "ts", "side"), "k", within="20 seconds")
    return pairs.select("k", "ts", "side").union(counts)


def of_halves(rows: DataFrame) -> DataFrame:
    return joined(*halves(rows))


def of_firsts(rows: DataFrame) -> DataFrame:
    return joined(*halves(rows.select("k", "ts", "side").distinct()))


def of_exploded(rows: DataFrame) -> DataFrame:
    return joined(*halves(rows.select("k", "ts", "side", F.explode("v").alias("n"))))


def of_firsts_and_some(rows: DataFrame) -> DataFrame:
    firsts = rows.select("k", "ts", "side").distinct()
    return joined(firsts, firsts.filter("side = 'r'"))


def counted(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", F.window("ts", "30 seconds")).agg(F.count("*").alias("n")).select("k", "window.start", "n")


def with_counts(rows: DataFrame) -> DataFrame:
    return of_halves(rows).select("k", "ts", "side").union(rows.groupBy("k", "ts").count().select("k", "ts", F.lit("n")))


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[DataFrame], DataFrame]]] = {
    "a join of branches": (join_of_branches, of_halves),
    "a product of branches": (product_of_branches, lambda rows: joined(*halves(rows), on=()).filter("k < k_right")),
    "a join of branches behind explode": (join_of_exploded_branches, of_exploded),
    "a join of two filters of results": (join_of_filtered_results, of_firsts),
    "a join of results and a filter of them": (join_of_results_and_some_of_them, of_firsts_and_some),
    "a join of two filters of a source": (join_of_filters, of_halves),
    "a join of two equal filters": (join_of_equal_filters, lambda rows: joined(*[rows.filter("side = 'l'")] * 2)),
    "a union of branches": (branches_together_again, counted),
    "a join beside an aggregate": (join_beside_an_aggregate, with_counts),
}
CHOSEN = {("a join of branches", "operator-set-cloud"), ("a product of branches", "operator-set-cloud")}
CHOSEN |= {("a join of branches behind explode", "operator-cloud"), ("a join of two filters of results", "operator-cloud")}
CALLS = [pytest.param(n, s, marks=[] if (n, s) in CHOSEN else pytest.mark.extra) for n in CASES for s in STRATEGIES]


def before_end(rows: list[Values]) -> list[Values]:
    return [row for row in rows if "end" not in row]


@pytest.mark.parametrize(("name", "strategy"), CALLS)
def test_branches_meet_as_in_spark(spark: SparkSession, tmp_path: Path, feed: Feed, name: str, strategy: str) -> None:
    query, reference = CASES[name]
    wanted = before_end(values(reference(feed.batch(spark))))
    assert len(wanted) > 5, "a comparison of nothing with nothing says nothing"
    found = ours(spark, [feed], query, "append", tmp_path, strategy=strategy)
    assert_same_rows(before_end(found.rows), wanted, found.columns, f"{name}, {strategy}")


def test_a_template_that_is_not_in_the_plan_is_an_error(spark: SparkSession) -> None:
    """Rows that have no place to go to must not vanish."""
    there, elsewhere = (spark.createDataFrame([], "a int") for _ in range(2))
    rows = spark.createDataFrame([(1,)], "a int")
    positive = there.filter("a > 0")
    assert plans.substituted(positive, [(there, rows)]).collect() == [(1,)]
    with pytest.raises(InvariantError, match=r"\[0\] times"):
        plans.substituted(positive, [(elsewhere, rows)])
    jvm = gateway.jvm_of(spark)
    twice = jvm.org.apache.spark.sql.catalyst.plans.logical.Union(gateway.seq(spark, [plans.analyzed(positive)] * 2), False, False)
    with pytest.raises(InvariantError, match=r"\[2\] times"):
        plans.substituted(plans.Plan(spark, twice), [(there, rows)])
