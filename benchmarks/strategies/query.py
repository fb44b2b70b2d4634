"""A stateless prefix and three stateful operators in a chain, as in StreamCloud's Fig. 13."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import event_ms, numbered


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    value = F.col("value")
    hashed = F.xxhash64(value)
    return rows.select(
        F.pmod(hashed, F.lit(params["keys"])).alias("key"),
        F.timestamp_millis(event_ms(value, params)).alias("ts"),
        F.pmod(F.shiftright(hashed, 20), F.lit(1000)).alias("v"),
    )


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """Readings by key in ten seconds, the spread of keys by group in a minute, and outlying groups."""
    cleaned = rows.filter("v >= 10").withColumn("group", F.col("key") % 100).withWatermark("ts", "5 seconds")
    first = cleaned.groupBy("group", "key", F.window("ts", "10 seconds")).agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    busy = first.filter("n > 0").select("group", F.window_time("window").alias("at"), "total")
    second = busy.groupBy("group", F.window("at", "1 minute")).agg(F.max("total").alias("most"), F.count("*").alias("parts"))
    grown = second.select(F.window_time("window").alias("at"), "most", "parts")
    return grown.groupBy(F.window("at", "1 minute")).agg(F.max("most").alias("most"), F.sum("parts").alias("parts"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    writer = writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
    return writer.option("headrace.strategy", params["strategy"]).option("headrace.instancesOf", params["instances"])
