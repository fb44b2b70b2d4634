"""What Headrace reads in a streaming plan: users' functions, sources, queries of a WITH clause. What it does not know is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import udtf

import headrace as hr
from headrace.errors import UnsupportedError
from headrace.spark import streaming
from headrace.spark.plan_text import is_without_code, lines, sources_in

pytestmark = pytest.mark.spark


class Twice:
    def eval(self, value: int) -> Iterator[tuple[int]]:
        yield (value,)
        yield (value,)


@pytest.fixture
def rate(spark: SparkSession) -> DataFrame:
    frame = spark.readStream.format("rate").load()
    frame.createOrReplaceTempView("plan_text_rate")
    spark.udtf.register("twice", udtf(Twice, returnType="v int"))  # type: ignore[arg-type]
    return frame


@pytest.mark.parametrize(
    ("build", "without"),
    [
        (lambda rate: rate.select(F.upper(F.col("value").cast("string"))), True),
        (lambda rate: rate.select(F.udf(lambda value: value, "long")("value")), False),
        (lambda rate: rate.mapInArrow(lambda batches: batches, rate.schema), False),
        (lambda rate: rate.sparkSession.sql("SELECT v FROM plan_text_rate, LATERAL twice(CAST(value AS INT))"), False),
        (lambda rate: rate.filter(F.rand() < 0.5), False),
    ],
    ids=["Spark's own", "a function", "rows as Arrow", "a table function", "chance"],
)
def test_users_functions_and_chance_are_found(rate: DataFrame, build: Callable[[DataFrame], DataFrame], without: bool) -> None:
    assert is_without_code(build(rate)) is without


def test_queries_of_a_with_clause_are_described_where_they_are_used(rate: DataFrame) -> None:
    text = """WITH a AS (SELECT value FROM plan_text_rate WHERE value > 1)
              SELECT * FROM (WITH b AS (SELECT value + 1 AS next FROM a) SELECT * FROM b UNION ALL SELECT value FROM a)"""
    found = lines(rate.sparkSession.sql(text))
    source = sources_in(rate)[0]
    assert sum(line.strip() == source for line in found) == 2
    assert not any("DataFrame" in line for line in found)


def test_a_source_of_an_unknown_class_is_refused(rate: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    assert streaming.source_names(rate) == ["rate"]
    monkeypatch.setattr(streaming, "RELATIONS", ("StreamingRelation",))
    with pytest.raises(UnsupportedError, match=r"found StreamingRelationV2"):
        hr.stream(rate)
