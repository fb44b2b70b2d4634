"""Rows by number, and a running count and sum of them by key. The same text runs on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.rows import numbered


def key_of(value: Column, keys: int) -> Column:
    """The first rows touch every key once, so that state can be filled quickly; then keys are drawn uniformly."""
    return F.when(value < keys, value).otherwise(F.pmod(F.xxhash64(value), F.lit(keys)))


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """Key and value from the row's number; the source and the check share it."""
    return rows.select(key_of(F.col("value"), params["keys"]).alias("key"), F.col("value").alias("v"))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """``rows`` is a Headrace stream or a streaming DataFrame."""
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("update").format("noop")
