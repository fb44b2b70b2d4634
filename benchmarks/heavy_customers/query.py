"""StreamCloud's elasticity query: customers whose calls were long on average over the last hour. The same code runs on both engines.

Call records are made from row numbers. The first batch fills a whole window; then every batch advances event time. Durations are
whole seconds, so that averages can be compared bit by bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import numbered
from benchmarks.sliding.query import HOURLY
from benchmarks.sliding.query import columns as rows_in_time

HEAVY_S = 600


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """A call record: who called whom, when it began and ended, and when the record was written (its event time)."""
    timed = rows_in_time(rows, params)
    # Customers differ in how long they talk, so that some are heavy and most are not.
    lasts = (F.col("v") + F.pmod(F.xxhash64("key"), F.lit(250))).cast("int")
    begin = F.col("ts") - F.make_dt_interval(F.lit(0), F.lit(0), F.lit(0), lasts.cast("decimal(18,6)"))
    source = F.format_string("c%06d", F.col("key"))
    return timed.select(source.alias("src"), F.col("v").alias("dst"), begin.alias("start"), F.col("ts").alias("end"), F.col("ts"))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a streaming DataFrame."""
    calls = rows.withColumn("duration", F.col("end").cast("long") - F.col("start").cast("long")).withWatermark("ts", HOURLY.delay)
    grouped = calls.groupBy("src", F.window("ts", HOURLY.size, HOURLY.advance))
    return grouped.agg(F.avg("duration").alias("avg_duration"), F.count("*").alias("calls")).filter(F.col("avg_duration") > HEAVY_S)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
