"""Windows of event time."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.program import program


@program("tumbling window with a watermark", quick=True)
def tumbling(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "30 seconds").groupBy(F.window("ts", "1 minute"), "user").count()


@program("tumbling window in update mode", mode="update")
def tumbling_update(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "30 seconds").groupBy(F.window("ts", "1 minute"), "user").agg(F.sum("amount").alias("s"))


@program("tumbling window in complete mode, without a watermark", mode="complete")
def tumbling_complete(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("ts", "90 seconds")).agg(F.avg("value").alias("mean"))


@program("window without a watermark in update mode", mode="update")
def window_without_watermark(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.window(events.ts, "2 minutes"), events.kind).count()


@program("sliding window")
def sliding(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").groupBy(F.window("ts", "2 minutes", "30 seconds"), "kind").agg(F.count("*").alias("n"))


@program("sliding window whose size is no multiple of its slide", mode="update")
def sliding_odd(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").groupBy(F.window("ts", "50 seconds", "20 seconds")).agg(F.max("amount"))


@program("window with a start offset")
def window_with_offset(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute", "1 minute", "15 seconds")).agg(F.sum("amount"))


@program("window.start and window.end in the results")
def window_fields(spark: SparkSession, events: DataFrame) -> DataFrame:
    counts = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").count()
    return counts.select("window.start", F.col("window.end").alias("until"), "kind", "count")


@program("window with an alias")
def window_alias(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute").alias("minute")).agg(F.count("*").alias("n"))


@program("expressions and HAVING over windows")
def window_having(spark: SparkSession, events: DataFrame) -> DataFrame:
    per = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "user").agg((F.sum("value") * 2).alias("twice"))
    return per.filter(F.col("twice") > 20).withColumn("rounded", F.round("twice", 1))


@program("session window")
def sessions(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").groupBy(F.session_window("ts", "10 seconds"), "user").agg(F.count("*").alias("n"))


@program("session window in complete mode", mode="complete")
def sessions_complete(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user", F.session_window("ts", "20 seconds").alias("visit")).agg(F.sum("amount").alias("s"))


@program("a window made in select, before groupBy")
def window_in_select(spark: SparkSession, events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "30 seconds").select("user", "amount", F.window("ts", "1 minute").alias("w"))
    return timed.groupBy("w", "user").agg(F.sum("amount").alias("s"))


@program("a window in withColumn, then groupBy of its start", mode="update")
def window_start_as_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withColumn("w", F.window("ts", "1 minute")).groupBy(F.col("w.start").alias("minute")).count()


@program("a sliding window in select, before groupBy")
def sliding_in_select(spark: SparkSession, events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "30 seconds").select(F.window("ts", "1 minute", "30 seconds").alias("w"), "kind")
    return timed.groupBy("w", "kind").count()


@program("chained windows: minutes, then two minutes by window_time")
def chained_window_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    minutes = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "user").count()
    return minutes.groupBy(F.window(F.window_time("window"), "2 minutes")).agg(F.sum("count").alias("n"), F.max("count").alias("most"))


@program("chained windows: a window of a window")
def chained_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    minutes = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").agg(F.sum("amount").alias("s"))
    return minutes.groupBy(F.window("window", "3 minutes"), "kind").agg(F.avg("s").alias("mean"))


@program("an aggregate by the same window again")
def window_again(spark: SparkSession, events: DataFrame) -> DataFrame:
    per_user = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "user").count()
    return per_user.groupBy("window").agg(F.max("count").alias("most"))


@program("window_time in the results")
def window_time_shown(spark: SparkSession, events: DataFrame) -> DataFrame:
    counts = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).count()
    return counts.select(F.window_time("window").alias("at"), "count")


@program("event time itself as a key")
def event_time_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "30 seconds").groupBy("ts", "kind").count()


@program("event time cut to minutes as a key, in update mode", mode="update")
def truncated_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "30 seconds").groupBy(F.date_trunc("minute", "ts").alias("m")).count()


@program("a window over a computed time", mode="update")
def computed_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.window((F.col("ts").cast("long") + 30).cast("timestamp"), "1 minute")).count()


@program("a window over a time that was parsed from text")
def parsed_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    text = events.withColumn("text", F.date_format("ts", "yyyy-MM-dd HH:mm:ss"))
    timed = text.withColumn("at", F.to_timestamp("text")).withWatermark("at", "20 seconds")
    return timed.groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("n"))


@program("complete mode keeps late rows", mode="complete")
def complete_with_watermark(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 minute")).count()


@program("sorted windows in complete mode", mode="complete", ordered=True)
def sorted_windows(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("ts", "1 minute"), "kind").count().orderBy("window", "kind")


@program("sessions with a gap of days, and several keys")
def long_sessions(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 minutes").groupBy("user", "kind", F.session_window("ts", "1 minute 30 seconds")).agg(F.max("amount"))
    )


@program("distinct values in each window")
def distinct_in_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    timed = events.withWatermark("ts", "30 seconds")
    return timed.groupBy(F.window("ts", "1 minute")).agg(
        F.approx_count_distinct("user").alias("users"), F.collect_set("kind").alias("kinds")
    )
