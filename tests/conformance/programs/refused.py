"""What Spark refuses, and what only Headrace refuses."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.program import NOT_YET, SPARK_REFUSES, program


@program("append mode without a watermark", claim=SPARK_REFUSES, why="streaming aggregations without watermark")
def append_without_watermark(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").count()


@program("sorting in append mode", claim=SPARK_REFUSES, why="Sorting is not supported")
def sorting(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count().orderBy("window")


@program("outer join without a bound", inputs="clicks views", claim=SPARK_REFUSES, why="without a watermark in the join keys")
def unbounded_outer(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    return clicks.join(views, clicks.click_ad == views.ad, "left")


@program("outer join in update mode", inputs="clicks views", mode="update", claim=SPARK_REFUSES, why="only in Append output mode")
def outer_in_update_mode(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    on = F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 1 minute")
    return views.withWatermark("view_ts", "1 minute").join(clicks.withWatermark("click_ts", "1 minute"), on, "left")


@program("two running aggregates", mode="update", claim=SPARK_REFUSES, why="global watermark")
def two_running_aggregates(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user", "kind").count().groupBy("user").agg(F.max("count"))


@program("session windows in update mode", mode="update", claim=SPARK_REFUSES, why="session window")
def sessions_in_update_mode(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "1 minute").groupBy(F.session_window("ts", "1 minute")).count()


@program("dropDuplicatesWithinWatermark without a watermark", claim=SPARK_REFUSES, why="without watermark")
def within_no_watermark(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.dropDuplicatesWithinWatermark(["user"])


@program("complete mode without an aggregate", mode="complete", claim=SPARK_REFUSES, why="no streaming aggregations")
def complete_without_aggregate(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user").dropDuplicates()


@program("full outer join with a table", mode="update", claim=SPARK_REFUSES, why="FullOuter joins with streaming")
def full_with_a_table(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").count().join(spark.createDataFrame([("ada",)], "user string"), "user", "full")


@program("a join with a bound on another time", inputs="clicks views", claim=NOT_YET, why="a bound on a column that has no watermark")
def bound_elsewhere(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    shown = views.withWatermark("view_ts", "10 seconds").withColumn("shown", F.col("view_ts") + F.expr("INTERVAL 5 SECONDS"))
    timed = clicks.withWatermark("click_ts", "10 seconds")
    return timed.join(shown, F.expr("click_ad = ad AND click_ts BETWEEN shown AND shown + INTERVAL 30 SECONDS"))
