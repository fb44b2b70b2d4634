"""All of Spark's aggregate functions, those in vector form and those that keep Spark's own buffers, give what Spark's streaming gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.functions import take_apart
from headrace.compile.pieces import Context
from headrace.spark.aggregation import aggregation_of
from headrace.testing import QueryTest
from tests.integration.aggregate_calls import ALSO, CALLS, OF_SKETCHES
from tests.integration.both import Feed, assert_equal, compiled
from tests.integration.test_equals_spark_aggregates import SCHEMA, table

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "aggregates.md"
MARKERS = {"grouping", "grouping_id", "measure"}
"""In Spark's group of aggregate functions, but without a state."""
BUFFERED = ("percentile_approx", "median", "listagg", "hll_sketch_agg", "bitmap_construct_agg", "mode", "try_avg", "any_value")
"""Of each kind some: typed, imperative and declarative buffers."""


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    """Nulls, NaN, a key without values, a batch of one row, and keys in many batches."""
    tables = [table(1, 60), table(2, 1, first=60), table(3, 60, first=61), table(4, 30, first=121)]
    return Feed.of(tmp_path_factory.mktemp("functions"), SCHEMA, tables)


def calls(names: Any = None) -> list[Any]:
    every = {**CALLS, **ALSO}
    return [F.expr(every[name]).alias(name) for name in (every if names is None else names)]


def way_of(spark: SparkSession, rows: DataFrame, call: str) -> str:
    """How the compiler takes a call."""
    aggregation = aggregation_of(rows.groupBy("k").agg(F.expr(call)), 1)
    assert aggregation is not None
    context = Context(spark, None, rows.schema["ts"].dataType, ansi=True)
    pieces = [take_apart(each, context) for each in aggregation.calls.values()]
    return "Spark's buffers" if any(piece.settle for piece in pieces) else "vector"


def test_the_page_lists_every_function_of_spark_and_how_it_is_computed(spark: SparkSession, feed: Feed) -> None:
    infos = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()  # type: ignore[union-attr]
    known = {str(info.getName()) for info in infos if info.getGroup() == "agg_funcs"} - MARKERS
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE.read_text(), re.MULTILINE))
    assert set(listed) >= known
    rows = feed.batch(spark)
    here = {name: call for name, call in {**CALLS, **OF_SKETCHES}.items() if name in known}
    assert {name: listed[name] for name in here} == {name: way_of(spark, rows, call) for name, call in here.items()}


def test_spark_s_buffers_in_update_mode(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    query = lambda s: s.groupBy("k").agg(F.count("*"), *calls(BUFFERED))  # noqa: E731
    with compiled(spark):
        assert_equal(spark, [feed], query, "update", tmp_path, keys=1, instances=2, combine="always")


def _several(stream: Any) -> Any:
    first = "max_by(struct(i4, s), struct(u, i8), 3)"
    wanted = (first, f"{first} FILTER (WHERE b)", "min_by(s, u, 2)", "max_by(i1, u, 1000)", "min_by(u, CAST(null AS int), 2)")
    return stream.groupBy("k").agg(*[F.expr(each).alias(f"c{at}") for at, each in enumerate(wanted)])


@pytest.mark.parametrize("combine", ["never", "always"])
def test_several_rows_of_max_by(spark: SparkSession, feed: Feed, tmp_path: Path, combine: str) -> None:
    """The values of the greatest or least rows, in their order: null if no row has one."""
    assert way_of(spark, feed.batch(spark), "max_by(i1, u, 3)") == "vector"
    assert_equal(spark, [feed], _several, "update", tmp_path, keys=1, instances=2, combine=combine)


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("mode", "combine"), [("update", "never"), ("complete", "always")])
def test_every_function(spark: SparkSession, feed: Feed, tmp_path: Path, part: int, mode: str, combine: str) -> None:
    names = [*CALLS, *ALSO][part::4]
    query = lambda s: s.groupBy("k").agg(*calls(names))  # noqa: E731
    assert_equal(spark, [feed], query, mode, tmp_path, keys=1, instances=2, combine=combine)


@pytest.mark.extra
@pytest.mark.parametrize("window", [("1 minute",), ("1 minute", "20 seconds")])
@pytest.mark.parametrize("mode", ["append", "update"])
def test_windows(spark: SparkSession, feed: Feed, tmp_path: Path, window: tuple[str, ...], mode: str) -> None:
    def query(stream: Any) -> Any:
        grouped = stream.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", *window))
        return grouped.agg(*calls((*BUFFERED, "corr", "collect_list", "skewness", "bit_xor")))

    assert_equal(spark, [feed], query, mode, tmp_path, keys=2, instances=2)


@pytest.mark.extra
def test_sessions(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    def query(stream: Any) -> Any:
        late = stream.withColumn("ts", F.expr("ts + make_dt_interval(0, 0, 0, (u div 1000) * 300)")).withWatermark("ts", "1 second")
        return late.groupBy("k", F.session_window("ts", "5 seconds")).agg(*calls(("median", "hll_sketch_agg", "corr", "collect_list")))

    assert_equal(spark, [feed], query, "append", tmp_path, keys=2, instances=2)


@pytest.mark.extra
def test_one_group_without_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    for condition in ("k > 100", "true"):
        query = lambda s, c=condition: s.filter(c).agg(*calls((*BUFFERED[:-1], "corr", "collect_list", "bit_and")))  # noqa: E731
        assert_equal(spark, [feed], query, "complete", tmp_path, instances=2)


def _medians(stream: Any) -> Any:
    aggregates = [F.median("v").alias("m"), F.expr("hll_sketch_estimate(hll_sketch_agg(v))").alias("h"), F.corr("v", "w").alias("c")]
    return stream.groupBy("k").agg(*aggregates)


def test_buffers_survive_a_rescale_and_a_crash(spark: SparkSession, tmp_path: Path) -> None:
    with QueryTest(spark, tmp_path) as t:
        rows = t.source("k string, v long, w long")
        t.start(_medians, mode="update", instances=2)
        rows.add(*((f"k{i % 7}", (i * 37) % 101, i) for i in range(60)))
        t.run()
        t.rescale(3)
        rows.add(*((f"k{i % 11}", (i * 53) % 211, i) for i in range(80)))
        t.run()
        rows.add(("k1", 500, 1), (None, 7, 2), ("k2", None, 3))
        t.run()
        rows.add(("k1", 501, 1), ("new", 1, 1), ("k1", -5, None))
        t.abort("manifest-before")
        t.restart(instances=1)
        rows.add(("k1", 502, 7))
        t.run()
        t.assert_same_as_spark()
