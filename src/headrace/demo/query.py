"""The demo's query: customers whose calls are long on average, over sliding windows."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace import Stream

SCHEMA = "src string, dst string, start timestamp, end timestamp, ts timestamp"
RESULTS = "src string, window struct<start: timestamp, end: timestamp>, avg_duration double, calls bigint"

Calls = TypeVar("Calls", Stream, DataFrame)


def heavy_customers(calls: Calls) -> Calls:
    """The query. The same code runs on a Headrace stream and on a batch DataFrame of Spark."""
    return (
        calls.withColumn("duration", F.col("end").cast("long") - F.col("start").cast("long"))
        .withWatermark("ts", "1 minute")
        .groupBy("src", F.window("ts", "10 minutes", "1 minute"))
        .agg(F.avg("duration").alias("avg_duration"), F.count("*").alias("calls"))
        .filter(F.col("avg_duration") > 600)
    )
