"""The benchmark's query, customers whose calls are long on average over sliding windows, and its comparison with Spark's batch answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace import Stream
from headrace.demo.places import Topics

RESULTS = "src string, window struct<start: timestamp, end: timestamp>, avg_duration double, calls bigint"

Calls = TypeVar("Calls", Stream, DataFrame)


def heavy_customers(calls: Calls) -> Calls:
    """The query. The same code runs on a Headrace stream and on a batch DataFrame of Spark."""
    return (
        calls.withColumn("duration", F.col("end").cast("long") - F.col("start").cast("long"))
        .withWatermark("ts", "1 minute")
        .groupBy("src", F.window("ts", "10 minutes", "1 minute"))
        .agg(F.avg("duration").alias("avg_duration"), F.count("*").alias("calls"))
        .filter(F.col("avg_duration") > 600)
    )


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison."""

    rows: int
    missing: int
    """Rows of the batch answer that the stream did not write."""
    extra: int
    """Rows of the stream that the batch answer does not have."""

    @property
    def equal(self) -> bool:
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.equal:
            return f"equal to Spark's batch answer: {self.rows:,} rows"
        return f"different from Spark's batch answer of {self.rows:,} rows: {self.missing:,} missing, {self.extra:,} too many"


def compare(spark: SparkSession, topics: Topics, lane: str, watermark_ms: int) -> Verdict:
    """Compare all windows that the final watermark has closed. Averages of whole seconds are exact, so nothing is rounded."""
    closed = F.col("window.end") <= F.timestamp_millis(F.lit(watermark_ms))
    wanted = _plain(heavy_customers(topics.calls(spark)).filter(closed)).cache()
    found = _plain(topics.results(spark, lane, RESULTS)).cache()
    return Verdict(wanted.count(), wanted.exceptAll(found).count(), found.exceptAll(wanted).count())


def _plain(rows: DataFrame) -> DataFrame:
    return rows.select("src", F.col("window.start").alias("start"), F.col("window.end").alias("end"), "avg_duration", "calls")
