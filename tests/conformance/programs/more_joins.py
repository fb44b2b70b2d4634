"""Joins, further forms."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from tests.conformance.data import users
from tests.conformance.program import program


def timed(clicks: DataFrame, views: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Both streams with watermarks."""
    return clicks.withWatermark("click_ts", "20 seconds"), views.withWatermark("view_ts", "10 seconds")


@program("join on windows made in withColumn, beside their event times", inputs="clicks views")
def j_window(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    left = c.withColumn("w", F.window("click_ts", "1 minute"))
    right = v.withColumn("w", F.window("view_ts", "1 minute"))
    return left.join(right, (left.w == right.w) & (left.click_ad == right.ad), "inner").select(
        left.w.start.alias("s"), "ad", "click_user", "country"
    )


@program("left outer join on a window and a key", inputs="clicks views")
def j_window_left(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    left = c.select(F.window("click_ts", "1 minute"), F.col("click_ad").alias("ad"), "click_user")
    right = v.select("ad", "country", F.window("view_ts", "1 minute"))
    return right.join(left, ["ad", "window"], "leftOuter")


@program("full outer join on a window and a key", inputs="clicks views")
def j_window_full(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    left = c.select(F.window("click_ts", "1 minute"), F.col("click_ad").alias("ad"), "click_user")
    right = v.select("ad", "country", F.window("view_ts", "1 minute"))
    return right.join(left, ["ad", "window"], "full")


@program("left outer join on windows, by aliases", inputs="clicks views")
def join_two_windows(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds").withColumn("w", F.window("click_ts", "30 seconds"))
    v = views.withWatermark("view_ts", "10 seconds").withColumn("w", F.window("view_ts", "30 seconds"))
    return (
        c.alias("c")
        .join(v.alias("v"), F.expr("c.click_ad = v.ad AND c.w = v.w"), "leftOuter")
        .select("c.click_ad", "c.click_user", F.col("c.w.start").alias("s"), "v.country")
    )


@program("left semi join with a range before the event", inputs="clicks views")
def j_semi_window(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    return v.join(c, F.expr("ad = click_ad AND view_ts BETWEEN click_ts - interval 30 seconds AND click_ts"), "left_semi")


@program("RIGHT OUTER JOIN in SQL", inputs="clicks views")
def j_sql_right(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    c.createOrReplaceTempView("c")
    v.createOrReplaceTempView("v")
    return spark.sql("""
                SELECT c.*, v.ad, v.country FROM v RIGHT OUTER JOIN c ON ad = click_ad AND view_ts >= click_ts - INTERVAL
                20 SECONDS AND view_ts <= click_ts
            """)


@program("FULL OUTER JOIN in SQL, with coalesce", inputs="clicks views")
def j_sql_full(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    c.createOrReplaceTempView("c")
    v.createOrReplaceTempView("v")
    return spark.sql("""
                SELECT coalesce(ad, click_ad) id, country, click_user FROM v FULL OUTER JOIN c ON ad = click_ad AND
                view_ts BETWEEN click_ts - INTERVAL 20 SECONDS AND click_ts WHERE coalesce(ad, click_ad) > 2
            """)


@program("JOIN ... USING in SQL", inputs="clicks views")
def j_sql_using(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks.withColumnRenamed("click_ad", "ad"), views)
    c.createOrReplaceTempView("c")
    v.createOrReplaceTempView("v")
    return spark.sql("""
                SELECT ad, country, click_user FROM v JOIN c USING (ad) WHERE click_ts >= view_ts AND click_ts <= view_ts
                + INTERVAL 10 SECONDS
            """)


@program("a join, then dropDuplicates", inputs="clicks views")
def j_then_dedup(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds"))
    return j.select("ad", "click_user").dropDuplicates(["ad", "click_user"])


@program("a join, then dropDuplicatesWithinWatermark", inputs="clicks views", columns=("ad",))
def j_then_dedup_within(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds"))
    return j.select("ad", "view_ts").dropDuplicatesWithinWatermark(["ad"])


@program("a join, then dropDuplicates by the event time", inputs="clicks views")
def join_dedup_time(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds")
    v = views.withWatermark("view_ts", "10 seconds")
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + INTERVAL 20 SECONDS"))
    return j.select("ad", "view_ts").dropDuplicates(["ad", "view_ts"])


@program("rows joined with windows of another stream", inputs="clicks views")
def j_agg_raw(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    a = v.groupBy(F.window("view_ts", "1 minute"), "ad").agg(F.sum("cost").alias("cost"))
    right = c.select(F.window("click_ts", "1 minute"), F.col("click_ad").alias("ad"), "click_user")
    return right.join(a, ["window", "ad"])


@program("a join, then session windows", inputs="clicks views")
def j_session(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds")).drop("view_ts")
    return j.groupBy(F.session_window("click_ts", "30 seconds"), "click_user").agg(F.count("*").alias("n"))


@program("two aggregates of one stream, joined")
def j_self_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    e = events.withWatermark("ts", "10 seconds")
    a = e.groupBy(F.window("ts", "1 minute"), "kind").count()
    b = e.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("total"))
    return a.join(b, "window").select("window.start", "kind", (F.col("count") / F.col("total")).alias("share"))


@program("joins with tables before and behind a join", inputs="clicks views")
def j_static_both(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    ads = spark.createDataFrame([(i, f"ad{i}") for i in range(25)], "ad long, title string")
    j = v.join(F.broadcast(ads), "ad", "left").join(
        c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + interval 20 seconds")
    )
    return j.join(users(spark).withColumnRenamed("user", "click_user"), "click_user", "left")


@program("joins with tables and a stream, then windows", inputs="clicks views")
def four(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds").join(users(spark).withColumnRenamed("user", "click_user"), "click_user", "left")
    v = views.withWatermark("view_ts", "10 seconds")
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + INTERVAL 20 SECONDS"))
    return j.groupBy(F.window("click_ts", "1 minute"), "job").agg(
        F.sum("cost").alias("c"), F.countDistinct("ad") if False else F.approx_count_distinct("ad")
    )


@program("a table joined by a range", mode="update")
def j_static_range(spark: SparkSession, events: DataFrame) -> DataFrame:
    bands = spark.createDataFrame([(0, 30, "low"), (30, 70, "mid"), (70, 200, "hi")], "lo int, hi int, band string")
    return events.join(bands, (events.amount >= bands.lo) & (events.amount < bands.hi)).groupBy("band").count()


@program("a cross join with a table", mode="complete")
def j_static_cross(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.crossJoin(spark.createDataFrame([("a",), ("b",)], "x string")).groupBy("x", "kind").count()


@program("results that a table does not have", mode="update")
def j_static_anti(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").count().join(users(spark), "user", "left_anti")


@program("an aggregated table", mode="update")
def j_static_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    top = users(spark).groupBy("job").agg(F.max("age").alias("age"), F.first("user").alias("user"))
    return events.join(top, "user").groupBy("job").agg(F.sum("amount"))


@program("a ranked table", mode="update")
def j_static_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    ranked = users(spark).withColumn("r", F.row_number().over(Window.orderBy("age")))
    return events.join(ranked, "user").groupBy("r").count()


@program("rows without a partner: left outer join and a filter", inputs="clicks views")
def anti_by_hand(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds")
    v = views.withWatermark("view_ts", "10 seconds")
    j = v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + INTERVAL 20 SECONDS"), "left")
    return j.filter(F.col("click_ad").isNull()).select("ad", "view_ts")


@program("keys of different types", inputs="clicks views")
def join_types(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds")
    v = views.withColumn("ad", F.col("ad").cast("string")).withWatermark("view_ts", "10 seconds")
    return v.join(c, F.expr("ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + INTERVAL 20 SECONDS"))


@program("a struct as join key", inputs="events orders")
def join_struct(spark: SparkSession, events: DataFrame, orders: DataFrame) -> DataFrame:
    e = events.withWatermark("ts", "10 seconds").select(
        F.struct((F.col("amount") % 3).alias("a"), F.lit("x").alias("b")).alias("k"), "ts", "id"
    )
    o = orders.withWatermark("created", "10 seconds").select(
        F.struct(F.col("shop").cast("long").alias("a"), F.lit("x").alias("b")).alias("k"), "created", "order_id"
    )
    return e.join(o, (e.k == o.k) & F.expr("created BETWEEN ts AND ts + INTERVAL 2 SECONDS")).select("id", "order_id")


@program("an array as join key", inputs="events orders")
def join_array(spark: SparkSession, events: DataFrame, orders: DataFrame) -> DataFrame:
    e = events.withWatermark("ts", "10 seconds").select(F.array("kind").alias("k"), "ts", "id")
    o = orders.withWatermark("created", "10 seconds").select(
        F.array(F.when(F.col("shop") == 0, "open").otherwise("close")).alias("k"), "created", "order_id"
    )
    return e.join(o, (e.k == o.k) & F.expr("created BETWEEN ts AND ts + INTERVAL 2 SECONDS")).select("id", "order_id")


@program("LIKE and functions in the condition", inputs="clicks views")
def join_like(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds")
    v = views.withWatermark("view_ts", "10 seconds")
    return v.join(
        c,
        F.expr("""
                ad = click_ad AND click_ts BETWEEN view_ts AND view_ts + INTERVAL 20 SECONDS AND (click_user LIKE
                concat(substr(country, 1, 0), 'a%') OR upper(country) = 'NO' AND length(click_user) >= cost % 3)
            """),
    )


@program("a join without bounds whose event times nobody uses", inputs="clicks views")
def join_pruned(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "1 second")
    v = views.withWatermark("view_ts", "1 second")
    return c.join(v, c.click_ad == v.ad).select("ad", "click_user", "country")


@program("a join without bounds, one event time in the results", inputs="clicks views")
def join_half_pruned(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "1 hour")
    v = views.withWatermark("view_ts", "1 hour")
    return c.join(v, c.click_ad == v.ad).select("ad", "click_user", "view_ts")


@program("left semi join with a range to both sides", inputs="clicks views")
def semi_range(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c = clicks.withWatermark("click_ts", "20 seconds")
    v = views.withWatermark("view_ts", "10 seconds")
    return c.join(
        v,
        F.expr("""
                ad = click_ad AND view_ts >= click_ts - interval 10 seconds AND view_ts <= click_ts + interval 10 seconds
            """),
        "leftsemi",
    ).select("click_ad", "click_user")


@program("a union of streams with watermarks, then a join", inputs="events clicks views")
def union_join(spark: SparkSession, events: DataFrame, clicks: DataFrame, views: DataFrame) -> DataFrame:
    u = (
        events.withWatermark("ts", "10 seconds")
        .select(F.col("amount").alias("k"), F.col("ts").alias("t"))
        .union(clicks.withWatermark("click_ts", "30 seconds").select("click_ad", "click_ts"))
    )
    v = views.withWatermark("view_ts", "10 seconds")
    return u.join(v, F.expr("k = ad AND view_ts BETWEEN t AND t + interval 10 seconds"))


@program("windows joined with single rows, by a range around each window", inputs="clicks views", quick=True)
def j_window_with_rows(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    c, v = timed(clicks, views)
    counted = v.groupBy(F.window("view_ts", "20 seconds"), "ad").count()
    near = F.expr("ad = click_ad AND click_ts BETWEEN window.start - interval 30 seconds AND window.end + interval 30 seconds")
    return counted.join(c, near).select("window", "ad", "count", "click_user", "click_ts")
