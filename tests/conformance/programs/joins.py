"""Joins of two streams, and of streams with tables."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.data import users
from tests.conformance.program import program

MATCH = "ad = click_ad AND click_ts >= view_ts AND click_ts <= view_ts + interval 1 minute"


def _timed(clicks: DataFrame, views: DataFrame) -> tuple[DataFrame, DataFrame]:
    return clicks.withWatermark("click_ts", "20 seconds"), views.withWatermark("view_ts", "10 seconds")


@program("inner join within a time range, as in Spark's guide", inputs="clicks views")
def inner_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH))


@program("left outer join within a time range", inputs="clicks views", quick=True)
def left_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH), "leftOuter")


@program("right outer join within a time range", inputs="clicks views")
def right_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return clicks.join(views, F.expr(MATCH), "right_outer")


@program("full outer join within a time range", inputs="clicks views")
def full_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH), "full_outer")


@program("left semi join within a time range", inputs="clicks views")
def semi_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH), "leftsemi")


@program("symmetric time range with between", inputs="clicks views")
def between_in_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    near = F.col("click_ts").between(F.col("view_ts") - F.expr("interval 30 seconds"), F.col("view_ts") + F.expr("interval 30 seconds"))
    return clicks.join(views, (F.col("ad") == F.col("click_ad")) & near)


@program("time range in both directions, of different width, left outer", inputs="clicks views")
def lopsided(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    on = F.expr("ad = click_ad AND click_ts > view_ts - interval 5 seconds AND click_ts < view_ts + interval 2 minutes")
    return views.join(clicks, on, "left")


@program("a further condition on both sides, left outer", inputs="clicks views")
def further_condition(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH + " AND cost + length(click_user) > 10"), "left")


@program("a condition on the outer side alone", inputs="clicks views")
def outer_side_condition(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH + " AND country = 'no'"), "left")


@program("a condition on the inner side alone", inputs="clicks views")
def inner_side_condition(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH + " AND click_user = 'ada'"), "left")


@program("keys that are expressions", inputs="clicks views")
def expression_keys(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr("ad % 5 = click_ad % 5 AND click_ts BETWEEN view_ts AND view_ts + interval 5 seconds"))


@program("two keys, one of them text", inputs="clicks views")
def two_keys(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views.withColumn("view_user", F.expr("elt(1 + ad % 3, 'ada', 'bob', 'cy')")))
    on = [views.ad == clicks.click_ad, views.view_user == clicks.click_user, clicks.click_ts >= views.view_ts]
    return views.join(clicks, on)


@program("null-safe equality", inputs="clicks views")
def null_safe(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks.withColumn("k", F.expr("nullif(click_ad, 3)")), views.withColumn("v", F.expr("nullif(ad, 3)")))
    return views.join(clicks, F.expr("v <=> k AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds"))


@program("inner join without a bound in time: rows are kept for ever", inputs="clicks views")
def unbounded(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    return clicks.join(views, clicks.click_ad == views.ad)


@program("the same with watermarks", inputs="clicks views")
def unbounded_with_watermarks(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    # Spark drops late rows of such a join one batch later than of others. Here none are late.
    clicks, views = clicks.withWatermark("click_ts", "1 hour"), views.withWatermark("view_ts", "1 hour")
    return clicks.join(views.withColumnRenamed("ad", "click_ad"), "click_ad")


@program("a bound on one side only, with a watermark on one side only", inputs="clicks views")
def one_watermark(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    return clicks.join(views.withWatermark("view_ts", "1 hour"), F.expr("ad = click_ad AND click_ts > view_ts"))


@program("inner join in update mode", inputs="clicks views", mode="update")
def inner_update(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH))


@program("join on columns of one name", inputs="clicks views")
def using(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    left = clicks.withColumnRenamed("click_ad", "ad").withWatermark("click_ts", "20 seconds")
    return left.join(views.withWatermark("view_ts", "10 seconds"), ["ad"]).where(
        "view_ts between click_ts - interval 30 seconds and click_ts"
    )


@program("join on the event time", inputs="clicks views")
def on_event_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    left = clicks.select(F.date_trunc("minute", "click_ts").alias("at"), "click_user").withWatermark("at", "1 minute")
    right = views.select(F.date_trunc("minute", "view_ts").alias("at"), "country").withWatermark("at", "1 minute")
    return left.join(right, "at")


@program("left outer join on the event time and a key", inputs="clicks views")
def left_on_event_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    left = clicks.select(F.date_trunc("minute", "click_ts").alias("at"), "click_ad").withWatermark("at", "30 seconds")
    right = views.select(F.date_trunc("minute", "view_ts").alias("view_at"), "ad").withWatermark("view_at", "30 seconds")
    return left.join(right, F.expr("at = view_at AND click_ad = ad"), "left")


@program("join of two windowed aggregates on the window", inputs="clicks views")
def on_windows(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    left = clicks.groupBy(F.window("click_ts", "1 minute")).agg(F.count("*").alias("clicks"))
    right = views.groupBy(F.window("view_ts", "1 minute")).agg(F.sum("cost").alias("cost"))
    return left.join(right, "window")


@program("left outer join of windowed aggregates", inputs="clicks views")
def left_on_windows(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    left = views.groupBy(F.window("view_ts", "30 seconds"), "country").agg(F.count("*").alias("views"))
    right = clicks.groupBy(F.window("click_ts", "30 seconds")).agg(F.count("*").alias("clicks")).withColumnRenamed("window", "w")
    return left.join(right, F.expr("window = w"), "left")


@program("join of rows on windows made in select", inputs="clicks views")
def rows_on_windows(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    left = clicks.select(F.window("click_ts", "1 minute").alias("w"), "click_ad")
    right = views.select(F.window("view_ts", "1 minute").alias("w"), "ad")
    return left.join(right, "w").where("ad = click_ad")


@program("a join, then a window over its results", inputs="clicks views")
def join_then_window(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    return views.join(clicks, F.expr(MATCH)).groupBy(F.window("view_ts", "1 minute"), "country").agg(F.count("*").alias("n"))


@program("aggregates, then a join with a stream", inputs="clicks events")
def aggregate_then_join(spark: SparkSession, clicks: DataFrame, events: DataFrame) -> DataFrame:
    totals = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "user").agg(F.sum("amount").alias("s"))
    named = totals.select(F.window_time("window").alias("at"), "user", "s")
    on = F.expr("user = click_user AND click_ts BETWEEN at - interval 1 minute AND at")
    return clicks.withWatermark("click_ts", "10 seconds").join(named, on)


@program("three streams", inputs="clicks views events")
def three_streams(spark: SparkSession, clicks: DataFrame, views: DataFrame, events: DataFrame) -> DataFrame:
    clicks, views = _timed(clicks, views)
    both = views.join(clicks, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds"))
    return both.drop("view_ts").join(
        events.withWatermark("ts", "10 seconds").select("user", "kind", "ts"),
        F.expr("user = click_user AND ts BETWEEN click_ts AND click_ts + interval 5 seconds"),
    )


@program("a stream joined with itself, by aliases", inputs="clicks")
def with_itself(spark: SparkSession, clicks: DataFrame) -> DataFrame:
    timed = clicks.withWatermark("click_ts", "10 seconds")
    on = "a.click_ad = b.click_ad AND a.click_ts < b.click_ts AND b.click_ts < a.click_ts + interval 40 seconds"
    pairs = timed.alias("a").join(timed.alias("b"), F.expr(on))
    return pairs.select("a.click_ad", F.col("a.click_ts").alias("first"), F.col("b.click_ts").alias("second"))


@program("stream-static inner join before an aggregate", mode="update")
def static_before(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.join(users(spark), "user").groupBy("job").agg(F.sum("amount").alias("s"), F.max("age").alias("age"))


@program("stream-static left join after an aggregate", mode="complete")
def static_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").count().join(users(spark), "user", "left")


@program("static-stream right join after an aggregate", mode="update")
def static_on_the_left(spark: SparkSession, events: DataFrame) -> DataFrame:
    return users(spark).join(events.groupBy("user").count(), "user", "right")


@program("stream-static join between two aggregates")
def static_between(spark: SparkSession, events: DataFrame) -> DataFrame:
    minutes = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "user").count()
    named = minutes.join(F.broadcast(users(spark)), "user")
    return named.groupBy(F.window("window", "2 minutes"), "job").agg(F.sum("count").alias("n"))


@program("left semi and left anti join with a table", mode="update")
def semi_static(spark: SparkSession, events: DataFrame) -> DataFrame:
    known = users(spark)
    return events.join(known, "user", "left_anti").groupBy("user", "kind").count()
