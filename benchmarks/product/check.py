"""The output equals the batch answer over all rows that were compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.product.query import CONDITION, WITHIN_S, columns
from benchmarks.rows import START_S
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished, columns: Callable[[DataFrame, dict[str, Any]], DataFrame] = columns) -> Verdict:
    """Check the result. ``columns`` makes the calls from row numbers."""
    spark, params = finished.spark, finished.params
    written = spark.read.parquet(str(finished.folder / "output"))
    # Batches are complete and in order, and each finds pairs. So the newest call in the output shows how far the query has come.
    newest_ms = int(written.agg(F.unix_millis(F.max("ts_right"))).collect()[0][0] or 0)
    batches = (newest_ms - START_S * 1000) // (params["step_s"] * 1000) + 1
    short = f"pairs of {batches} batches of {finished.rows // params['rows']}" if batches * params["rows"] < finished.rows else ""
    numbers = spark.range(max(0, batches) * params["rows"]).withColumnRenamed("id", "value")
    if "last_per_cell" in params:
        # Which rows a cell still holds is not known here. But each pair that it finds must be right, and be found once.
        real = pairs_of(columns(numbers, params)).select(*written.columns)
        return verdict(written, real.intersect(written), finished.rows, short)
    return verdict(written, expected(columns(numbers, params)).select(*written.columns), finished.rows, short)


def expected(calls: DataFrame) -> DataFrame:
    bound = f"ts_right between ts - interval {WITHIN_S} seconds and ts + interval {WITHIN_S} seconds"
    return pairs_of(calls).filter(bound)


def pairs_of(calls: DataFrame) -> DataFrame:
    """The answer, computed differently to be fast: pairs are found by the phone numbers that they share."""
    numbered = calls.withColumn("number", F.explode(F.array_distinct(F.array("src", "dst"))))
    others = numbered.select(*[F.col(c).alias(f"{c}_right") for c in calls.columns], "number")
    pairs = numbered.join(others, "number").filter(CONDITION).drop("number")
    # Calls have different times, so only a pair that shares both numbers is found twice.
    return pairs.distinct()
