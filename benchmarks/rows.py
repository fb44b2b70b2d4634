"""Rows made from their numbers: the same for every engine and for the check, without files."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

START_S = 1_700_000_000


def numbered(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    """A stream of numbers (`value`), `rows` per batch, made by one task per core or by `partitions` tasks."""
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", params["rows"])
    return reader.option("numPartitions", params.get("partitions") or spark.sparkContext.defaultParallelism).load()


def event_ms(value: Any, params: dict[str, Any]) -> Any:
    """The event time of a row. The rows of a batch are spread over `step_s` seconds, those of the first batch over `fill_s` if given."""
    per_batch, step_ms, fill_ms = params["rows"], params["step_s"] * 1000, params.get("fill_s", 0) * 1000
    batch, row = F.floor(value / per_batch), F.pmod(value, F.lit(per_batch))
    ms = batch * step_ms + F.floor(row * step_ms / F.lit(per_batch))
    if fill_ms:
        ms = F.when(batch == 0, F.floor(row * fill_ms / F.lit(per_batch))).otherwise(ms + (fill_ms - step_ms))
    return F.lit(START_S * 1000) + ms


def drawn(size: int, *of: Any) -> Any:
    """A number below `size`, a hash of columns and constants."""
    return F.pmod(F.xxhash64(*(F.lit(each) if isinstance(each, int) else each for each in of)), F.lit(size))
