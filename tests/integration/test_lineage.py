"""What an operator is known by differs where its rows do, and only there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.compile.build import compile_flow
from headrace.compile.lineage import Lineage, lineages, says_all
from headrace.config import Config
from headrace.errors import QueryError
from headrace.operators.kernel import OutputMode

pytestmark = pytest.mark.spark


@dataclass(frozen=True)
class Program:
    spark: SparkSession
    folder: Path
    static: DataFrame

    def source(self, **options: str) -> DataFrame:
        schema = "k string, v int, w int, xs array<int>, ys array<int>, x_1 int, x_2 int"
        return self.spark.readStream.schema(schema).options(**options).parquet(str(self.folder))

    def lines(self, **options: str) -> DataFrame:
        return self.spark.readStream.schema("k string, v int").options(**options).csv(str(self.folder))

    def sql(self, text: str) -> DataFrame:
        self.source().createOrReplaceTempView("lineage_rows")
        return self.spark.sql(text)

    def beside(self) -> tuple[DataFrame, DataFrame]:
        """Two columns are called k, and two v."""
        rows = self.source()
        return rows, rows.join(self.static, rows.k == self.static.k)


Build = Callable[[Program], Any]


def counted(rows: DataFrame) -> Any:
    return hr.stream(rows).groupBy("k").count()


def _filtered(which: Callable[[DataFrame, DataFrame], Any]) -> Build:
    def build(program: Program) -> Any:
        rows, both = program.beside()
        return counted(both.filter(which(rows, program.static)).select(rows.k))

    return build


def _summed(which: Callable[[DataFrame, DataFrame], Any]) -> Build:
    def build(program: Program) -> Any:
        rows, both = program.beside()
        return hr.stream(both).groupBy("w").agg(F.sum(which(rows, program.static)))

    return build


DIFFERENT: dict[str, tuple[Build, Build]] = {
    "explode and explode_outer": (
        lambda p: counted(p.source().select("k", F.explode("xs").alias("x"))),
        lambda p: counted(p.source().select("k", F.explode_outer("xs").alias("x"))),
    ),
    "order of variables": (
        lambda p: counted(p.source().filter(F.size(F.zip_with("xs", "ys", lambda x, y: x - y)) > 1)),
        lambda p: counted(p.source().filter(F.size(F.zip_with("xs", "ys", lambda x, y: y - x)) > 1)),
    ),
    "order of variables in an aggregate": (
        lambda p: hr.stream(p.source()).groupBy("k").agg(F.sum(F.aggregate("xs", F.lit(0), lambda a, x: a - x))),
        lambda p: hr.stream(p.source()).groupBy("k").agg(F.sum(F.aggregate("xs", F.lit(0), lambda a, x: x - a))),
    ),
    "columns that are called as variables are": (
        lambda p: counted(p.source().filter(F.exists("xs", lambda x: x < F.col("x_1")))),
        lambda p: counted(p.source().filter(F.exists("xs", lambda x: x < F.col("x_2")))),
    ),
    "columns of one name": (_filtered(lambda rows, _: rows.v > 1), _filtered(lambda _, static: static.v > 1)),
    "columns of one name in an aggregate": (_summed(lambda rows, _: rows.v), _summed(lambda _, static: static.v)),
    "what is done with a named query": (
        lambda p: counted(p.sql("with a as (select * from lineage_rows) select * from a where v > 1")),
        lambda p: counted(p.sql("with a as (select * from lineage_rows) select * from a where v > 2")),
    ),
    "a named query": (
        lambda p: counted(p.sql("with a as (select * from lineage_rows where v > 1), b as (select * from a) select * from b")),
        lambda p: counted(p.sql("with a as (select * from lineage_rows where v > 2), b as (select * from a) select * from b")),
    ),
    "which files": (lambda p: counted(p.lines(pathGlobFilter="a*")), lambda p: counted(p.lines(pathGlobFilter="b*"))),
    "how files are read": (lambda p: counted(p.lines(header="true")), lambda p: counted(p.lines())),
    "a text that looks like a seed": (
        lambda p: counted(p.source().filter("k = 'rand(1234567)'")),
        lambda p: counted(p.source().filter("k = 'rand(7654321)'")),
    ),
}
ALSO = {"what is done with a named query", "columns of one name in an aggregate", "order of variables in an aggregate"}
"""Much like others of them."""
SAME: dict[str, tuple[Build, Build]] = {
    "names of variables": (
        lambda p: counted(p.source().select("k", F.transform("xs", lambda x: x + 1))),
        lambda p: counted(p.source().select("k", F.transform("xs", lambda x: x + 1))),
    ),
    "seeds that nobody gave": (lambda p: counted(p.source().filter(F.rand() < 2)), lambda p: counted(p.source().filter(F.rand() < 2))),
    "how fast files are read": (lambda p: counted(p.source(maxFilesPerTrigger="1")), lambda p: counted(p.source())),
    "what is done with the results": (lambda p: counted(p.source()).filter("count > 1"), lambda p: counted(p.source())),
}


@pytest.fixture
def program(spark: SparkSession, tmp_path: Path) -> Program:
    return Program(spark, tmp_path, spark.createDataFrame([("a", 1, 2020)], "k string, v int, y int"))


def lineage(build: Build, program: Program) -> Lineage:
    flow = compile_flow([(build(program).rows, OutputMode.UPDATE, "here")], Config())
    return lineages(flow)[flow.ops[-1].id]


@pytest.mark.parametrize("what", [pytest.param(what, marks=pytest.mark.extra if what in ALSO else []) for what in DIFFERENT])
def test_what_gives_other_rows_is_another(program: Program, what: str) -> None:
    one, other = DIFFERENT[what]
    found = lineage(one, program).fingerprint
    assert found == lineage(one, program).fingerprint
    assert found != lineage(other, program).fingerprint


@pytest.mark.parametrize("what", SAME)
def test_what_changes_no_row_changes_no_fingerprint(program: Program, what: str) -> None:
    one, other = (lineage(each, program) for each in SAME[what])
    assert one == other


def test_a_static_dataframe_is_more_than_its_columns(program: Program) -> None:
    """Two operators that differ in the rows of a static DataFrame alone cannot be told apart, so they must be named."""
    joined = program.source().join(program.static.select("k", "y"), "k")
    flow = compile_flow([(counted(joined).rows, OutputMode.UPDATE, "here")], Config())
    assert not says_all(flow, flow.ops[-1])
    flow = compile_flow([(counted(program.source()).rows, OutputMode.UPDATE, "here")], Config())
    assert says_all(flow, flow.ops[-1])

    def totals(year: int) -> Any:
        static = program.static.filter(F.col("y") == year).select("k", "y")
        return counted(program.source().join(static, "k")).writeStream.outputMode("update").foreachBatch(lambda rows, _: None)

    with pytest.raises(QueryError, match="told apart"):
        hr.start(totals(2020), totals(2021), checkpointLocation=str(program.folder / "checkpoint"))
