"""Calls that overlap in time and have a number in common, as caller or callee. The same condition on both engines.

Spark has no product of two streams without an equality, so there it is a join with a key that is always the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

START_S = 1_700_000_000
WITHIN_S, DELAY = 60, "5 seconds"

OVERLAP = "(ts < ts_right and ts_right < ended or ts_right < ts and ts < ended_right)"
IN_COMMON = "(src = src_right or src = dst_right or dst = src_right or dst = dst_right)"
CONDITION = f"{OVERLAP} and {IN_COMMON}"


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """A call from the row's number; the source and the check share it."""
    value = F.col("value")
    per_batch, step_ms = params["rows"], params["step_s"] * 1000
    batch, row = F.floor(value / per_batch), F.pmod(value, F.lit(per_batch))
    ms = F.lit(START_S * 1000) + batch * step_ms + F.floor(row * step_ms / F.lit(per_batch))
    return rows.select(
        _number(value, 1, params["numbers"]).alias("src"),
        _number(value, 2, params["numbers"]).alias("dst"),
        F.timestamp_millis(ms).alias("ts"),
        F.timestamp_millis(ms + F.pmod(F.xxhash64(value, F.lit(3)), F.lit(WITHIN_S * 1000))).alias("ended"),
    )


def _number(value: Any, salt: int, numbers: int) -> Any:
    drawn = F.pmod(F.xxhash64(value, F.lit(salt)), F.lit(numbers))
    return F.concat(F.lit("+346"), F.lpad(drawn.cast("string"), 8, "0"))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", params["rows"])
    return columns(reader.option("numPartitions", spark.sparkContext.defaultParallelism).load(), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """``rows`` is a Headrace stream or a DataFrame, streaming or not."""
    calls = rows.withWatermark("ts", DELAY)
    if "last_per_cell" in params:
        return calls.crossJoin(calls, last_per_cell=params["last_per_cell"], where=CONDITION)
    if not isinstance(rows, DataFrame):
        return calls.crossJoin(calls, within=f"{WITHIN_S} seconds", where=CONDITION)
    # Always 0, but Spark must not know: it would drop an equality of constants, and then refuse the join.
    one = F.pmod(F.length("src"), F.lit(1))
    others = rows.withWatermark("ts", DELAY).select(*[F.col(c).alias(f"{c}_right") for c in rows.columns], one.alias("one_right"))
    bound = f"ts_right between ts - interval {WITHIN_S} seconds and ts + interval {WITHIN_S} seconds"
    return calls.withColumn("one", one).join(others, F.expr(f"one = one_right and {bound} and {CONDITION}")).drop("one", "one_right")


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    if "instances" in params:
        writer = writer.option("headrace.instances", params["instances"])
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
