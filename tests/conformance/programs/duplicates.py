"""Dropping duplicates."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.program import program


@program("dropDuplicates by a key", columns=("id",))
def by_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"])


@program("dropDuplicates by a key and the event time", columns=("id", "ts"))
def by_key_and_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"])


@program("dropDuplicates of all columns")
def of_all_columns(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user", "kind").dropDuplicates()


@program("distinct()")
def distinct(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user", F.col("place.city").alias("city")).distinct()


@program("dropDuplicates in update mode", mode="update")
def in_update_mode(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("kind").dropDuplicates()


@program("dropDuplicates with a watermark on another column", columns=("kind",))
def late_by_another_column(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "20 seconds").dropDuplicates(["kind"])


@program("dropDuplicatesWithinWatermark", columns=("user",))
def within_watermark(spark: SparkSession, events: DataFrame) -> DataFrame:
    # Which row of a batch is the first is up to the engine, so the rows of a batch have one time.
    timed = events.select("user", F.timestamp_seconds(1_700_000_000 + F.floor(events.id / 40) * 60).alias("at"))
    return timed.withWatermark("at", "100 seconds").dropDuplicatesWithinWatermark(["user"])


@program("dropDuplicatesWithinWatermark: the first row of a key that comes, with all columns")
def within_watermark_first(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "30 seconds").dropDuplicatesWithinWatermark(["user", "kind"]).select("id", "user", "kind", "ts")


@program("dropDuplicates: the first row of a key that comes, with all columns")
def first_that_comes(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["user", "kind"]).select("id", "user", "kind", "amount", "ts")


@program("dropDuplicatesWithinWatermark of all columns")
def within_watermark_all(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.select("user", "kind", F.date_trunc("minute", "ts").alias("at"))
        .withWatermark("at", "1 minute")
        .dropDuplicatesWithinWatermark()
    )


@program("dropDuplicates, then a running count", mode="update")
def then_counted(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user", "id").dropDuplicates(["id", "user"]).groupBy("user").count()


@program("dropDuplicates, then a window")
def then_windowed(spark: SparkSession, events: DataFrame) -> DataFrame:
    unique = events.withWatermark("ts", "30 seconds").select("id", "ts").dropDuplicates(["id", "ts"])
    return unique.groupBy(F.window("ts", "1 minute")).count()


@program("dropDuplicatesWithinWatermark, then a window")
def within_then_windowed(spark: SparkSession, events: DataFrame) -> DataFrame:
    timed = events.select("kind", F.date_trunc("minute", "ts").alias("at")).withWatermark("at", "1 minute")
    return timed.dropDuplicatesWithinWatermark(["kind", "at"]).groupBy(F.window("at", "2 minutes")).count()


@program("dropDuplicates on a struct and an expression before")
def by_struct(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("place", (F.col("amount") % 2).alias("odd")).dropDuplicates(["place", "odd"])
