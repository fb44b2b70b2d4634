"""The same in SQL."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.conformance.data import users
from tests.conformance.program import program


@program("SELECT ... GROUP BY over a view", mode="complete", quick=True)
def group_by(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT user, count(*) AS n, sum(amount) AS total FROM events GROUP BY user HAVING count(*) > 3")


@program("windows in SQL")
def window(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("timed_events")
    return spark.sql("SELECT window.start, window.end, kind, avg(value) AS mean FROM timed_events GROUP BY window(ts, '1 minute'), kind")


@program("sliding windows in SQL", mode="update")
def sliding_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT window, count(*) AS n FROM events GROUP BY window(ts, '2 minutes', '1 minute')")


@program("session windows in SQL")
def session_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.withWatermark("ts", "20 seconds").createOrReplaceTempView("timed_events")
    return spark.sql("SELECT session_window.start, user, count(*) AS n FROM timed_events GROUP BY session_window(ts, '15 seconds'), user")


@program("a chain of common table expressions", mode="update")
def with_clauses(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql(
        """
        WITH big AS (SELECT kind, amount FROM events WHERE amount > 20),
             totals AS (SELECT kind, sum(amount) AS total, count(*) AS n FROM big GROUP BY kind)
        SELECT kind, total / n AS mean FROM totals WHERE n > 2
        """
    )


@program("a common table expression that is used twice", inputs="clicks")
def with_clause_twice(spark: SparkSession, clicks: DataFrame) -> DataFrame:
    clicks.withWatermark("click_ts", "10 seconds").createOrReplaceTempView("timed_clicks")
    return spark.sql(
        """
        WITH c AS (SELECT click_ad AS ad, click_ts AS ts FROM timed_clicks WHERE click_ad < 20)
        SELECT a.ad, a.ts AS first, b.ts AS second FROM c a JOIN c b
        ON a.ad = b.ad AND a.ts < b.ts AND b.ts <= a.ts + interval 20 seconds
        """
    )


@program("a subquery in FROM, and an alias", mode="update")
def subquery(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT t.kind AS k, max(t.a) AS m FROM (SELECT kind, amount + 1 AS a FROM events) t GROUP BY t.kind")


@program("JOIN ... ON in SQL", inputs="clicks views")
def join(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks.withWatermark("click_ts", "20 seconds").createOrReplaceTempView("timed_clicks")
    views.withWatermark("view_ts", "10 seconds").createOrReplaceTempView("timed_views")
    return spark.sql(
        """
        SELECT v.ad, v.country, c.click_user FROM timed_views v LEFT JOIN timed_clicks c
        ON v.ad = c.click_ad AND c.click_ts BETWEEN v.view_ts AND v.view_ts + INTERVAL 30 SECONDS
        """
    )


@program("a join that is written as FROM a, b WHERE", inputs="clicks views")
def comma_join(spark: SparkSession, clicks: DataFrame, views: DataFrame) -> DataFrame:
    clicks.withWatermark("click_ts", "20 seconds").createOrReplaceTempView("timed_clicks")
    views.withWatermark("view_ts", "10 seconds").createOrReplaceTempView("timed_views")
    return spark.sql(
        "SELECT ad, click_user FROM timed_views, timed_clicks WHERE ad = click_ad AND click_ts >= view_ts "
        "AND click_ts <= view_ts + interval 10 seconds AND country = 'it'"
    )


@program("a join with a table, and GROUP BY of an expression", mode="complete")
def static_join(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    users(spark).createOrReplaceTempView("known_users")
    return spark.sql("SELECT upper(job) AS job, sum(amount) AS s FROM events JOIN known_users USING (user) GROUP BY upper(job)")


@program("spark.table of a streaming view", mode="update")
def table_of_a_view(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.table("events").groupBy("kind").count()


@program("a view of a view with an aggregate", mode="complete")
def view_of_an_aggregate(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    spark.sql("SELECT user, count(*) AS n FROM events GROUP BY user").createOrReplaceTempView("counts")
    return spark.sql("SELECT concat(user, '!') AS who, n FROM counts WHERE n > 1")


@program("SELECT DISTINCT in update mode", mode="update")
def select_distinct(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT DISTINCT user, kind FROM events")


@program("GROUP BY without an aggregate", mode="update")
def group_without_aggregate(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT user FROM events GROUP BY user")


@program("CASE and aggregates with FILTER", mode="update")
def filters(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql(
        "SELECT kind, sum(CASE WHEN amount > 50 THEN amount ELSE 0 END) AS big, count(*) FILTER (WHERE value < 10) AS small "
        "FROM events GROUP BY kind"
    )


@program("ORDER BY and LIMIT in complete mode", mode="complete", ordered=True)
def order_by(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT user, sum(amount) AS s FROM events GROUP BY user ORDER BY s DESC, user LIMIT 2")


@program("UNION ALL of two streams", inputs="events clicks", mode="update")
def union_all(spark: SparkSession, events: DataFrame, clicks: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    clicks.createOrReplaceTempView("clicks")
    return spark.sql("SELECT who, count(*) AS n FROM (SELECT user AS who FROM events UNION ALL SELECT click_user FROM clicks) GROUP BY who")


@program("LATERAL VIEW explode", mode="update")
def lateral_view(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT tag, count(*) AS n FROM events LATERAL VIEW explode(tags) t AS tag GROUP BY tag")


@program("GROUPING SETS", mode="update")
def grouping_sets(spark: SparkSession, events: DataFrame) -> DataFrame:
    events.createOrReplaceTempView("events")
    return spark.sql("SELECT kind, user, count(*) AS n FROM events GROUP BY GROUPING SETS ((kind), (user))")
