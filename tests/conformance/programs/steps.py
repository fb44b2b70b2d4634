"""Stateless steps before, between and after stateful operators."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import pandas_udf

from tests.conformance.program import program


def _count_by_kind(rows: DataFrame) -> DataFrame:
    return rows.groupBy("kind").count()


@program("transform with a function of the DataFrame", mode="update")
def transform(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.transform(lambda df: df.filter(df.amount > 10)).transform(_count_by_kind)


@program("na.fill and na.drop", mode="update")
def na(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.na.fill({"user": "nobody"}).dropna(subset=["value"]).groupBy("user").agg(F.sum("value").alias("s"))


@program("na.replace after an aggregate", mode="update")
def na_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").count().na.replace("error", "failed", "kind")


@program("a Python UDF before an aggregate", mode="update")
def udf_before(spark: SparkSession, events: DataFrame) -> DataFrame:
    shorten = F.udf(lambda text: None if text is None else text[:1], "string")
    return events.groupBy(shorten("user").alias("initial")).count()


@program("a Python UDF over results", mode="update")
def udf_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    level = F.udf(lambda n: "many" if n > 20 else "few", "string")
    return events.groupBy("kind").count().withColumn("level", level("count"))


@program("a pandas UDF before and over results", mode="update")
def vectorised_udf(spark: SparkSession, events: DataFrame) -> DataFrame:
    @pandas_udf("double")  # type: ignore[call-overload,untyped-decorator]
    def half(values: pd.Series) -> pd.Series:
        return values / 2

    return (
        events.withColumn("half", half("amount")).groupBy("user").agg(F.sum("half").alias("s")).select("user", half("s").alias("quarter"))
    )


@program("mapInPandas before an aggregate", mode="update")
def map_in_pandas(spark: SparkSession, events: DataFrame) -> DataFrame:
    def cut(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame[frame["amount"] > 30][["kind", "amount"]]

    return events.select("kind", "amount").mapInPandas(cut, "kind string, amount long").groupBy("kind").agg(F.sum("amount"))


@program("from_json, as after Kafka", inputs="raw", mode="update")
def parsed_json(spark: SparkSession, raw: DataFrame) -> DataFrame:
    parsed = raw.select(F.from_json("json", T.StructType().add("device", "string").add("signal", "integer")).alias("data"), "at").select(
        "data.*"
    )
    return parsed.where("signal > 3").groupBy("device").agg(F.avg("signal").alias("mean"))


@program("explode of an array", mode="update")
def exploded(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.select("user", F.explode("tags").alias("tag")).groupBy("tag").agg(F.count("user").alias("n"))


@program("explode over results of windows")
def exploded_results(spark: SparkSession, events: DataFrame) -> DataFrame:
    kinds = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).agg(F.collect_set("kind").alias("kinds"))
    return kinds.select("window.start", F.explode("kinds").alias("kind"))


@program("union of two streams below an aggregate", inputs="events clicks", mode="update")
def union_below(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    return events.select("user").union(clicks.select("click_user")).groupBy("user").count()


@program("unionByName with missing columns", inputs="events clicks", mode="update")
def union_by_name(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    renamed = clicks.select(F.col("click_user").alias("user"), F.lit(1).alias("click"))
    return events.select("user").unionByName(renamed, allowMissingColumns=True).groupBy("user").agg(F.count("click").alias("n"))


@program("union of a stream with itself", mode="update")
def union_with_itself(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.filter("amount > 50").union(events.filter("kind = 'error'")).groupBy("kind").count()


@program("union of results of two aggregates", inputs="events clicks")
def union_of_results(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    left = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute")).count().withColumn("of", F.lit("events"))
    right = (
        clicks.withWatermark("click_ts", "30 seconds").groupBy(F.window("click_ts", "1 minute")).count().withColumn("of", F.lit("clicks"))
    )
    return left.union(right)


@program("union of results with a stream, then a window", inputs="events clicks")
def union_then_window(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    counts = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "30 seconds"), "user").count()
    left = counts.select(F.window_time("window").alias("at"), "user", "count")
    right = clicks.withWatermark("click_ts", "10 seconds").select(F.col("click_ts").alias("at"), "click_user", F.lit(1).cast("long"))
    return left.union(right).groupBy(F.window("at", "2 minutes"), "user").agg(F.sum("count").alias("n"))


@program("selectExpr, withColumns, drop, withColumnRenamed after windows")
def many_steps_after(spark: SparkSession, events: DataFrame) -> DataFrame:
    counts = events.withWatermark("ts", "10 seconds").groupBy(F.window("ts", "1 minute"), "kind").count()
    shown = counts.selectExpr("window.start AS begin", "kind", "count * 2 AS twice").withColumns({"a": F.lit(1), "b": F.col("twice") + 1})
    return shown.drop("a").withColumnRenamed("b", "more").filter("more > 3")


@program("column names with dots and spaces", mode="update")
def strange_names(spark: SparkSession, events: DataFrame) -> DataFrame:
    named = events.withColumnRenamed("user", "user.name").withColumnRenamed("amount", "the amount")
    return named.groupBy("`user.name`").agg(F.sum("`the amount`").alias("sum of it"), F.max("the amount"))


@program("repartition and coalesce before, repartition after", mode="update")
def repartitioned(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.repartition(3, "kind").groupBy("kind").count().repartition(2)


@program("map and array functions", mode="update")
def higher_order(spark: SparkSession, events: DataFrame) -> DataFrame:
    tags = events.withColumn("long", F.expr("filter(tags, t -> length(t) > 3)")).withColumn(
        "n", F.expr("aggregate(transform(long, t -> 1), 0, (a, b) -> a + b)")
    )
    return tags.groupBy("n").agg(F.count("*").alias("rows"))


@program("two watermarks of different delay, and a union", inputs="events clicks")
def two_watermarks(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    left = events.withWatermark("ts", "10 seconds").select("ts", F.lit("event").alias("what"))
    right = clicks.withWatermark("click_ts", "1 minute").select(F.col("click_ts").alias("ts"), F.lit("click").alias("what"))
    return left.union(right).groupBy(F.window("ts", "1 minute"), "what").count()


@program("the greatest of several watermarks", inputs="events clicks", conf=(("spark.sql.streaming.multipleWatermarkPolicy", "max"),))
def greatest_watermark(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    return two_watermarks(spark, events, clicks)


@program("a scalar subquery over a table", mode="update")
def scalar_subquery(spark: SparkSession, events: DataFrame) -> DataFrame:
    spark.range(20).createOrReplaceTempView("conformance_numbers")
    return events.where("amount > (SELECT max(id) FROM conformance_numbers)").groupBy("kind").count()
