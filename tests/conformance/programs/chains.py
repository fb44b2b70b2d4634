"""Operators in a chain."""

from __future__ import annotations

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.conformance.data import users
from tests.conformance.program import program


@program("dropDuplicates behind windows")
def c_dedup_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind", "user").count()
    return a.select("window", "kind").dropDuplicates(["window", "kind"])


@program("dropDuplicatesWithinWatermark behind windows", columns=("kind",))
def c_dedup_within_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "30 seconds"), "kind").count()
    return a.select(F.window_time("window").alias("at"), "kind").dropDuplicatesWithinWatermark(["kind"])


@program("distinct() behind windows")
def c_distinct_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").count()
    return a.select("window", (F.col("count") % 2).alias("odd")).distinct()


@program("three windows, one behind the other")
def c_three(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "10 seconds"), "kind", "user").count()
    b = a.groupBy(F.window("window", "30 seconds"), "kind").agg(F.sum("count").alias("n"))
    return b.groupBy(F.window("window", "1 minute")).agg(F.max("n").alias("m"))


@program("sliding windows, then tumbling ones")
def c_sliding_tumbling(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "30 seconds", "10 seconds"), "kind").agg(F.avg("amount").alias("m"))
    return a.select(F.window_time("window").alias("t"), "kind", "m").groupBy(F.window("t", "1 minute"), "kind").agg(F.max("m"))


@program("sessions, then windows")
def c_session_tumbling(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.session_window("ts", "5 seconds"), "user").count()
    return a.groupBy(F.window(F.window_time("session_window"), "2 minutes")).agg(F.count("*").alias("sessions"), F.avg("count"))


@program("the greatest of each window by max of a struct")
def c_top(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").count()
    return a.groupBy("window").agg(F.max(F.struct("count", "kind")).alias("m")).select("window.start", "m.kind", "m.count")


@program("steps between two windows")
def c_map_between(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "30 seconds"), "kind").count()
    b = a.withColumn("t", F.window_time("window")).select("t", "kind", (F.col("count") * 2).alias("n")).filter("n > 2")
    return b.groupBy(F.window("t", "1 minute")).agg(F.sum("n"))


@program("dropDuplicates with event time, then windows by key")
def d_then(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .dropDuplicates(["id", "ts"])
        .groupBy(F.window("ts", "1 minute"), "kind")
        .agg(F.sum("amount"))
    )


@program("dropDuplicates by a window")
def d_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    e = events.withWatermark("ts", "10 seconds").withColumn("w", F.window("ts", "30 seconds"))
    return e.select("w", "user").dropDuplicates(["w", "user"])


@program("dropDuplicatesWithinWatermark in a view, then SQL")
def d_view(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["user", "kind"]).createOrReplaceTempView("unique_ev")
    return spark.sql("SELECT user, kind FROM unique_ev WHERE amount >= 0")


@program("distinct(), then a join with a table")
def d_static(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user").distinct().join(users(spark), "user", "left")


@program("na.drop, fillna, dropDuplicates")
def d_na(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user", "kind").na.drop().fillna("x").dropDuplicates()


@program("dropDuplicates, then select without the event time")
def dedup_drop(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").dropDuplicates(["id"]).select("id")


@program("dropDuplicates with a watermark, then a running count", mode="update")
def dedup_then_count(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").dropDuplicates(["id"]).groupBy("kind").count()


@program("distinct() of rows with arrays and structs", inputs="orders")
def o_distinct(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.select("customer", "items", "token", "paid").distinct()


@program("dropDuplicates by an array", columns=("tags",))
def tags_dedup(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["tags"])


@program("a union of three streams, then windows", inputs="events clicks views")
def u_three(spark: SparkSession, events: DataFrame, clicks: DataFrame, views: DataFrame) -> DataFrame:
    a = events.select(F.col("ts").alias("t"), F.lit("e").alias("s"))
    b = clicks.select(F.col("click_ts").alias("t"), F.lit("c").alias("s"))
    c = views.select(F.col("view_ts").alias("t"), F.lit("v").alias("s"))
    return a.union(b).union(c).withWatermark("t", "30 seconds").groupBy(F.window("t", "1 minute"), "s").count()


@program("a union by reduce", inputs="events clicks", mode="complete")
def u_reduce(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    from functools import reduce

    fs = [events.select("user"), clicks.select(F.col("click_user").alias("user"))]
    return reduce(lambda a, b: a.unionAll(b), fs).groupBy("user").count()


@program("dropDuplicates of a union with deduplicated rows", inputs="events clicks")
def u_dedup(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    return events.select("user").dropDuplicates().union(clicks.select("click_user")).dropDuplicates(["user"])


@program("a union of two aggregates in update mode", mode="update", inputs="events clicks")
def u_update(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    return events.groupBy(F.col("user").alias("u")).count().union(clicks.groupBy("click_user").count())


@program("a union of two halves of a stream", mode="update")
def halves(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.where(F.abs(F.hash("id")) % 2 == 0)
    b = events.where(F.abs(F.hash("id")) % 2 == 1)
    return a.unionByName(b).groupBy("kind").agg(F.count("*").alias("n"))


@program("limit behind windows")
def l_after_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "10 minutes")).agg(F.count("*").alias("n")).limit(5)


@program("limit behind dropDuplicates", quick=True)
def l_dedup(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("kind").dropDuplicates().limit(2).select(F.lit(1).alias("one"))


@program("applyInPandas over the results of each batch")
def apply_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "kind")
        .count()
        .select(F.col("window.start").alias("s"), "kind", "count")
    )
    return a.groupBy("s").applyInPandas(lambda d: d.sort_values(["count", "kind"], ascending=False).head(1), a.schema)


@program("applyInPandas of each batch, then a running sum", mode="update")
def group_apply_then(spark: SparkSession, events: DataFrame) -> DataFrame:
    def f(d):
        return pd.DataFrame({"kind": d["kind"].head(1), "n": [len(d)]})

    return events.groupBy("kind").applyInPandas(f, "kind string, n long").groupBy("kind").agg(F.sum("n").alias("n"))


@program("applyInArrow over the results of each batch")
def apply_arrow(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "kind")
        .agg(F.sum("amount").alias("s"))
        .select(F.col("window.start").alias("w"), "kind", "s")
    )
    return a.groupBy("w").applyInArrow(lambda t: t.sort_by([("s", "descending"), ("kind", "ascending")]).slice(0, 2), a.schema)


@program("mapInArrow before and behind an aggregate", mode="update")
def map_in_arrow(spark: SparkSession, events: DataFrame) -> DataFrame:
    def f(it):
        yield from it

    return (
        events.select("kind", "amount")
        .mapInArrow(f, "kind string, amount long")
        .groupBy("kind")
        .agg(F.sum("amount").alias("s"))
        .mapInArrow(f, "kind string, s long")
    )


@program("a UDF inside an aggregate's argument", mode="update")
def udf_in_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    sq = F.udf(lambda x: x * x, T.LongType())
    return events.groupBy("kind").agg(F.sum(sq("amount")).alias("s"), F.max(sq(F.col("amount")) + 1))


@program("a UDF over aggregates", mode="update")
def udf_over_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    f = F.udf(lambda a, n: float(a) / n, "double")
    return events.groupBy("kind").agg(f(F.sum("amount"), F.count("*")).alias("m"))


@program("observe before an aggregate", mode="update")
def ob_before(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.observe("in", F.count("*").alias("n")).groupBy("kind").count()


@program("observe behind an aggregate", mode="update")
def ob_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").count().observe("out", F.count("*").alias("n"), F.max("count").alias("m"))


@program("dropDuplicates, then withWatermark and windows", quick=True)
def w_on_results(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.dropDuplicates(["id"]).withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count()


@program("a join without bounds, then withWatermark and windows", inputs="clicks views")
def join_then_wm(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    return (
        clicks.join(views, clicks.click_ad == views.ad)
        .withWatermark("click_ts", "10 seconds")
        .groupBy(F.window("click_ts", "1 minute"), "country")
        .count()
    )


@program("watermarks on results and on a source, in a union", inputs="events clicks")
def union_wm(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    a = events.dropDuplicates(["id"]).withWatermark("ts", "10 seconds").select("ts", "user")
    b = clicks.withWatermark("click_ts", "30 seconds").select("click_ts", "click_user")
    return a.union(b).groupBy(F.window("ts", "1 minute")).count()


@program("observe between two stateful operators")
def observed_in_between(spark: SparkSession, events: DataFrame) -> DataFrame:
    unique = events.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"]).observe("unique", F.count("*").alias("rows"))
    return unique.groupBy(F.window("ts", "1 minute")).count()
