"""Functions, columns and settings as people mix them."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import col, lit, pandas_udf, window  # type: ignore[attr-defined]

from tests.conformance.data import users
from tests.conformance.program import program

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _timed(events: DataFrame) -> DataFrame:
    return events.withWatermark("ts", "10 seconds")


@program("watermark, then the column renamed, cast and cut")
def watermark_renamed(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        _timed(events)
        .withColumnRenamed("ts", "event_time")
        .select("user", "event_time", "amount")
        .groupBy(window("event_time", "30 seconds"), "user")
        .agg({"amount": "sum", "*": "count"})
    )


@program("intervals written in many ways")
def intervals(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "interval 1 minute 5 seconds")
        .groupBy(window("ts", "1 minute 30 seconds", "interval 45 seconds", "15 second"))
        .count()
    )


@program("selectExpr with window and groupBy of its alias")
def window_by_expr(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        _timed(events)
        .selectExpr("window(ts, '20 seconds') as w", "kind", "value * 2 as v")
        .groupBy("w", "kind")
        .agg(F.avg("v").alias("v"))
        .selectExpr("w.start as at", "kind", "round(v, 3) v")
    )


@program("window.start as grouping expression", mode="update")
def window_start_expr(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(window("ts", "1 minute").getField("start").alias("minute"), F.upper("kind").alias("k")).agg(
        F.approx_count_distinct("user").alias("u")
    )


@program("default names of aggregates, renamed after", mode="update")
def default_names(spark: SparkSession, events: DataFrame) -> DataFrame:
    out = events.groupBy("kind").agg(*[f(c) for c in ("value", "amount") for f in (F.sum, F.min, F.max, F.avg)])
    for name in out.columns:
        out = out.withColumnRenamed(name, name.replace("(", "_").replace(")", ""))
    return out


@program("sixty columns added in a loop, around an aggregate", mode="update")
def many_columns(spark: SparkSession, events: DataFrame) -> DataFrame:
    for i in range(30):
        events = events.withColumn(f"x{i}", col("amount") + i)
    out = events.groupBy("kind").agg(*[F.sum(f"x{i}").alias(f"s{i}") for i in range(30)])
    for i in range(30):
        out = out.withColumn(f"s{i}", col(f"s{i}") % 1000)
    return out


@program("FILTER, try_sum and try_avg in SQL with grouping sets", mode="complete")
def sql_grouping_sets_filter(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql(
        "SELECT kind, user, grouping(kind) g, count(*) FILTER (WHERE amount > 50) big, try_sum(amount) s, try_avg(value) a, "
        "array_size(collect_set(place.city)) c FROM ev GROUP BY GROUPING SETS ((kind, user), (kind), ())"
    )


@program("sketches, regressions, histogram", mode="complete")
def sketches(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(
        F.hll_sketch_estimate(F.hll_sketch_agg("id")).alias("h"),
        F.regr_slope("amount", "value").alias("r"),
        F.regr_count("amount", "value"),
        F.try_sum("amount"),
        F.bit_xor("amount"),
        F.array_sort(F.array_agg("amount")),
        F.histogram_numeric("amount", lit(3)),
        F.product(F.lit(1.0) + col("amount") / 1000),
        F.kurtosis("amount"),
        F.count_min_sketch("amount", lit(0.1), lit(0.9), lit(1)),
    )


@program("first and last with ignorenulls after one row each batch", mode="update")
def first_last(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.filter("id % 40 = 3")
        .groupBy("place.city")
        .agg(F.first("value", True).alias("f"), F.last("user", ignorenulls=True).alias("l"))
    )


@program("durations: max minus min of times as interval", mode="update")
def durations(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(
        (F.max("ts") - F.min("ts")).alias("span"),
        F.sum(F.expr("INTERVAL '1' SECOND")).alias("s"),
        F.avg(F.expr("INTERVAL '2' MINUTE")).alias("a"),
    )


@program("applied schema: variant values", mode="update", inputs="raw")
def variants(spark: SparkSession, raw: DataFrame) -> DataFrame:
    v = raw.withColumn("v", F.try_parse_json("json"))
    return v.groupBy(F.try_variant_get("v", "$.device", "string").alias("device")).agg(
        F.sum(F.try_variant_get("v", "$.signal", "int")).alias("s"), F.count("v")
    )


@program("file names from _metadata as key", mode="update")
def metadata_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("*", "_metadata.file_name").groupBy("file_name").agg(F.count("*").alias("n"))


@program("input_file_name as key", mode="complete")
def input_file(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.element_at(F.split(F.input_file_name(), "/"), -1).alias("f")).agg(F.sum("amount"))


@program("current_timestamp before and after, filters by it", mode="update")
def now(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withColumn("ingested", F.current_timestamp())
        .filter(col("ts") < col("ingested"))
        .groupBy("kind")
        .agg(F.count("*").alias("n"), F.max("ingested").alias("i"))
        .withColumn("updated_at", F.current_timestamp())
        .withColumn("day", F.current_date())
        .filter("updated_at >= i")
        .select("kind", "n", (col("day") > F.to_date(lit("2024-05-01"))).alias("ok"))
    )


@program("unpivot of results", mode="update")
def unpivoted(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.groupBy("kind")
        .agg(F.sum("amount").cast("double").alias("a"), F.max("value").alias("v"))
        .unpivot("kind", ["a", "v"], "what", "how_much")
    )


@program("withColumnsRenamed, to(schema), colRegex, toDF", mode="update")
def shapes(spark: SparkSession, events: DataFrame) -> DataFrame:
    out = (
        events.withColumnsRenamed({"amount": "amt", "value": "val"})
        .select(events.kind, F.col("amt"), F.col("val"))
        .groupBy("kind")
        .agg(F.sum("amt").alias("amt"), F.sum("val").alias("val"))
    )
    return (
        out.to(T.StructType().add("val", "double").add("kind", "string").add("amt", "double"))
        .select(out.colRegex("`(val|kind)`"), "amt")
        .toDF("v", "k", "a")
    )


@program("udf registered in SQL, over results; with default args", mode="update")
def registered(spark: SparkSession, events: DataFrame) -> DataFrame:
    spark.udf.register("shout", lambda s, n=2: (s or "?").upper() + "!" * n, "string")
    _timed(events).createOrReplaceTempView("shouts")
    return spark.sql("SELECT shout(kind) AS k, max(shout(user)) AS m, count(*) AS n FROM shouts GROUP BY shout(kind)")


@program("udfs of structs, arrays and maps; pandas and arrow udfs", mode="update")
def many_udfs(spark: SparkSession, events: DataFrame) -> DataFrame:
    @F.udf(returnType=T.StructType().add("a", "long").add("b", T.ArrayType(T.StringType())))
    def both(n, tags):  # type: ignore[no-untyped-def]  # From hints, PySpark infers pandas UDFs, and warns of those that it does not know.
        return n * 2, sorted(tags or [])

    @F.udf(returnType="map<string,long>", useArrow=True)
    def as_map(k: str, n: int) -> dict[str, int]:
        return {k: n}

    @pandas_udf("double")
    def scaled(v: pd.Series) -> pd.Series:
        return v.fillna(0) * 2

    out = (
        events.withColumn("b", both("amount", "tags"))
        .withColumn("s", scaled("value"))
        .groupBy("kind", F.size("b.b").alias("n"))
        .agg(F.sum("b.a").alias("a"), F.sum("s").alias("s"))
    )
    return out.withColumn("m", F.map_values(as_map("kind", "a"))[0]).withColumn("s2", scaled("s"))


@program("python table function, LATERAL, before an aggregate", mode="update")
def udtf(spark: SparkSession, events: DataFrame) -> DataFrame:
    @F.udtf(returnType="word string, len int")
    class Words:
        def eval(self, tags: list[str] | None) -> Iterator[tuple[str, int]]:
            for tag in tags or []:
                yield tag, len(tag)

    spark.udtf.register("tag_words", Words)
    events.createOrReplaceTempView("tagged")
    return spark.sql("SELECT word, sum(len) AS l, count(*) AS n FROM tagged, LATERAL tag_words(tags) GROUP BY word")


@program("grouped applyInPandas of all fields, then dropDuplicates")
def per_batch(spark: SparkSession, events: DataFrame) -> DataFrame:
    def top(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sort_values(["amount", "id"]).tail(1)[["user", "amount"]]

    return (
        events.filter("user is not null").groupBy("user").applyInPandas(top, "user string, amount long").dropDuplicates(["user", "amount"])
    )


@program("left anti join with a table, then a semi join with another", mode="update")
def anti_semi(spark: SparkSession, events: DataFrame) -> DataFrame:
    bad = spark.createDataFrame([("bob",)], "user string")
    good = spark.createDataFrame([("open",), ("close",)], "kind string")
    return events.join(bad, "user", "left_anti").groupBy("kind").count().join(good, "kind", "leftsemi")


@program("static on the left, right outer with the stream, and cached")
def static_left(spark: SparkSession, events: DataFrame) -> DataFrame:
    table = users(spark).cache()
    return (
        table.join(_timed(events), "user", "right")
        .groupBy(window("ts", "30 seconds"), "job")
        .agg(F.avg("age").alias("age"), F.count("*").alias("n"))
    )
