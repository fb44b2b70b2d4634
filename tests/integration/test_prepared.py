"""Frames that are built once: only leaves are exchanged from batch to batch, and nothing of the first batch stays in them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.prepared import Frames, Preparations
from headrace.spark.gateway import class_name
from headrace.spark.plans import analyzed, can_be_optimized_early
from headrace.spark.trees import walk

pytestmark = pytest.mark.spark

SCHEMA = "k int, v int"


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def leaf(spark: SparkSession, rows: list[tuple[int, int]], kind: str) -> DataFrame:
    """The kinds of plans that stand for a batch or for an operator's results."""
    plain = spark.createDataFrame(rows, SCHEMA)
    if kind == "local":
        return spark.createDataFrame(plain.toArrow(), plain.schema).coalesce(1)
    return plain.mapInArrow(lambda batches: batches, SCHEMA) if kind == "python" else plain


@pytest.mark.parametrize("kind", ["rdd", "local", "python"])
def test_every_batch_gets_its_own_rows(spark: SparkSession, kind: str) -> None:
    def build(frames: Frames) -> DataFrame:
        a, b = frames["a"], frames["b"]
        odd = a.withColumn("w", F.col("v") + 1).filter("k % 2 = 1").select("k", "w", "v").drop("v")
        return odd.union(b.select("k", F.col("v").alias("w"))).join(a.select(F.col("k").alias("other")), F.col("k") == F.col("other"))

    known = Preparations()
    for at in range(3):
        frames = {"a": leaf(spark, [(1, at), (2, at)], kind), "b": leaf(spark, [(1, 10 * at), (7, 7)], kind)}
        assert rows_of(known.frame("x", build, frames, spark)) == sorted([(1, at + 1, 1), (1, 10 * at, 1)])
    assert len(known._known) == 1


def test_the_time_is_that_of_the_batch(spark: SparkSession) -> None:
    known = Preparations()

    def build(frames: Frames) -> DataFrame:
        return frames["a"].select(F.unix_micros(F.current_timestamp()).alias("now"))

    seen = []
    for _ in range(2):
        seen.append(known.frame("x", build, {"a": leaf(spark, [(1, 1)], "rdd")}, spark).collect()[0][0])
        time.sleep(0.002)
    assert seen[0] < seen[1]


def test_files_and_subqueries_are_read_anew(spark: SparkSession, tmp_path: Path) -> None:
    plain = leaf(spark, [(1, 1)], "rdd")
    plain.write.parquet(str(tmp_path / "table"))
    plain.createOrReplaceTempView("prepared_rows")
    files = spark.read.parquet(str(tmp_path / "table"))
    for frame, early in (
        (plain.filter("k > 0"), True),
        (plain.withColumn("r", F.rand()), False),
        (plain.withColumn("now", F.current_timestamp()), False),
        (plain.join(files, "k"), False),
        (spark.sql("SELECT * FROM prepared_rows WHERE v = (SELECT max(v) FROM prepared_rows)"), False),
    ):
        assert can_be_optimized_early(spark, analyzed(frame)) is early


def test_steps_are_merged_once(spark: SparkSession) -> None:
    def build(frames: Frames) -> DataFrame:
        frame = frames["a"]
        for at in range(6):
            frame = frame.withColumn(f"c{at}", F.col("v") + at)
        return frame.select("k", "c5")

    made = Preparations().frame("x", build, {"a": leaf(spark, [(1, 1)], "rdd")}, spark)
    assert rows_of(made) == [(1, 6)]
    assert sum(class_name(node) == "Project" for node in walk(analyzed(made))) <= 2


def test_functions_of_the_user_s_own_in_python(spark: SparkSession) -> None:
    plus = F.udf(lambda v: v + 1, "int")

    def build(frames: Frames) -> DataFrame:
        return frames["a"].withColumn("w", plus("v")).filter(plus("w") > 3).select("k", "w").union(frames["a"].select("k", plus("k")))

    known = Preparations()
    for at in range(3):
        made = known.frame("x", build, {"a": leaf(spark, [(1, at), (2, at + 5)], "python")}, spark)
        assert rows_of(made) == sorted([(2, at + 6), (1, 2), (2, 3), *([(1, at + 1)] if at + 2 > 3 else [])])
