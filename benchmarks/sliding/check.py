"""What was written is Spark's batch answer for all windows that have closed, and all that are due have closed."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.sliding.query import ADVANCE_S, DELAY_S, START_S, columns, query
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    spark, params = finished.spark, finished.params
    written = spark.read.parquet(str(finished.folder / "output")).select("key", "window", "average")
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    step_s, batches = params["step_s"], finished.rows // params["rows"]
    # Windows close at the end of a batch or, in Spark, in the next one. The last row of a batch lies one spacing before its end.
    reached_s = START_S + (batches - 1) * step_s - step_s / params["rows"] - DELAY_S
    due_s = int(reached_s // ADVANCE_S * ADVANCE_S)
    detail = f"windows up to {closed_s} are closed, those up to {due_s} are due" if closed_s < due_s else ""
    # All rows that can lie in a closed window, however many batches ended unseen before the query stopped.
    numbers = spark.range(max(1, (closed_s - START_S) // step_s + 2) * params["rows"]).withColumnRenamed("id", "value")
    expected = query(columns(numbers, params), params).filter(F.col("window.end").cast("long") <= closed_s)
    return verdict(written, expected, finished.rows, detail)
