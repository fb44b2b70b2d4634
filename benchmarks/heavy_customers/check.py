"""The customers written are those of a batch answer, for all windows that have closed, and all that are due have closed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.heavy_customers.query import HEAVY_S, columns
from benchmarks.sliding.check import closed
from benchmarks.sliding.query import ADVANCE_S, WINDOW_S
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("src", "window", "avg_duration", "calls")
    closed_s, numbers, detail = closed(finished, written)
    return verdict(written, expected(columns(numbers, finished.params), closed_s), finished.rows, detail)


def expected(calls: DataFrame, closed_s: int) -> DataFrame:
    """By another way than the query's, which also is quicker: calls are summed by minute, and minutes by window."""
    minute = (F.floor(F.unix_seconds("ts") / ADVANCE_S) * ADVANCE_S).alias("minute")
    lasts = (F.col("end").cast("long") - F.col("start").cast("long")).alias("lasts")
    by_minute = calls.select("src", minute, lasts).groupBy("src", "minute").agg(F.sum("lasts").alias("total"), F.count("*").alias("n"))
    first = F.col("minute") - WINDOW_S + ADVANCE_S
    spread = by_minute.withColumn("begin", F.explode(F.sequence(first, F.col("minute"), F.lit(ADVANCE_S).cast("long"))))
    over = spread.filter(F.col("begin") + WINDOW_S <= closed_s).groupBy("src", "begin")
    summed = over.agg((F.sum("total") / F.sum("n")).alias("avg_duration"), F.sum("n").alias("calls"))
    start, end = F.timestamp_seconds("begin"), F.timestamp_seconds(F.col("begin") + WINDOW_S)
    window = F.struct(start.alias("start"), end.alias("end")).alias("window")
    return summed.filter(F.col("avg_duration") > HEAVY_S).select("src", window, "avg_duration", "calls")
