"""An average over windows of an hour that advance by a minute. The same code runs on both engines.

The first batch fills a whole window. From then on event time advances with every batch, and a batch's rows are spread over that
advance, so that windows open and close in every batch.
Values are small whole numbers: their sums are exact in any order, so averages can be compared bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import event_ms, numbered


@dataclass(frozen=True)
class Windows:
    """The sliding window, and the delay of the watermark."""

    size_s: int
    advance_s: int
    delay_s: int

    @property
    def size(self) -> str:
        return f"{self.size_s} seconds"

    @property
    def advance(self) -> str:
        return f"{self.advance_s} seconds"

    @property
    def delay(self) -> str:
        return f"{self.delay_s} seconds"


HOURLY = Windows(size_s=3600, advance_s=60, delay_s=10)


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key, event time and value, made from the row number; used by the source and by the check."""
    value = F.col("value")
    hashed = F.xxhash64(value)
    return rows.select(
        F.pmod(hashed, F.lit(params["keys"])).alias("key"),
        F.timestamp_millis(event_ms(value, {**params, "fill_s": HOURLY.size_s})).alias("ts"),
        F.pmod(F.shiftright(hashed, 20), F.lit(1000)).alias("v"),
    )


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a streaming DataFrame."""
    windows = F.window("ts", HOURLY.size, HOURLY.advance)
    return rows.withWatermark("ts", HOURLY.delay).groupBy("key", windows).agg(F.avg("v").alias("average"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
