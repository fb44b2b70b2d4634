"""Programs from practice: sensors, payments, changes of tables, access logs, orders."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.functions import col, expr, lit, struct, to_json, to_timestamp, when, window

from tests.conformance.program import program


def _clean(sensors: DataFrame) -> DataFrame:
    return sensors.withColumn("event_time", to_timestamp("at")).drop("at").withWatermark("event_time", "20 seconds")


@program("iot: parsed times, sliding average, alert level", inputs="sensors")
def iot_alerts(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    return (
        _clean(sensors)
        .filter(col("metric") == "temp")
        .groupBy("device", window("event_time", "40 seconds", "20 seconds"))
        .agg(F.avg("reading").alias("avg"), F.max("reading").alias("max"), F.stddev_samp("reading").alias("sd"), F.count(lit(1)).alias("n"))
        .withColumn("level", when(col("avg") > 60, "high").when(col("avg") > 40, "mid").otherwise("low"))
        .select("device", col("window.start").alias("from"), col("window.end").alias("to"), "avg", "max", "sd", "n", "level")
    )


@program("iot: rolling health, last reading by max of struct, battery min", inputs="sensors", mode="update")
def iot_last(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    return (
        _clean(sensors)
        .groupBy("device", "metric")
        .agg(F.max(F.struct("event_time", "reading", "battery")).alias("last"), F.min("battery").alias("low"))
        .select("device", "metric", "last.*", "low")
    )


@program("iot: pivot by hand with conditional aggregates", inputs="sensors", mode="update")
def iot_pivot(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    metrics = ["temp", "hum"]
    aggs = [F.avg(when(col("metric") == m, col("reading"))).alias(f"{m}_avg") for m in metrics]
    aggs += [F.count(when(col("metric") == m, True)).alias(f"{m}_n") for m in metrics]
    return _clean(sensors).groupBy(window("event_time", "1 minute"), "device").agg(*aggs)


@program("iot: percentile_approx with several points and hyperloglog", inputs="sensors")
def iot_percentiles(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    return (
        _clean(sensors)
        .groupBy(window("event_time", "1 minute").alias("w"), "metric")
        .agg(F.percentile_approx("reading", [0.5, 0.95], 1000).alias("p"), F.approx_count_distinct("device", 0.02).alias("devices"))
        .select(col("w.start"), "metric", col("p")[0].alias("p50"), col("p")[1].alias("p95"), "devices")
    )


@program("iot: sessions of devices, their duration, a filter on counts", inputs="sensors")
def iot_sessions(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    return (
        _clean(sensors)
        .groupBy(F.session_window("event_time", "15 seconds").alias("s"), "device")
        .count()
        .withColumn("seconds", col("s.end").cast("long") - col("s.start").cast("long"))
        .where("count > 2")
        .drop("s")
    )


@program(
    "iot: time zone New York, windows of a day and date_trunc",
    inputs="sensors",
    mode="update",
    conf=(("spark.sql.session.timeZone", "America/New_York"),),
)
def iot_zone(spark: SparkSession, sensors: DataFrame) -> DataFrame:
    return (
        _clean(sensors)
        .groupBy(window("event_time", "1 day", "1 day", "4 hours").alias("day"), F.date_trunc("hour", "event_time").alias("hour"))
        .agg(F.avg("reading"))
        .withColumn("d", F.date_format("day.start", "yyyy-MM-dd HH:mm z"))
    )


def _pay(payments: DataFrame) -> DataFrame:
    return payments.withWatermark("paid_at", "30 seconds")


@program("fraud: velocity by card with decimals, sets and countries", inputs="payments")
def fraud_velocity(spark: SparkSession, payments: DataFrame) -> DataFrame:
    return (
        _pay(payments)
        .groupBy(col("card"), window(col("paid_at"), "1 minute", "30 seconds"))
        .agg(
            F.sum("amount").alias("spent"),
            F.count("*").alias("n"),
            F.sort_array(F.collect_set("country")).alias("countries"),
            F.max("amount") - F.min("amount"),
            F.avg("amount").alias("mean"),
        )
        .filter((col("n") >= 3) & (F.size("countries") > 1))
    )


@program("fraud: profile by a static left join before, limits by a join after, coalesce", inputs="payments", mode="update")
def fraud_profile(spark: SparkSession, payments: DataFrame) -> DataFrame:
    profiles = spark.createDataFrame([("c1", "gold", 300), ("c2", "basic", 100)], "card string, tier string, lim int")
    limits = spark.createDataFrame([("gold", 5000), ("none", 1)], "tier string, max int")
    rich = _pay(payments).join(F.broadcast(profiles), "card", "left").withColumn("tier", F.coalesce("tier", lit("none")))
    sums = rich.groupBy("tier", "card").agg(F.sum("amount").cast("double").alias("spent"), F.first("lim", ignorenulls=True).alias("lim"))
    return (
        sums.join(limits, ["tier"], "left_outer")
        .withColumn("over", col("spent") > F.coalesce(col("max"), col("lim"), lit(0)))
        .na.fill({"max": -1})
    )


@program("fraud: declined share with FILTER and HAVING in SQL over a temp view", inputs="payments")
def fraud_sql(spark: SparkSession, payments: DataFrame) -> DataFrame:
    _pay(payments).createOrReplaceTempView("pays")
    return spark.sql("""
      SELECT card, window.start AS s, count(*) AS n, count(*) FILTER (WHERE NOT ok) AS declined,
             round(100.0 * count_if(NOT ok) / count(*), 2) AS pct, mode(merchant) m
      FROM pays GROUP BY card, window(paid_at, '30 seconds') HAVING count_if(NOT ok) > 0""").drop("m")


@program("fraud: two payments of a card in two countries: self join", inputs="payments")
def fraud_self(spark: SparkSession, payments: DataFrame) -> DataFrame:
    a = payments.select("card", "country", "tx", "paid_at").withWatermark("paid_at", "20 seconds").alias("a")
    b = payments.selectExpr("card", "country", "tx", "paid_at").withWatermark("paid_at", "20 seconds").alias("b")
    return a.join(
        b, expr("a.card = b.card AND a.country <> b.country AND b.paid_at > a.paid_at AND b.paid_at <= a.paid_at + interval 3 seconds")
    ).select(col("a.tx").alias("first"), col("b.tx").alias("second"), "a.card")


@program("fraud: dedup, then score by UDF, then windows", inputs="payments")
def fraud_scored(spark: SparkSession, payments: DataFrame) -> DataFrame:
    @F.udf("double")  # type: ignore[untyped-decorator]
    def score(amount, country):  # type: ignore[no-untyped-def]  # PySpark warns of hints that it does not know.
        return float(amount) / 100 * (2 if country == "US" else 1)

    return (
        payments.withWatermark("paid_at", "30 seconds")
        .dropDuplicates(["tx", "paid_at"])
        .withColumn("score", score("amount", "country"))
        .groupBy(window("paid_at", "30 seconds"), "country")
        .agg(F.round(F.sum("score"), 4).alias("score"), F.expr("max_by(tx, amount)").alias("top"))
    )


@program("fraud: ANSI off, bad casts and overflows", inputs="payments", mode="update", conf=(("spark.sql.ansi.enabled", "false"),))
def fraud_ansi(spark: SparkSession, payments: DataFrame) -> DataFrame:
    return (
        payments.withColumn("n", col("tx").cast("int"))
        .withColumn("small", (col("amount") * 100).cast("int").cast("short"))
        .groupBy("card")
        .agg(
            F.sum(col("small").cast("long") * 4611686018427387904).alias("wrapped"),
            F.count("n").alias("n"),
            F.sum(col("amount") / 0).alias("d"),
            F.sum(col("amount").cast("decimal(38,18)") * lit(10).cast("decimal(38,0)")).alias("big"),
        )
    )


@program("cdc: the latest image of each key, deletions dropped, sorted", inputs="changes", mode="complete", ordered=True)
def cdc_latest(spark: SparkSession, changes: DataFrame) -> DataFrame:
    return (
        changes.groupBy("key")
        .agg(F.max_by(F.struct("op", "row"), "lsn").alias("v"), F.max("lsn").alias("lsn"))
        .where(col("v.op") != "D")
        .select("key", "v.row.*", "lsn")
        .orderBy("key")
    )


@program("cdc: counts by operation, cube with grouping_id", inputs="changes", mode="complete")
def cdc_cube(spark: SparkSession, changes: DataFrame) -> DataFrame:
    return changes.cube("op", col("row.name").alias("name")).agg(
        F.grouping_id().alias("g"), F.count("*").alias("n"), F.sum("row.score").alias("s")
    )


@program("cdc: merged by key and window, JSON payload out", inputs="changes")
def cdc_json(spark: SparkSession, changes: DataFrame) -> DataFrame:
    return (
        changes.withWatermark("changed", "10 seconds")
        .groupBy(window("changed", "30 seconds"), "key")
        .agg(F.max_by("row", "lsn").alias("row"), F.max("lsn").alias("lsn"))
        .select(col("key").cast("string").alias("key"), to_json(struct("window", "row", "lsn")).alias("value"))
    )


@program("cdc: dropDuplicatesWithinWatermark by two keys then running aggregate", inputs="changes", mode="update")
def cdc_dedup(spark: SparkSession, changes: DataFrame) -> DataFrame:
    return (
        changes.withWatermark("changed", "1 hour")
        .dropDuplicatesWithinWatermark(["key", "lsn"])
        .groupBy("op")
        .agg(F.count("*").alias("n"), F.sum("row.score"))
    )


PATTERN = r'^(\S+) - - \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) (\d+)$'


def _parsed(logs: DataFrame) -> DataFrame:
    def g(i: int) -> Column:
        return F.regexp_extract("value", PATTERN, i)

    return logs.select(
        g(1).alias("host"),
        F.try_to_timestamp(g(2), lit("dd/MMM/yyyy:HH:mm:ss Z")).alias("timestamp"),
        g(3).alias("method"),
        g(4).alias("endpoint"),
        g(5).try_cast("int").alias("status"),
        g(6).try_cast("long").alias("size"),
    )


@program("logs: regular expressions, errors by endpoint in windows", inputs="logs")
def logs_errors(spark: SparkSession, logs: DataFrame) -> DataFrame:
    return (
        _parsed(logs)
        .where("timestamp is not null")
        .withWatermark("timestamp", "15 seconds")
        .groupBy(window("timestamp", "30 seconds"), "endpoint")
        .agg(F.sum((col("status") >= 400).cast("int")).alias("errors"), F.count("*").alias("hits"), F.avg("size"), F.max("size"))
        .withColumnRenamed("avg(size)", "mean")
        .withColumn("rate", F.round(col("errors") / col("hits"), 3))
        .drop("window")
    )


@program("logs: without a filter for nulls: null event times", inputs="logs")
def logs_nulls(spark: SparkSession, logs: DataFrame) -> DataFrame:
    return _parsed(logs).withWatermark("timestamp", "15 seconds").groupBy(window("timestamp", "30 seconds"), "status").count()


@program("logs: status classes, rollup, complete and sorted", inputs="logs", mode="complete", ordered=True)
def logs_rollup(spark: SparkSession, logs: DataFrame) -> DataFrame:
    return (
        _parsed(logs)
        .withColumn("class", F.concat((col("status") / 100).cast("int"), lit("xx")))
        .rollup("class", "method")
        .agg(F.count("*").alias("n"), F.sum("size").alias("bytes"))
        .sort(F.col("class").asc_nulls_last(), col("method").asc_nulls_first(), "n")
    )


@program("logs: top endpoints, limit in SQL", inputs="logs", mode="complete", ordered=True)
def logs_top(spark: SparkSession, logs: DataFrame) -> DataFrame:
    _parsed(logs).createOrReplaceTempView("access")
    return spark.sql(
        "SELECT endpoint, count(1) AS hits FROM access WHERE status = 200 GROUP BY endpoint ORDER BY hits DESC, endpoint LIMIT 3"
    )


@program("logs: sessions of hosts with the path they took", inputs="logs")
def logs_paths(spark: SparkSession, logs: DataFrame) -> DataFrame:
    return (
        _parsed(logs)
        .filter(col("timestamp").isNotNull())
        .withWatermark("timestamp", "10 seconds")
        .groupBy("host", F.session_window("timestamp", "8 seconds"))
        .agg(F.array_sort(F.collect_list(struct("timestamp", "endpoint", "size"))).alias("hits"))
        .select(
            "host",
            "session_window.start",
            F.array_join(F.transform("hits", lambda h: h.endpoint), ">").alias("path"),
            F.size("hits").alias("n"),
        )
    )


def _timed(orders_in: DataFrame, shipped: DataFrame) -> tuple[DataFrame, DataFrame]:
    return orders_in.withWatermark("ordered", "10 seconds"), shipped.withWatermark("shipped", "20 seconds").withColumnRenamed(
        "order_no", "no"
    )


@program("orders: left outer join with shipments, late ones told apart", inputs="orders_in shipped")
def ship_left(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    return o.join(
        s, (o.order_no == s.no) & (s.shipped >= o.ordered) & (s.shipped <= o.ordered + F.expr("INTERVAL 40 SECONDS")), "leftOuter"
    ).select(
        "order_no",
        "customer",
        "carrier",
        (col("shipped").cast("double") - col("ordered").cast("double")).alias("took"),
        F.when(col("carrier").isNull(), "open").otherwise("sent").alias("state"),
    )


@program("orders: right outer join, a filter on the side that is kept", inputs="orders_in shipped")
def ship_right(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    soon = [o.order_no == s.no, s.shipped >= o.ordered, s.shipped < o.ordered + expr("interval 30 seconds")]
    return o.join(s, soon, "right_outer").where("carrier = 'ups' and (sum is null or sum > 10)").drop("no")


@program("orders: two filters on one join, in a union", inputs="orders_in shipped")
def ship_halves(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    sent = o.join(s, expr("order_no = no AND shipped BETWEEN ordered AND ordered + INTERVAL 30 SECONDS"))
    return sent.filter("carrier = 'ups'").union(sent.filter("carrier = 'dhl' AND sum > 10"))


@program("orders: windows by customer, a filter on the customer", inputs="orders_in")
def order_windows(spark: SparkSession, orders_in: DataFrame) -> DataFrame:
    o = orders_in.withWatermark("ordered", "10 seconds")
    return o.groupBy(window("ordered", "20 seconds"), "customer").count().where("customer <> 'ada' AND count > 1")


@program("orders: LEFTSEMI in odd case, then windows", inputs="orders_in shipped")
def ship_semi(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    return (
        o.join(s, (o.order_no == s.no) & expr("shipped between ordered and ordered + interval 1 minute"), "LEFTSEMI")
        .groupBy(window("ordered", "30 seconds"))
        .agg(F.sum("sum").alias("sum"), F.count_if(col("customer") == "ada"))
    )


@program("orders: join, dedup, windows: three operators", inputs="orders_in shipped")
def ship_three(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    joined = o.join(s, expr("order_no = no AND shipped >= ordered - interval 10 seconds AND shipped <= ordered + interval 40 seconds"))
    return joined.dropDuplicates(["order_no", "ordered"]).groupBy(window("ordered", "30 seconds"), "customer").agg(F.count("*").alias("n"))


@program("orders: full outer in SQL with USING", inputs="orders_in shipped")
def ship_full(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    orders_in.withWatermark("ordered", "10 seconds").select(
        "order_no", "sum", window("ordered", "20 seconds").alias("w")
    ).createOrReplaceTempView("o")
    shipped.withWatermark("shipped", "10 seconds").select(
        "order_no", "carrier", window("shipped", "20 seconds").alias("w")
    ).createOrReplaceTempView("s")
    return spark.sql("SELECT order_no, w.start AS start, sum, carrier FROM o FULL OUTER JOIN s USING (order_no, w)")


@program("orders: windowed counts joined with windowed counts and a static table", inputs="orders_in shipped")
def ship_rates(spark: SparkSession, orders_in: DataFrame, shipped: DataFrame) -> DataFrame:
    o, s = _timed(orders_in, shipped)
    made = o.groupBy(window("ordered", "30 seconds")).agg(F.count("*").alias("made"))
    sent = s.groupBy(window("shipped", "30 seconds")).agg(F.count("*").alias("sent"))
    cal = spark.range(2).selectExpr("id = 1 as weekend", "id as parity")
    return (
        made.join(sent, "window", "left")
        .withColumn("parity", F.second("window.start") % 60 / 30)
        .join(cal, "parity", "left")
        .selectExpr("window.start", "made", "coalesce(sent, 0) as sent", "made - coalesce(sent, 0) as open", "weekend")
    )
