"""Running aggregates, without a window."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.program import program


@program("word count: split, explode, groupBy, count", inputs="lines", mode="complete")
def word_count(spark: SparkSession, lines: DataFrame) -> DataFrame:
    words = lines.select(F.explode(F.split(lines.line, " ")).alias("word"))
    return words.groupBy("word").count()


@program("the same in update mode", inputs="lines", mode="update")
def word_count_update(spark: SparkSession, lines: DataFrame) -> DataFrame:
    return lines.select(F.explode(F.split("line", " ")).alias("word")).groupBy("word").count()


@program("several aggregates with aliases", mode="update")
def several_aggregates(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(
        F.count("*").alias("n"), F.sum("amount").alias("total"), F.avg("value").alias("mean"), F.min("value"), F.max("value")
    )


@program("expressions over aggregates", mode="update")
def expressions_over_aggregates(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(
        (F.sum("amount") / F.count("amount")).alias("ratio"),
        (F.max("amount") - F.min("amount") + 1).alias("span"),
        F.concat(F.col("user"), F.lit(":"), F.count("*").cast("string")).alias("label"),
    )


@program("HAVING: a filter on aggregates", mode="complete")
def having(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user", "kind").agg(F.sum("amount").alias("total")).where(F.col("total") > 300)


@program("HAVING in update mode", mode="update")
def having_update(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").count().filter("count % 2 = 0")


@program("global aggregate", mode="complete")
def global_aggregate(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.agg(F.count("*").alias("n"), F.sum("value"), F.max("ts"))


@program("groupBy() without columns", mode="update")
def group_by_nothing(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy().count()


@program("df.col and df['col']", mode="update")
def columns_of_the_frame(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(events.user, events["kind"]).agg(F.sum(events.amount).alias("s"))


@program("grouping by expressions", mode="update")
def grouping_by_expressions(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.upper("user").alias("name"), (F.col("amount") % 3).alias("third"), F.to_date("ts")).count()


@program("nested fields as keys and arguments", mode="update")
def nested_fields(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("place.city").agg(F.max("place.zip").alias("zip"), F.count("place").alias("n"))


@program("a struct as key", mode="complete")
def struct_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("place").agg(F.sum("amount").alias("s"))


@program("agg with a dict", mode="update")
def agg_with_a_dict(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg({"amount": "sum", "value": "max"})


@program("GroupedData.sum, avg, min, max", mode="update")
def grouped_short_forms(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").sum("amount", "id")


@program("GroupedData.mean and max", mode="complete")
def grouped_mean(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").mean("amount")


@program("aggregates with FILTER", mode="update")
def conditional(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(
        F.sum(F.when(F.col("kind") == "error", 1).otherwise(0)).alias("errors"),
        F.expr("count(*) FILTER (WHERE kind = 'open')").alias("opened"),
    )


@program("count_if, bool_or, every", mode="update")
def boolean_aggregates(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(
        F.expr("count_if(amount > 50)").alias("n"), F.expr("bool_or(amount > 95)"), F.expr("every(amount >= 0)")
    )


@program("stddev, variance", mode="update")
def statistics(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.stddev("value"), F.var_pop("value"), F.stddev_pop("amount"))


@program("approx_count_distinct", mode="update")
def approximate_distinct(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.approx_count_distinct("user").alias("users"))


@program("collect_set, size", mode="update")
def collected_set(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.sort_array(F.collect_set("user")).alias("users"), F.size(F.collect_set("amount")).alias("n"))


@program("max_by, min_by", mode="update")
def latest_value(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(
        F.max_by("id", F.struct("ts", "id").getField("id")).alias("last"), F.min_by("amount", "id").alias("first")
    )


@program("sort in complete mode", mode="complete", ordered=True)
def sorted_results(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user", "kind").count().orderBy(F.desc("count"), "user", "kind")


@program("sort and limit in complete mode: a top list", mode="complete", ordered=True)
def top_list(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user", "kind").agg(F.sum("amount").alias("s")).sort(F.col("s").desc(), "user", "kind").limit(3)


@program("cube of two columns", mode="update")
def cube(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.cube("kind", "user").agg(F.sum("amount").alias("s"))


@program("rollup", mode="complete")
def rollup(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.rollup("kind", "user").count()


@program("aggregates without a key in update mode, then a projection", mode="update")
def projected_global(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.agg(F.count("*").alias("n")).select((F.col("n") * 2).alias("twice"), F.lit("all").alias("what"))


@program("null keys form a group", mode="complete")
def null_keys(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").agg(F.count("value").alias("values"), F.count("*").alias("rows"))


@program("a key that is a constant", mode="update")
def constant_key(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.withColumn("all", F.lit("x")).groupBy("all").agg(F.sum("amount"))


@program("grouping by a date and an hour", mode="update")
def by_hour(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.date_format("ts", "yyyy-MM-dd").alias("day"), F.hour("ts").alias("hour")).agg(F.avg("amount").alias("mean"))


@program("corr, covar_samp, skewness, kurtosis", mode="complete")
def moments(spark: SparkSession, events: DataFrame) -> DataFrame:
    two = F.corr("value", "amount"), F.covar_samp("value", "amount")
    return events.groupBy("kind").agg(*two, F.skewness("amount"), F.kurtosis("amount"))


@program("percentile, percentile_approx, median, mode", mode="complete")
def percentiles(spark: SparkSession, events: DataFrame) -> DataFrame:
    approximate = F.expr("percentile_approx(amount, array(0.1, 0.9))")
    return events.groupBy("kind").agg(F.expr("percentile(amount, 0.5)"), approximate, F.median("amount"), F.mode("amount", True))


@program("collect_list, first, any_value", mode="update")
def lists(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.sort_array(F.collect_list("amount")).alias("amounts"), F.first("kind"), F.any_value("kind"))


@program("bit_and, bit_or, bool_and, and the greatest array", mode="update")
def bits(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("place").agg(F.bit_or("amount"), F.bit_and("amount"), F.bool_and(F.col("amount") > 3), F.max("tags"))
