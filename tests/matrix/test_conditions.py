"""Conditions and aggregate functions are read on each Spark as they are on the newest."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark import contract, expression_tree
from headrace.spark.aggregation import FUNCTIONS, aggregation_of
from headrace.spark.expression_tree import Call, Constant, filter_condition
from headrace.spark.versions import dialect

pytestmark = pytest.mark.spark


def values(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1e300, "a")], "d double, s string")


def call_of(spark: SparkSession, condition: str) -> Call:
    """The call on the left side of a comparison."""
    found = filter_condition(values(spark).filter(condition))
    assert found is not None
    assert isinstance(found.node, Call)
    (call, _) = found.node.arguments
    assert isinstance(call, Call)
    return call


def test_every_class_of_an_expression_exists(spark: SparkSession, spark_version: str) -> None:
    assert contract.missing_classes(spark, expression_tree.classes(spark_version)) == []


@pytest.mark.parametrize("function", ["floor", "ceil"])
def test_rounding_overflows_as_spark_does(spark: SparkSession, function: str) -> None:
    fails = False
    try:
        values(spark).select(F.expr(f"{function}(d)")).collect()
    except PySparkException:
        fails = True
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert call_of(spark, f"{function}(d) > 1").mode == ("ansi" if fails else "legacy")
    assert dialect().rounding_checks_overflow is fails


def test_a_condition_becomes_plain_data(spark: SparkSession) -> None:
    call = call_of(spark, "try_add(d, 1) > 2")
    assert (call.name, call.mode) == ("add", "try")
    assert isinstance(call.arguments[1], Constant)
    assert call.arguments[1].value == 1.0


def test_aggregate_functions_are_recognised(spark: SparkSession) -> None:
    asked = "count(s), sum(d), avg(d), min(d), max(d), stddev_samp(d), stddev_pop(d), var_samp(d), var_pop(d), min_by(s, d), max_by(s, d), "
    asked += "first(d), last(d, true), collect_set(s), approx_count_distinct(s, 0.1), collect_list(s), corr(d, d), covar_pop(d, d), "
    asked += (
        "covar_samp(d, d), skewness(d), kurtosis(d), bit_and(i), bit_or(i), bit_xor(i), regr_r2(d, d), regr_sxy(d, d), regr_slope(d, d), "
    )
    asked += "regr_intercept(d, d), regr_sxx(d, d)"
    found = aggregation_of(spark.sql(f"SELECT {asked} FROM VALUES (1d, 'a', 1) AS t(d, s, i)"), len(FUNCTIONS))
    assert found is not None
    calls = {each.function: each for each in found.calls.values()}
    assert list(calls) == list(FUNCTIONS.values())
    assert not any(each.is_try or each.is_distinct for each in calls.values())
    assert (calls["first"].ignores_nulls, calls["last"].ignores_nulls, calls["approx_count_distinct"].relative_error) == (False, True, 0.1)


def test_try_functions_are_told_from_others(spark: SparkSession) -> None:
    found = aggregation_of(spark.sql("SELECT try_sum(d), try_avg(d) FROM VALUES (1d) AS t(d)"), 2)
    assert found is not None
    assert [each.is_try for each in found.calls.values()] == [True, True]
