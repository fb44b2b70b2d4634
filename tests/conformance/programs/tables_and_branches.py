"""Tables beside streams, branches of a stream, views and joins of several streams."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import col, expr, lit, window

from tests.conformance.data import users
from tests.conformance.program import program


def _timed(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds")


@program("range join with a table of price bands, after windows")
def bands(spark: SparkSession, events: DataFrame) -> DataFrame:
    bands = spark.createDataFrame([("low", 0, 500), ("high", 500, 100000)], "band string, lo int, hi int")
    return (
        _timed(events)
        .groupBy(window("ts", "20 seconds"), "kind")
        .agg(F.sum("amount").alias("a"))
        .join(bands, (col("a") >= col("lo")) & (col("a") < col("hi")))
        .drop("lo", "hi")
    )


@program("case sensitive columns", mode="update", conf=(("spark.sql.caseSensitive", "true"),))
def columns_by_case(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.select(col("kind").alias("k"), col("amount").alias("K"), col("value").alias("v"))
        .groupBy("k")
        .agg(F.sum("K").alias("V"), F.max("v").alias("v"))
    )


@program(
    "seven shuffle partitions, adaptive execution, ANSI",
    conf=(("spark.sql.adaptive.enabled", "true"), ("spark.sql.ansi.enabled", "true"), ("spark.sql.codegen.wholeStage", "true")),
)
def adaptive(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        _timed(events)
        .groupBy(window("ts", "20 seconds"), "user")
        .agg(F.sum("amount").alias("s"), F.try_divide(F.sum("value"), F.count("value") - 1).alias("m"))
    )


@program("time zone in which summer time begins", mode="update", conf=(("spark.sql.session.timeZone", "Europe/Berlin"),))
def berlin(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withColumn("ts", col("ts") + expr("interval 333 days"))
        .groupBy(F.to_date("ts").alias("day"), F.hour("ts").alias("hour"), F.date_format("ts", "EEE"))
        .agg(F.min(F.to_timestamp(F.date_format("ts", "yyyy-MM-dd HH:mm"))).alias("m"))
    )


@program("union of three branches of one stream, each with its static join, then windows")
def three_branches(spark: SparkSession, events: DataFrame) -> DataFrame:
    u = users(spark)
    parts = [
        _timed(events)
        .filter(col("kind") == k)
        .join(u, "user", how)
        .select("ts", "amount", F.coalesce("job", lit("none")).alias("job"), lit(k).alias("k"))
        for k, how in (("open", "left"), ("close", "inner"), ("error", "left"))
    ]
    return parts[0].unionByName(parts[1]).unionAll(parts[2]).groupBy("job", "k", window("ts", "30 seconds")).agg(F.sum("amount"))


@program("explode of from_json array, posexplode_outer, inline_outer", inputs="orders", mode="update")
def json_arrays(spark: SparkSession, orders: DataFrame) -> DataFrame:
    text = orders.select(F.to_json("items").alias("j"), "shop", "order_id")
    items = text.select(
        "shop", F.posexplode_outer(F.from_json("j", "array<struct<sku:string,qty:int,price:decimal(10,2)>>")).alias("pos", "item")
    )
    return items.groupBy("shop", "item.sku").agg(
        F.sum(col("item.qty") * col("item.price")).alias("rev"), F.count("pos").alias("n"), F.max("pos")
    )


@program("schema_of_json, get_json_object, json_tuple, from_csv", inputs="raw", mode="update")
def json_functions(spark: SparkSession, raw: DataFrame) -> DataFrame:
    return (
        raw.select(F.json_tuple("json", "device", "signal").alias("d", "s"), F.get_json_object("json", "$.device").alias("g"))
        .withColumn("c", F.from_csv(F.concat_ws(",", "d", "s"), "a string, b int"))
        .groupBy("c.a")
        .agg(F.sum("c.b").alias("b"), F.max("g").alias("g"))
    )


@program("a struct as JSON key, map_from_entries of collected values", mode="update")
def map_entries(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.groupBy(F.to_json(F.struct("place")).alias("p"))
        .agg(F.map_from_entries(F.array_sort(F.collect_set(F.struct("kind", F.length("kind"))))).alias("m"), F.sum("amount").alias("a"))
        .select("p", "a", F.map_keys("m").alias("k"))
    )


@program("lateral subquery over a table (DataFrame.lateralJoin)", mode="update")
def lateral(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.groupBy("user")
        .agg(F.sum("amount").alias("a"))
        .join(users(spark).alias("u"), "user")
        .where(col("u.age") > users(spark).select(F.min("age")).scalar())
    )


@program("QUALIFY-free top two by array slice in each window")
def top_two(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        _timed(events)
        .groupBy(window("ts", "30 seconds"), "kind")
        .agg(F.slice(F.sort_array(F.collect_list(F.struct("amount", "id")), asc=False), 1, 2).alias("top"))
        .select("window.end", "kind", F.explode("top").alias("t"))
        .select("end", "kind", "t.*")
    )


@program("approximate top by approx_top_k", mode="complete")
def approx_top(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("place.city").agg(F.expr("approx_top_k(kind, 2)").alias("t")).select("city", F.size("t").alias("n"))


@program("collations and char columns", mode="complete")
def collated_filter(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.filter(F.collate("kind", "UTF8_LCASE") == "OPEN").groupBy("kind", F.lpad("user", 5, "*")).count()


@program("dropDuplicates of window column and rename; then count by window_time")
def dedup_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        _timed(events)
        .withColumn("w", window("ts", "20 seconds"))
        .select("w", "user")
        .dropDuplicates()
        .groupBy(window(F.window_time("w"), "40 seconds"), "user")
        .count()
    )


@program("a filter that is never true", mode="complete")
def nothing_passes(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy().agg(F.count("*").alias("n"), F.sum(F.when(col("amount") > 1000, 1)).alias("s"))


@program("correlated EXISTS over a table in an aggregate's WHERE, CASE in keys", mode="update")
def correlated(spark: SparkSession, events: DataFrame) -> DataFrame:
    users(spark).createOrReplaceTempView("people")
    events.createOrReplaceTempView("evs")
    return spark.sql(
        "SELECT CASE WHEN amount > 50 THEN 'big' ELSE 'small' END AS size, count(*) n, sum(amount) s "
        "FROM evs e WHERE EXISTS (SELECT 1 FROM people p WHERE p.user = e.user AND p.age > 30) GROUP BY 1"
    )


@program("global temp view, nested views, star except", mode="update")
def views_of_views(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceGlobalTempView("gev")
    spark.sql("CREATE OR REPLACE TEMP VIEW v1 AS SELECT * EXCEPT (tags, place) FROM global_temp.gev WHERE amount > 10")
    spark.sql("CREATE OR REPLACE TEMP VIEW v2 AS SELECT kind, sum(amount) AS s, count(*) AS c FROM v1 GROUP BY ALL")
    return spark.table("v2").where("c > 1").withColumn("m", expr("s / c"))


@program("sessions of users with dynamic gaps by kind, then windows over session ends")
def dynamic_sessions(spark: SparkSession, events: DataFrame) -> DataFrame:
    gap = F.when(col("kind") == "error", "5 seconds").when(col("user") == "ada", "20 seconds").otherwise("10 seconds")
    return (
        _timed(events)
        .groupBy(F.session_window("ts", gap), "user")
        .agg(F.count("*").alias("n"))
        .groupBy(window("session_window", "1 minute"))
        .agg(F.max("n").alias("longest"), F.count("*").alias("sessions"))
    )


@program("stream joined twice: with two other streams", inputs="events clicks views")
def two_joins(spark: SparkSession, events: DataFrame, clicks: DataFrame, views: DataFrame) -> DataFrame:
    v = views.withWatermark("view_ts", "10 seconds")
    c = clicks.withWatermark("click_ts", "10 seconds")
    ev = events.withWatermark("ts", "10 seconds").selectExpr("user as u", "ts", "amount")
    first = v.join(c, expr("ad = click_ad and click_ts between view_ts and view_ts + interval 20 seconds"))
    return first.join(ev, expr("click_user = u and ts between click_ts - interval 5 seconds and click_ts + interval 5 seconds")).select(
        "ad", "u", "amount", "click_ts", "ts", "cost"
    )


@program("aggregate joined back with the raw stream by window", inputs="events")
def share_of_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    raw = _timed(events).withColumn("window", window("ts", "20 seconds")).select("window", "kind", "amount", "id")
    total = _timed(events).groupBy(window("ts", "20 seconds")).agg(F.sum("amount").alias("total"))
    return raw.join(total, "window").select("id", "kind", (col("amount") / col("total")).alias("share"), "window.start")


@program("limit then aggregate", mode="complete")
def limit_first(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("amount").limit(45).groupBy().agg(F.count("*").alias("n"))


@program("a window of months as text key, weekofyear, quarter", mode="complete")
def calendar(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.weekofyear("ts"), F.quarter("ts"), F.date_format("ts", "yyyy-MM"), F.dayofweek("ts").alias("dow")).agg(
        F.count("*"), F.corr("amount", "value").alias("c")
    )


@program("timestamps as epoch milliseconds, from_unixtime, timestamp_millis", inputs="sensors")
def epoch_times(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    ms = sensors.withColumn("ms", (F.to_timestamp("at").cast("double") * 1000).cast("long"))
    return (
        ms.withColumn("t", F.timestamp_millis("ms"))
        .withWatermark("t", "10 seconds")
        .groupBy(window("t", "30 seconds"), "device")
        .agg(F.max(F.from_unixtime(col("ms") / 1000)).alias("last"))
    )


@program("decimal averages, rounding modes, big sums", inputs="payments")
def decimals(spark: SparkSession, payments: DataFrame) -> DataFrame:
    return (
        payments.withWatermark("paid_at", "10 seconds")
        .groupBy(window("paid_at", "1 minute"), "country")
        .agg(
            F.avg("amount").alias("a"),
            F.sum(col("amount") * col("amount")).alias("sq"),
            F.bround(F.sum("amount"), 1).alias("b"),
            F.stddev("amount").alias("sd"),
            F.median("amount").alias("m"),
        )
    )
