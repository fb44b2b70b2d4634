"""An average over windows of an hour that advance by a minute. The same text runs on both engines.

The first batch fills a whole window. From then on event time advances with every batch, and a batch's rows are spread over that
advance, so that windows open and close in every batch.
Values are small whole numbers: their sums are exact in any order, so averages can be compared bit by bit.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

START_S = 1_700_000_000
WINDOW, ADVANCE, DELAY = "1 hour", "1 minute", "10 seconds"
WINDOW_S, ADVANCE_S, DELAY_S = 3600, 60, 10


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key, event time and value from the row's number; the source and the check share it."""
    value = F.col("value")
    per_batch, step_ms = params["rows"], params["step_s"] * 1000
    batch, row = F.floor(value / per_batch), F.pmod(value, F.lit(per_batch))
    first_ms = F.floor(row * (WINDOW_S * 1000) / F.lit(per_batch))
    later_ms = F.lit(WINDOW_S * 1000) + (batch - 1) * step_ms + F.floor(row * step_ms / F.lit(per_batch))
    ms = F.lit(START_S * 1000) + F.when(batch == 0, first_ms).otherwise(later_ms)
    hashed = F.xxhash64(value)
    return rows.select(
        F.pmod(hashed, F.lit(params["keys"])).alias("key"),
        F.timestamp_millis(ms).alias("ts"),
        F.pmod(F.shiftright(hashed, 20), F.lit(1000)).alias("v"),
    )


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", params["rows"])
    return columns(reader.option("numPartitions", spark.sparkContext.defaultParallelism).load(), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """``rows`` is a Headrace stream or a streaming DataFrame."""
    windows = F.window("ts", WINDOW, ADVANCE)
    return rows.withWatermark("ts", DELAY).groupBy("key", windows).agg(F.avg("v").alias("average"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
