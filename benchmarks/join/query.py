"""Calls of one caller within 60 seconds of each other, too far apart for anyone to have travelled. The same conditions on both engines.

Callers live somewhere, and call from within some kilometres of there. Event time advances with every batch, and a batch's rows are spread
over that advance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

START_S = 1_700_000_000
WITHIN_S, DELAY = 60, "10 seconds"
SPEED_KM_H = 2000
EARTH_KM = 6371.0

DISTANCE = f"""2 * {EARTH_KM} * asin(sqrt(pow(sin(radians(lat_right - lat) / 2), 2)
    + cos(radians(lat)) * cos(radians(lat_right)) * pow(sin(radians(lon_right - lon) / 2), 2)))"""
"""Along the surface of the earth, in kilometres."""
TOO_FAST = f"ts < ts_right and {DISTANCE} > {SPEED_KM_H} * (unix_micros(ts_right) - unix_micros(ts)) / 3.6e9"
"""The later of two calls is written on the right, so that each pair comes once."""


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """A call from the row's number; the source and the check share it."""
    value = F.col("value")
    per_batch, step_ms = params["rows"], params["step_s"] * 1000
    batch, row = F.floor(value / per_batch), F.pmod(value, F.lit(per_batch))
    ms = F.lit(START_S * 1000) + batch * step_ms + F.floor(row * step_ms / F.lit(per_batch))
    caller = F.pmod(F.xxhash64(value), F.lit(params["keys"]))
    return rows.select(
        F.concat(F.lit("+346"), F.lpad(caller.cast("string"), 8, "0")).alias("src"),
        F.timestamp_millis(ms).alias("ts"),
        (36 + _part(caller, 1, 7000) / 1000 + _part(value, 2, 300) / 1000).alias("lat"),
        (-9 + _part(caller, 3, 12000) / 1000 + _part(value, 4, 300) / 1000).alias("lon"),
    )


def _part(value: Any, salt: int, size: int) -> Any:
    return F.pmod(F.xxhash64(value, F.lit(salt)), F.lit(size))


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", params["rows"])
    return columns(reader.option("numPartitions", spark.sparkContext.defaultParallelism).load(), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """``rows`` is a Headrace stream or a DataFrame, streaming or not."""
    calls = rows.withWatermark("ts", DELAY)
    if isinstance(rows, DataFrame):
        others = rows.withWatermark("ts", DELAY).select("src", *[F.col(c).alias(f"{c}_right") for c in ("ts", "lat", "lon")])
        bound = f"ts_right between ts - interval {WITHIN_S} seconds and ts + interval {WITHIN_S} seconds"
        pairs = calls.join(others.withColumnRenamed("src", "src_right"), F.expr(f"src = src_right and {bound} and {TOO_FAST}"))
    else:
        pairs = calls.join(calls, on="src", within=f"{WITHIN_S} seconds", where=TOO_FAST)
    return pairs.select("src", "ts", "ts_right", F.round(F.expr(DISTANCE), 6).alias("km"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
