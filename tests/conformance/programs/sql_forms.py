"""SQL, further forms."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.data import users
from tests.conformance.program import program


@program("GROUP BY CUBE with HAVING", mode="update")
def sql_cube(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("SELECT kind, user, count(*) c FROM ev GROUP BY CUBE(kind, user) HAVING c > 2")


@program("GROUP BY ALL", mode="update")
def sql_group_all(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("SELECT kind, upper(user) u, sum(amount) s, count(*) c FROM ev GROUP BY ALL")


@program("ROLLUP by ordinals", mode="complete")
def sql_rollup(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("SELECT kind, hour(ts) h, sum(amount) s FROM ev GROUP BY ROLLUP(1, 2)")


@program("unpivot before an aggregate", mode="update")
def unpivot(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.unpivot(["user"], [F.col("amount"), F.col("id")], "what", "v").groupBy("user", "what").agg(F.sum("v"))


@program("stack(...) before an aggregate", mode="update")
def stack(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.selectExpr("kind", "stack(2, 'a', amount, 'i', id) as (n, v)").groupBy("kind", "n").agg(F.max("v"))


@program("windows with HAVING and rounding")
def sql_tumble(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("ev")
    return spark.sql("""
                SELECT kind, window.start AS ws, window.end AS we, COUNT(*) AS n, ROUND(AVG(value), 2) AS v FROM ev WHERE
                kind <> 'open' GROUP BY kind, window(ts, '30 seconds') HAVING COUNT(*) > 1
            """)


@program("window(window_time(w), ...) over a subquery")
def sql_window_time(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("ev")
    return spark.sql("""
                SELECT window(window_time(w), '2 minutes') w2, kind, sum(n) n FROM (SELECT window(ts, '1 minute') w,
                kind, count(*) n FROM ev GROUP BY window(ts, '1 minute'), kind) GROUP BY window(window_time(w), '2
                minutes'), kind
            """)


@program("lateral column aliases", mode="update")
def sql_lca(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("SELECT kind, sum(amount) AS s, s * 2 AS twice, twice + 1 AS more FROM ev GROUP BY kind")


@program("WITH and UNION ALL below an aggregate", mode="complete")
def sql_with_union(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("""
                WITH a AS (SELECT user x, amount FROM ev WHERE kind='open'), b AS (SELECT kind x, amount FROM ev) SELECT
                x, sum(amount) s FROM (SELECT * FROM a UNION ALL SELECT * FROM b) GROUP BY x ORDER BY x
            """)


@program("IN (SELECT ...) over a table", mode="update")
def sql_in(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    users(spark).createOrReplaceTempView("us")
    return spark.sql("""
                SELECT kind, count(*) n FROM ev WHERE user IN (SELECT user FROM us WHERE age > 30) GROUP BY kind
            """)


@program("NOT EXISTS over a table", mode="update")
def sql_exists(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    users(spark).createOrReplaceTempView("us")
    return spark.sql("""
                SELECT kind, count(*) n FROM ev WHERE NOT EXISTS (SELECT 1 FROM us WHERE us.user = ev.user) GROUP BY kind
            """)


@program("pipe syntax", mode="update")
def sql_pipe(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("""
                FROM ev |> WHERE amount > 10 |> AGGREGATE sum(amount) AS s, count(*) AS n GROUP BY kind |> EXTEND s / n
                AS mean |> SELECT kind, mean
            """)


@program("a LATERAL table function", mode="update")
def sql_lateral(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("ev")
    return spark.sql("SELECT t.tag, count(*) n FROM ev, LATERAL explode(tags) AS t(tag) GROUP BY t.tag")


@program("LATERAL VIEW inline", inputs="orders", mode="update")
def sql_inline(spark: SparkSession, orders: DataFrame) -> DataFrame:
    orders.createOrReplaceTempView("o")
    return spark.sql("""
                SELECT sku, sum(qty * price) r FROM o LATERAL VIEW inline(items) AS sku, qty, price GROUP BY sku
            """)


@program("spark.sql with arguments and DataFrames", mode="update")
def sql_args(spark: SparkSession, events: DataFrame) -> DataFrame:
    return spark.sql("SELECT kind, count(*) n FROM {ev} WHERE amount > :low GROUP BY kind", args={"low": 20}, ev=events)


@program("sum(if(...)), count(if(...)) and CASE", mode="complete")
def sum_if(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("e5")
    return spark.sql("""
                SELECT kind, sum(if(amount > 50, 1, 0)) a, count(if(value > 10, 1, null)) b, avg(CASE WHEN user IS NULL
                THEN 0 ELSE amount END) c, max(coalesce(value, -1)) d FROM e5 GROUP BY kind
            """)


@program("a window in a subquery, joined with a table", mode="update")
def sql_sub_join(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("e5")
    users(spark).createOrReplaceTempView("u5")
    return spark.sql("""
                SELECT u.job, w.start s, sum(n) total FROM (SELECT window(ts, '1 minute') w, user, 1 n FROM e5) x LEFT
                JOIN u5 u ON u.user = x.user GROUP BY u.job, w.start
            """)


@program("window with an offset and HAVING")
def sql_win3(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("e5")
    return spark.sql("""
                SELECT date_format(window.start, 'HH:mm:ss') s, count(*) c FROM e5 GROUP BY window(ts, '1 minute', '30
                seconds', '5 seconds') HAVING count(*) > 2
            """)


@program("UNION ALL of two aggregates of one view")
def sql_union_agg(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("e5")
    return spark.sql("""
                WITH m AS (SELECT window.start s, kind k, count(*) n FROM e5 GROUP BY window(ts, '1 minute'), kind), t AS
                (SELECT window.start s, 'all' k, count(*) n FROM e5 GROUP BY window(ts, '1 minute')) SELECT * FROM m
                UNION ALL SELECT * FROM t
            """)


@program("a view joined with itself, then windows", inputs="clicks")
def sql_self(spark: SparkSession, clicks: DataFrame) -> DataFrame:
    clicks.withWatermark("click_ts", "20 seconds").createOrReplaceTempView("c5")
    return spark.sql("""
                SELECT a.click_ad ad, count(*) n, window(a.click_ts, '1 minute').start s FROM c5 a JOIN c5 b ON
                a.click_ad = b.click_ad AND b.click_ts BETWEEN a.click_ts AND a.click_ts + INTERVAL 10 SECONDS GROUP BY
                a.click_ad, window(a.click_ts, '1 minute')
            """)


@program("SELECT DISTINCT window(...)")
def sql_distinct_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("e5")
    return spark.sql("SELECT DISTINCT window(ts, '1 minute') w, user FROM e5")


@program("a global aggregate with WHERE", mode="update")
def sql_count(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("e5")
    return spark.sql("SELECT count(*) n, count(value) v, max(ts) t FROM e5 WHERE kind LIKE 'o%'")


@program("IDENTIFIER, BETWEEN, IN and ordinals", mode="complete")
def sql_misc(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("e5")
    return spark.sql("""
                SELECT dayofweek(ts) d, minute(ts) m, count(*) n FROM IDENTIFIER('e5') WHERE amount BETWEEN 10 AND 90 AND
                kind IN ('open', 'close') GROUP BY 1, 2 ORDER BY 1, 2
            """)


@program("arrays and maps of collected values", mode="update")
def sql_lambda(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("e5")
    return spark.sql("""
                SELECT kind, array_sort(collect_set(upper(t))) ts, map_from_entries(array_sort(collect_set(struct(t,
                length(t))))) m FROM e5 LATERAL VIEW explode(tags) x AS t GROUP BY kind
            """)


@program("listagg ... WITHIN GROUP", mode="complete")
def listagg(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("kind").agg(F.expr("listagg(user, ',') WITHIN GROUP (ORDER BY user)").alias("l"))


@program("grouping_id and grouping", mode="complete")
def cube_gid(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.cube("kind", "user").agg(F.grouping_id().alias("gid"), F.grouping("kind").alias("g"), F.sum("amount").alias("s"))


@program("width_bucket, sorted", mode="complete", ordered=True)
def histogram(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy(F.width_bucket("value", F.lit(0.0), F.lit(50.0), F.lit(5)).alias("b")).count().orderBy("b")


@program("a top list of cleaned words", inputs="lines", mode="complete", ordered=True)
def regex(spark: SparkSession, lines: DataFrame) -> DataFrame:
    w = lines.select(F.explode(F.split(F.lower(F.regexp_replace("line", "[^a-zA-Z ]", "")), r"\s+")).alias("w")).filter("w != ''")
    return w.groupBy("w").count().filter("count > 1").sort(F.col("count").desc(), "w").limit(10)


@program("posexplode", inputs="lines", mode="update")
def posexplode(spark: SparkSession, lines: DataFrame) -> DataFrame:
    return lines.select(F.posexplode(F.split("line", " "))).groupBy("pos").agg(F.avg(F.length("col")).alias("len"))


@program("explode of a map", inputs="orders", mode="update")
def explode_map(spark: SparkSession, orders: DataFrame) -> DataFrame:
    return orders.select(F.explode("attrs").alias("k", "v")).groupBy("k", "v").count()


@program("toDF, aliases and a broadcast join", mode="update")
def todf(spark: SparkSession, events: DataFrame) -> DataFrame:
    d = events.select("kind", "amount").toDF("k", "v").alias("x")
    return (
        d.join(F.broadcast(spark.createDataFrame([("open", 1)], "k string, f int")).alias("y"), F.col("x.k") == F.col("y.k"), "left")
        .groupBy("x.k")
        .agg(F.sum(F.coalesce(F.col("y.f"), F.lit(0)) * F.col("x.v")).alias("s"))
    )


@program("columns that are called window and count", mode="update")
def odd_names(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.select(F.col("kind").alias("window"), F.col("amount").alias("count"), "ts")
        .groupBy("window")
        .agg(F.sum("count").alias("count"))
        .filter("`count` > 10")
    )
