"""The streams of Nexmark, as a program declares them: the same tables for both engines, and as plain tables for the check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.nexmark.events import CHANNELS, DELAY, auctions, bids, persons, side_input
from benchmarks.rows import numbered


@dataclass(frozen=True)
class Tables:
    """Streams, or tables with the same columns."""

    person: DataFrame
    auction: DataFrame
    bid: DataFrame
    bid_now: DataFrame
    """Bids by the time at which they are processed, ``p_time``."""
    side_input: DataFrame
    """A static table: a value for each key."""

    def register(self) -> None:
        """Make them views, for SQL."""
        for name in ("person", "auction", "bid", "bid_now", "side_input"):
            getattr(self, name).createOrReplaceTempView(name)


def tables(spark: SparkSession, rows: DataFrame, params: dict[str, Any]) -> Tables:
    """The tables over row numbers in the column ``value``. ``withWatermark`` has no effect on rows that are no stream."""
    made = bids(rows, params)
    return Tables(
        persons(rows, params).withWatermark("dateTime", DELAY),
        auctions(rows, params).withWatermark("dateTime", DELAY),
        made.withWatermark("dateTime", DELAY),
        made.drop("dateTime").withColumn("p_time", F.current_timestamp()).withWatermark("p_time", "0 seconds"),
        side_input(spark.range(CHANNELS).withColumnRenamed("id", "value")),
    )


def streams(spark: SparkSession, params: dict[str, Any]) -> Tables:
    """The streams. All come from one source of events."""
    return tables(spark, numbered(spark, params).select("value"), params)


def so_far(spark: SparkSession, rows: int, params: dict[str, Any]) -> Tables:
    """The same as tables, over the first events."""
    return tables(spark, spark.range(rows).withColumnRenamed("id", "value"), params)
