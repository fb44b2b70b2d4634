"""Calls of one caller within 60 seconds of each other, too far apart for anyone to have travelled. The same conditions on both engines.

Callers have a home and call from within some kilometres of it. Event time advances with every batch, and the rows of a batch are spread
over that advance.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.call_records.records import phone
from benchmarks.rows import drawn, event_ms, numbered

WITHIN_S, DELAY = 60, "10 seconds"
SPEED_KM_H = 2000
EARTH_KM = 6371.0

DISTANCE = f"""2 * {EARTH_KM} * asin(sqrt(pow(sin(radians(lat_right - lat) / 2), 2)
    + cos(radians(lat)) * cos(radians(lat_right)) * pow(sin(radians(lon_right - lon) / 2), 2)))"""
"""The distance along the surface of the earth, in kilometres."""
TOO_FAST = f"ts < ts_right and {DISTANCE} > {SPEED_KM_H} * (unix_micros(ts_right) - unix_micros(ts)) / 3.6e9"
"""The later of two calls is on the right, so that each pair occurs once."""
EVERY_PAIR = "ts < ts_right"


def columns(rows: DataFrame, params: dict[str, Any]) -> DataFrame:
    """A call, made from the row number; used by the source and by the check."""
    value = F.col("value")
    caller = drawn(params["keys"], value)
    return rows.select(
        phone(caller).alias("src"),
        F.timestamp_millis(event_ms(value, params)).alias("ts"),
        (36 + drawn(7000, caller, 1) / 1000 + drawn(300, value, 2) / 1000).alias("lat"),
        (-9 + drawn(12000, caller, 3) / 1000 + drawn(300, value, 4) / 1000).alias("lon"),
    )


def source(spark: SparkSession, params: dict[str, Any]) -> DataFrame:
    return columns(numbered(spark, params), params)


def query(rows: Any, params: dict[str, Any]) -> Any:
    """The query. ``rows`` is a Headrace stream or a DataFrame. With ``every_pair``, pairs that a person could have travelled count too."""
    where = EVERY_PAIR if params.get("every_pair") else TOO_FAST
    calls = rows.withWatermark("ts", DELAY)
    if isinstance(rows, DataFrame):
        others = rows.withWatermark("ts", DELAY).select("src", *[F.col(c).alias(f"{c}_right") for c in ("ts", "lat", "lon")])
        bound = f"ts_right between ts - interval {WITHIN_S} seconds and ts + interval {WITHIN_S} seconds"
        pairs = calls.join(others.withColumnRenamed("src", "src_right"), F.expr(f"src = src_right and {bound} and {where}"))
    else:
        pairs = calls.join(calls, on="src", within=f"{WITHIN_S} seconds", where=where)
    return pairs.select("src", "ts", "ts_right", F.round(F.expr(DISTANCE), 6).alias("km"))


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("append").format("parquet").option("path", str(folder / "output"))
