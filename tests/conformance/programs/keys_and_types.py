"""Keys and values of all types."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tests.conformance.program import program


@program("decimals: sum, avg and max by a field of a struct", inputs="orders", mode="update")
def o_decimal(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer.tier").agg(F.sum("total").alias("revenue"), F.avg("total").alias("aov"), F.max("total"))


@program("windows of TIMESTAMP_NTZ", inputs="orders", mode="update")
def o_ntz_update(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.window("local", "1 minute"), "paid").agg(F.count("*"), F.max("local"))


@program("binary keys", inputs="orders", mode="update")
def o_binary(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("token").agg(F.count("*").alias("n"), F.max("token"), F.min("day"))


@program("boolean, smallint and date keys with nulls", inputs="orders", mode="complete")
def o_keys(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("paid", "shop", "day").agg(F.count("*").alias("n"), F.sum("shop"))


@program("float keys with NaN and -0.0", inputs="orders", mode="update")
def o_float(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("ratio").agg(F.count("*").alias("n"), F.sum("ratio"), F.max("ratio"), F.min("ratio"))


@program("values of a map as keys", inputs="orders", mode="update")
def o_map(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.col("attrs")["color"].alias("c"), F.element_at("attrs", "size").alias("s")).agg(F.avg("total"))


@program("an array as key", inputs="orders", mode="update")
def o_array_key(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.transform("items", lambda i: i.sku).alias("skus")).count()


@program("an array of text as key in complete mode", mode="complete")
def tags_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("tags").agg(F.count("*").alias("n"))


@program("max of a struct: the latest row of a key", inputs="orders", mode="update")
def o_latest(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(F.max(F.struct("created", "order_id", "total")).alias("m")).select("shop", "m.*")


@program("a sorted list of structs in each window", inputs="orders")
def o_collect(spark: SparkSession, orders: DataFrame) -> DataFrame:
    w = orders.withWatermark("created", "10 seconds").groupBy(F.window("created", "1 minute"), "shop")
    return w.agg(F.sort_array(F.collect_list(F.struct("created", "order_id"))).alias("os"))


@program("coalesce as key", mode="update")
def coalesce_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.coalesce("user", F.lit("unknown")).alias("u")).agg(F.sum(F.coalesce("value", F.lit(0.0))).alias("v"))


@program("dates and hours in another time zone", mode="update", conf=(("spark.sql.session.timeZone", "Asia/Kolkata"),))
def kolkata(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.to_date("ts").alias("d"), F.date_format("ts", "HH").alias("h")).agg(
        F.min("ts"), F.max(F.date_format("ts", "yyyy-MM-dd HH:mm:ss"))
    )


@program("overflow and bad casts with ANSI off", mode="update", conf=(("spark.sql.ansi.enabled", "false"),))
def ansi_off(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.col("user").cast("int").alias("k"), "kind").agg(
        F.sum(F.lit(9223372036854775807) - F.col("amount")).alias("s"), F.avg(F.col("kind").cast("double"))
    )


@program("try_cast, try_divide and try_sum with ANSI on", mode="update", conf=(("spark.sql.ansi.enabled", "true"),))
def ansi_on(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.expr("try_cast(user as int)").alias("k"), "kind").agg(
        F.expr("try_divide(sum(amount), count(value))").alias("d"), F.expr("try_sum(amount)")
    )


@program("columns that differ by case", mode="update", conf=(("spark.sql.caseSensitive", "true"),))
def case_sensitive(spark: SparkSession, events: DataFrame) -> DataFrame:
    e = events.withColumn("USER", F.upper("user")).withColumn("Kind", F.lit("x"))
    return e.groupBy("user", "USER", "Kind").agg(F.sum("amount").alias("S"), F.max("amount").alias("s"))


@program("from_json, then a sliding window by a field", inputs="raw")
def json_window(spark: SparkSession, raw: DataFrame) -> DataFrame:
    s = T.StructType([T.StructField("device", T.StringType()), T.StructField("signal", T.LongType())])
    d = raw.selectExpr("CAST(json AS STRING)", "at").select(F.from_json("json", s).alias("d"), "at").select("d.*", "at")
    return (
        d.withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute", "30 seconds"), "device")
        .agg(F.avg("signal").alias("avg"), F.stddev("signal"))
    )


@program("get_json_object as key", inputs="raw", mode="complete")
def json_get(spark: SparkSession, raw: DataFrame) -> DataFrame:
    return (
        raw.groupBy(F.get_json_object("json", "$.device").alias("d"))
        .agg(F.sum(F.get_json_object("json", "$.signal").cast("int")).alias("s"))
        .orderBy(F.desc_nulls_last("s"), "d")
    )


@program("fields of a VARIANT as key", inputs="raw", mode="update")
def variant(spark: SparkSession, raw: DataFrame) -> DataFrame:
    v = raw.where("json <> 'broken'").select(F.parse_json("json").alias("v"))
    return v.groupBy(F.variant_get("v", "$.device", "string").alias("d")).agg(F.max(F.variant_get("v", "$.signal", "int")))


@program("results as key and JSON value, as for Kafka", mode="update")
def to_json(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.count("*").alias("n")).select(F.col("kind").alias("key"), F.to_json(F.struct("*")).alias("value"))


@program("a hash as key", mode="update")
def hashed(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy((F.abs(F.hash("user")) % 4).alias("bucket"), F.md5("kind").alias("h")).count()


@program("sum and max of intervals", mode="update")
def interval_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(
        F.sum(F.expr("make_dt_interval(0,0,0,amount)")).alias("d"), F.max(F.expr("ts - timestamp'2024-01-01'")).alias("m")
    )


@program("a year-month interval as key", mode="update")
def ym_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.expr("make_ym_interval(0, int(amount % 3))").alias("k")).count()


@program("tinyint and varchar", mode="update")
def casts(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.select(F.col("amount").cast("tinyint").alias("t"), F.col("kind").cast("varchar(3)").alias("v"))
        .groupBy("v")
        .agg(F.sum("t"), F.avg("t"))
    )


@program("decimals of 38 digits", inputs="orders", mode="complete")
def big_decimal(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(
        F.sum(F.col("total").cast("decimal(38,10)")).alias("s"), F.avg(F.col("total").cast("decimal(30,5)")), F.variance("total")
    )


@program("a decimal as key", inputs="orders", mode="update")
def decimal_key(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy(F.floor(F.col("total") / 10).alias("k"), F.round("total", 0).alias("d")).count()


@program("min_by and max_by in windows", inputs="orders")
def minby(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("created", "1 minute")
        .groupBy(F.window("created", "2 minutes"), "shop")
        .agg(F.max_by("order_id", F.struct("created", "order_id")), F.min_by("total", F.struct("created", "order_id")))
    )


@program("max and min of text, dates, times, bytes and structs", inputs="orders", mode="complete")
def maxmin(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(
        F.max("order_id"), F.min("day"), F.max("created"), F.max("local"), F.min("token"), F.max("paid"), F.max(F.struct("day", "shop"))
    )


@program("bool_and, some, bit_xor and count_if in windows", inputs="orders")
def bools(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return (
        orders.withWatermark("created", "10 seconds")
        .groupBy(F.window("created", "1 minute"))
        .agg(F.bool_and("paid"), F.some("paid"), F.bit_xor("shop"), F.count_if(F.col("total") > 20))
    )


@program("null event times")
def null_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withColumn("ts", F.when(F.col("amount") > 20, F.col("ts")))
        .withWatermark("ts", "10 seconds")
        .groupBy(F.window("ts", "1 minute"), "kind")
        .count()
    )


@program("null event times as key")
def null_time_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withColumn("ts", F.when(F.col("amount") > 20, F.date_trunc("minute", "ts")))
        .withWatermark("ts", "10 seconds")
        .groupBy("ts", "kind")
        .count()
    )


@program("products of decimals", inputs="orders", mode="update")
def dec(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.groupBy("shop").agg(
        F.sum(F.col("total").cast("decimal(20,4)") * F.lit(1000)).alias("x"),
        F.avg(F.col("total").cast("decimal(10,1)")),
        F.max(F.col("total").cast("double")),
        F.sum(F.col("ratio")),
    )
