"""Windows, further forms."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.program import program


@program("sliding windows by words, sorted, as in Spark's guide", mode="complete", ordered=True)
def guide_window_complete(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.groupBy(F.window(events.ts, "2 minutes", "1 minute"), events.kind)
        .count()
        .orderBy("window", "kind")
        .select(F.date_format("window.start", "HH:mm").alias("s"), "kind", "count")
    )


@program("session windows with a gap by key, as in Spark's guide", quick=True)
def dyn_session(spark: SparkSession, events: DataFrame) -> DataFrame:
    events = events.withWatermark("ts", "30 seconds")
    gap = F.when(events.user == "ada", "5 seconds").when(events.user == "bob", "20 seconds").otherwise("1 minute")
    return events.groupBy(F.session_window(events.ts, gap), events.user).count()


@program("the same in complete mode, the gap as SQL text", mode="complete")
def dyn_session_complete(spark: SparkSession, events: DataFrame) -> DataFrame:
    gap = F.expr("CASE WHEN kind = 'open' THEN '5 seconds' ELSE '30 seconds' END")
    return events.groupBy(F.session_window("ts", gap), "user").agg(F.sum("amount").alias("s"))


@program("the same in SQL")
def dyn_session_sql(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("ev")
    return spark.sql("""
                SELECT user, session_window.start s, session_window.end e, count(*) n FROM ev GROUP BY user,
                session_window(ts, CASE WHEN amount > 50 THEN '10 seconds' ELSE '5 seconds' END)
            """)


@program("rows whose gap is zero are in no session")
def session_neg(spark: SparkSession, events: DataFrame) -> DataFrame:
    gap = F.when(F.col("amount") < 20, "0 seconds").otherwise("10 seconds")
    return events.withWatermark("ts", "30 seconds").groupBy(F.session_window("ts", gap), "user").count()


@program("the length of sessions")
def session_len(spark: SparkSession, events: DataFrame) -> DataFrame:
    s = (
        events.withWatermark("ts", "30 seconds")
        .groupBy("user", F.session_window("ts", "15 seconds").alias("sw"))
        .agg(F.count("*").alias("n"), F.min("ts").alias("a"), F.max("ts").alias("b"))
    )
    return s.select("user", "n", (F.col("b").cast("long") - F.col("a").cast("long")).alias("secs"), "sw.start").where("n > 1")


@program("explode, then windows by a field of the elements", inputs="orders")
def o_items(spark: SparkSession, orders: DataFrame) -> DataFrame:
    lines = orders.withWatermark("created", "30 seconds").select("created", F.explode("items").alias("i"))
    return lines.groupBy(F.window("created", "1 minute"), "i.sku").agg(
        F.sum(F.col("i.qty") * F.col("i.price")).alias("rev"), F.sum("i.qty")
    )


@program("explode_outer before windows", inputs="orders")
def explode_outer(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("created", "10 seconds")
        .select("created", F.explode_outer("items").alias("i"))
        .groupBy(F.window("created", "1 minute"), "i.sku")
        .count()
    )


@program("a filter behind explode, before windows", inputs="orders")
def explode_filter(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("created", "10 seconds")
        .select("created", "paid", F.explode("items").alias("i"))
        .where("paid and i.qty > 1")
        .groupBy(F.window("created", "1 minute"))
        .agg(F.sum("i.qty").alias("q"))
    )


@program("several aggregates by window and key")
def rollup_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "kind")
        .agg(F.sum("amount").alias("s"), F.count_if(F.col("value").isNull()).alias("nulls"))
    )


@program("date and hour of the window for partitions of a sink")
def partition_cols(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").agg(F.count("*").alias("n"))
    return a.withColumn("date", F.to_date("window.start")).withColumn("hour", F.hour("window.start")).select("date", "hour", "kind", "n")


@program("a filter on the window", mode="update")
def window_filter(spark: SparkSession, events: DataFrame) -> DataFrame:
    a = events.withWatermark("ts", "20 seconds").groupBy(F.window("ts", "1 minute", "20 seconds")).count()
    return a.filter(F.col("window.start") >= F.to_timestamp(F.lit("2024-05-01 12:00:00")))


@program("a window made in withColumn, with other keys")
def window_end_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    e = events.withWatermark("ts", "20 seconds").withColumn("w", F.window("ts", "1 minute"))
    return (
        e.groupBy("w", F.upper("kind").alias("k"))
        .agg(F.count(F.lit(1)).alias("n"))
        .select(F.col("w.end").cast("string").alias("end"), "k", "n")
    )


@program("the event time renamed behind withWatermark")
def renamed_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "20 seconds").withColumnRenamed("ts", "t").groupBy(F.window("t", "1 minute")).count()


@program("the event time computed anew behind withWatermark", mode="update")
def recomputed_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "20 seconds")
        .withColumn("ts", F.col("ts") + F.expr("interval 1 second"))
        .groupBy(F.window("ts", "1 minute"))
        .count()
    )


@program("times cut by arithmetic", mode="update")
def floor_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy((F.floor(F.unix_timestamp("ts") / 60) * 60).cast("timestamp").alias("m"), "kind").agg(F.sum("amount"))


@program("alerts: a window's maximum beyond its mean and deviation", mode="update")
def alerts(spark: SparkSession, events: DataFrame) -> DataFrame:
    w = (
        events.withWatermark("ts", "1 minute")
        .groupBy(F.window("ts", "1 minute", "30 seconds"), "kind")
        .agg(F.max("value").alias("mx"), F.avg("value").alias("av"), F.stddev("value").alias("sd"))
    )
    return w.where("mx > av + sd").select("window.start", "kind", F.round("mx", 2).alias("mx"), F.format_number("av", 2).alias("av"))


@program("percentiles in windows")
def pctl_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"))
        .agg(F.percentile_approx("amount", [0.5, 0.9]).alias("p"), F.median("amount"))
    )


@program("weighted means in windows")
def vwap(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "user")
        .agg((F.sum(F.col("value") * F.col("amount")) / F.sum("amount")).alias("vwap"), F.sum("amount").alias("vol"))
        .filter(F.col("vwap").isNotNull())
    )


@program("approx_count_distinct in sliding windows", mode="update")
def acd(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute", "30 seconds"), "kind")
        .agg(F.approx_count_distinct("user", rsd=0.05).alias("u"))
    )


@program("a delay written as an interval")
def delay(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "interval 1 minute 30 seconds").groupBy(F.window("ts", "60 seconds")).count()


@program("a window inside a struct as key", mode="update")
def window_struct_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.groupBy(F.struct(F.window("ts", "1 minute").alias("w"), F.col("kind")).alias("k"))
        .count()
        .select("k.w.start", "k.kind", "count")
    )


@program("a watermark without delay")
def w_zero(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds"), "kind").count()


@program("withWatermark behind select and filter")
def w_alias(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.select(F.col("ts").alias("event_time"), "kind")
        .filter("kind != 'open'")
        .withWatermark("event_time", "15 seconds")
        .groupBy(F.window(F.col("event_time"), "1 minute"), "kind")
        .count()
    )


@program("a watermark of hours in update mode", mode="update")
def w_hours(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "2 hours").groupBy(F.window("ts", "10 minutes", "5 minutes")).agg(F.sum("amount"))


@program("dropping the window from results", mode="update")
def c_drop_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").agg(F.sum("amount").alias("s")).drop("window")
    )


@program("DataFrame.transform with arguments")
def transforms(spark: SparkSession, events: DataFrame) -> DataFrame:
    def late(df, c, d):
        return df.withWatermark(c, d)

    def per(df, size):
        return df.groupBy(F.window("ts", size), "kind").agg(F.sum("amount").alias("s"))

    return events.transform(late, "ts", "10 seconds").transform(per, size="1 minute").transform(lambda d: d.select("window.*", "kind", "s"))


@program("windows of an hour where clocks differ by half an hour", conf=(("spark.sql.session.timeZone", "Asia/Kolkata"),), mode="update")
def tz_hour(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.window("ts", "1 hour"), F.date_format("ts", "yyyy-MM-dd HH").alias("h")).count()
