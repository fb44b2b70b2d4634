"""What was written is Spark's batch answer for all windows that have closed, and all that are due have closed."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.sliding.query import DELAY_S, START_S, columns, query
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    spark, params = finished.spark, finished.params
    written = spark.read.parquet(str(finished.folder / "output")).select("key", "window", "average")
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    # Windows close at the end of a batch or, in Spark, in the next one.
    batches = finished.rows // params["rows"]
    due_s = START_S + (batches - 1) * params["step_s"] - 60 - DELAY_S
    detail = f"windows up to {closed_s} are closed, those up to {due_s} are due" if closed_s < due_s else ""
    # More rows than were taken do no harm: windows that they fall into are not closed yet. Two batches may have ended unseen.
    numbers = spark.range((batches + 2) * params["rows"]).withColumnRenamed("id", "value")
    expected = query(columns(numbers, params), params).filter(F.col("window.end").cast("long") <= closed_s)
    return verdict(written, expected, finished.rows, detail)
