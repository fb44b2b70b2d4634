"""A running count and sum by key. The same code runs on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import numbered


def key_of(value: Column, keys: int) -> Column:
    """The key of a row. The first rows touch every key once, to fill the state quickly; then keys are uniform."""
    return F.when(value < keys, value).otherwise(F.pmod(F.xxhash64(value), F.lit(keys)))


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key and value, made from the row number; used by the source and by the check."""
    return rows.select(key_of(F.col("value"), params["keys"]).alias("key"), F.col("value").alias("v"))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a streaming DataFrame."""
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("update").format("noop")
