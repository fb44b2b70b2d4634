"""A running count, and one aggregate function, by key. The same code runs on both engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.aggregate.query import columns
from benchmarks.rows import numbered


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a streaming DataFrame."""
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.expr(params["call"]).alias("x"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("update").format("noop")
