"""What was written is right for all windows that have closed, and all that are due have closed."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.sliding.query import ADVANCE_S, DELAY_S, START_S, WINDOW_S, columns
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("key", "window", "average")
    closed_s, numbers, detail = closed(finished, written)
    return verdict(written, expected(columns(numbers, finished.params), closed_s), finished.rows, detail)


def closed(finished: Finished, written: DataFrame) -> tuple[int, DataFrame, str]:
    """Up to when windows have closed; the numbers of all rows that can lie in them; and, if windows are missing that are due, which."""
    params = finished.params
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    step_s, batches = params["step_s"], finished.rows // params["rows"]
    # Windows close at the end of a batch or, in Spark, in the next one. The last row of a batch lies one spacing before its end.
    reached_s = START_S + WINDOW_S + (batches - 2) * step_s - step_s / params["rows"] - DELAY_S
    due_s = int(reached_s // ADVANCE_S * ADVANCE_S)
    detail = f"windows up to {closed_s} are closed, those up to {due_s} are due" if closed_s < due_s else ""
    # However many batches ended unseen before the query stopped.
    rows = max(1, (closed_s - START_S - WINDOW_S) // step_s + 3) * params["rows"]
    return closed_s, finished.spark.range(rows).withColumnRenamed("id", "value"), detail


def expected(rows: DataFrame, closed_s: int) -> DataFrame:
    """The same answer by another way, so that the check ends soon: rows are summed by minute first, minutes then by window."""
    by_minute = rows.groupBy("key", (F.floor(F.unix_seconds("ts") / ADVANCE_S) * ADVANCE_S).alias("minute")).agg(
        F.sum("v").alias("total"), F.count("v").alias("rows")
    )
    first = F.col("minute") - WINDOW_S + ADVANCE_S
    spread = by_minute.withColumn("start", F.explode(F.sequence(first, F.col("minute"), F.lit(ADVANCE_S).cast("long"))))
    over = spread.filter(F.col("start") + WINDOW_S <= closed_s)
    summed = over.groupBy("key", "start").agg((F.sum("total") / F.sum("rows")).alias("average"))
    start, end = F.timestamp_seconds("start"), F.timestamp_seconds(F.col("start") + WINDOW_S)
    return summed.select("key", F.struct(start.alias("start"), end.alias("end")).alias("window"), "average")
