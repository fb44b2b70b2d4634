"""StreamCloud's queries over call records (section X), all on the same records. The same code runs on both engines.

The aggregate and the map are here. The join, the product and the heavy customers are those of the benchmarks of these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.call_records.records import calls
from benchmarks.heavy_customers.query import query as heavy_customers
from benchmarks.join.query import query as join
from benchmarks.product.query import query as product
from benchmarks.rows import numbered
from benchmarks.sliding.query import Windows

BY_DISTRICT = Windows(size_s=60, advance_s=10, delay_s=10)


def aggregate(rows: Any, params: dict[str, Any]) -> Any:
    """Calls and their average duration by district, over 60 seconds, every 10."""
    timed = rows.withColumn("duration", duration_s()).withWatermark("ts", BY_DISTRICT.delay)
    grouped = timed.groupBy("district", F.window("ts", BY_DISTRICT.size, BY_DISTRICT.advance))
    return grouped.agg(F.count("*").alias("calls"), F.avg("duration").alias("avg_duration"))


def durations(rows: Any, params: dict[str, Any]) -> Any:
    """The map: each call with its duration."""
    return rows.withColumn("duration", duration_s())


def duration_s() -> Any:
    return F.unix_seconds("end") - F.unix_seconds("start")


@dataclass(frozen=True)
class Part:
    """A query, and the columns of a record that it reads, by the query's names for them."""

    query: Callable[[Any, dict[str, Any]], Any]
    columns: dict[str, str]


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


PARTS = {
    "aggregate": Part(aggregate, _same("district", "start", "end", "ts")),
    "map": Part(durations, _same("src", "dst", "start", "end", "district")),
    "join": Part(join, _same("src", "ts", "lat", "lon")),
    "product": Part(product, {**_same("src", "dst", "ts"), "ended": "end"}),
    "heavy-customers": Part(heavy_customers, _same("src", "start", "end", "ts")),
}


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """The columns that the query reads, for these row numbers; used by the source and by the check."""
    part = PARTS[params["query"]]
    return calls(rows, params).select(*(F.col(theirs).alias(ours) for ours, theirs in part.columns.items()))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    return PARTS[params["query"]].query(rows, params)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    if "instances" in params:
        writer = writer.option("headrace.instances", params["instances"])
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
