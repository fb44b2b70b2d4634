"""The output equals Spark's batch answer for all closed windows, in spite of all changes of owners."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.handover.query import STEP_MS, columns
from benchmarks.rows import START_S
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    params = finished.params
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("key", "window", "n")
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    due_s = START_S + (finished.rows // params["rows"] - 2) * STEP_MS // 1000
    detail = f"windows up to {closed_s} are closed, those up to {due_s} are due" if closed_s < due_s else ""
    batches = (closed_s - START_S) * 1000 // STEP_MS + 1
    numbers = finished.spark.range(max(1, batches) * params["rows"]).withColumnRenamed("id", "value")
    windows = F.window("ts", f"{params['window_s']} seconds", "1 second")
    expected = columns(numbers, params).groupBy("key", windows).agg(F.count("*").alias("n"))
    over = expected.filter(F.col("window.end").cast("long") <= closed_s).select("key", "window", "n")
    return verdict(written, over, finished.rows, detail)
