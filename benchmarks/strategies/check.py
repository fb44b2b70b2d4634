"""The output equals Spark's batch answer for all closed windows."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.rows import START_S
from benchmarks.strategies.query import columns, query
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    spark, params = finished.spark, finished.params
    written = spark.read.schema("window struct<start timestamp, end timestamp>, most long, parts long").parquet(
        str(finished.folder / "output")
    )
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    reached_s = START_S + finished.rows // params["rows"] * params["step_s"] - 6 - params["step_s"]
    detail = f"minutes up to {closed_s} are closed, event time has reached {reached_s}" if closed_s < reached_s // 60 * 60 else ""
    rows = max(1, -(-(closed_s - START_S) // params["step_s"]) + 1) * params["rows"]
    numbers = spark.range(rows).withColumnRenamed("id", "value")
    expected = query(columns(numbers, params), params).filter(F.col("window.end").cast("long") <= closed_s)
    return verdict(written, expected, finished.rows, detail)
