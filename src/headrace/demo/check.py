"""Compares what the stream wrote with Spark's batch answer over the same files."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.demo.places import Places
from headrace.demo.query import heavy_customers

SHOWN = 5


@dataclass(frozen=True)
class Verdict:
    """The result of the comparison."""

    rows: int
    missing: int
    """Rows of the batch answer that the stream did not write."""
    extra: int
    """Rows of the stream that the batch answer does not have."""
    examples: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not self.missing and not self.extra

    def __str__(self) -> str:
        if self.equal:
            return f"equal to Spark's batch answer: {self.rows:,} rows"
        return f"different from Spark's batch answer of {self.rows:,} rows: {self.missing:,} missing, {self.extra:,} too many"


def compare(spark: SparkSession, places: Places, watermark_ms: int) -> Verdict:
    """Compare all windows that the final watermark has closed. Averages of whole seconds are exact, so nothing is rounded."""
    closed = F.col("window.end") <= F.timestamp_millis(F.lit(watermark_ms))
    wanted = _plain(heavy_customers(places.calls(spark)).filter(closed)).cache()
    found = _plain(places.results(spark)).cache()
    try:
        missing, extra = wanted.exceptAll(found), found.exceptAll(wanted)
        counts = (wanted.count(), missing.count(), extra.count())
        examples = [f"missing   {row}" for row in _few(missing)] if counts[1] else []
        examples += [f"too many  {row}" for row in _few(extra)] if counts[2] else []
        return Verdict(*counts, tuple(examples))
    finally:
        wanted.unpersist()
        found.unpersist()


def _plain(rows: DataFrame) -> DataFrame:
    return rows.select("src", F.col("window.start").alias("start"), F.col("window.end").alias("end"), "avg_duration", "calls")


def _few(rows: DataFrame) -> list[str]:
    return [str(tuple(str(value) for value in row)) for row in rows.orderBy("src", "start").limit(SHOWN).collect()]
