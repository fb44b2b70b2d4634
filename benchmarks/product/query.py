"""Calls that overlap in time and share a phone number, as caller or callee. The same condition runs on both engines.

Spark needs an equality to join two streams, so there the join has a constant key.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.call_records.records import phone
from benchmarks.rows import drawn, event_ms, numbered

WITHIN_S, DELAY = 60, "5 seconds"

OVERLAP = "(ts < ts_right and ts_right < ended or ts_right < ts and ts < ended_right)"
IN_COMMON = "(src = src_right or src = dst_right or dst = src_right or dst = dst_right)"
CONDITION = f"{OVERLAP} and {IN_COMMON}"


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """A call, made from the row number; used by the source and by the check."""
    value = F.col("value")
    ms = event_ms(value, params)
    return rows.select(
        phone(drawn(params["numbers"], value, 1)).alias("src"),
        phone(drawn(params["numbers"], value, 2)).alias("dst"),
        F.timestamp_millis(ms).alias("ts"),
        F.timestamp_millis(ms + drawn(WITHIN_S * 1000, value, 3)).alias("ended"),
    )


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a DataFrame, streaming or not."""
    calls = rows.withWatermark("ts", DELAY)
    if "last_per_cell" in params:
        return calls.crossJoin(calls, last_per_cell=params["last_per_cell"], where=CONDITION)
    if not isinstance(rows, DataFrame):
        return calls.crossJoin(calls, within=f"{WITHIN_S} seconds", where=CONDITION)
    # Always 0, but Spark must not notice: it would drop an equality of constants, and then refuse the join.
    one = F.pmod(F.length("src"), F.lit(1))
    others = rows.withWatermark("ts", DELAY).select(*[F.col(c).alias(f"{c}_right") for c in rows.columns], one.alias("one_right"))
    bound = f"ts_right between ts - interval {WITHIN_S} seconds and ts + interval {WITHIN_S} seconds"
    return calls.withColumn("one", one).join(others, F.expr(f"one = one_right and {bound} and {CONDITION}")).drop("one", "one_right")


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    if "instances" in params:
        writer = writer.option("headrace.instances", params["instances"])
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
