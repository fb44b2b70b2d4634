"""The output is right for all closed windows, and all windows that are due have closed."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.rows import START_S
from benchmarks.sliding.query import HOURLY, Windows, columns
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("key", "window", "average")
    closed_s, numbers, detail = closed(finished, written, HOURLY)
    expected = averages(columns(numbers, finished.params), "key", F.col("v"), HOURLY, closed_s)
    return verdict(written, expected.select("key", "window", "average"), finished.rows, detail)


def closed(finished: Finished, written: DataFrame, windows: Windows) -> tuple[int, DataFrame, str]:
    """The end of the last closed window, the row numbers that can be in closed windows, and windows that are due but missing.

    The first batch covers a whole window.
    """
    params = finished.params
    closed_s = int(written.agg(F.max("window.end").cast("long")).collect()[0][0] or 0)
    step_s, batches = params["step_s"], finished.rows // params["rows"]
    # Windows close at the end of a batch or, in Spark, in the next one. The last row of a batch is one spacing before its end.
    reached_s = START_S + windows.size_s + (batches - 2) * step_s - step_s / params["rows"] - windows.delay_s
    due_s = int(reached_s // windows.advance_s * windows.advance_s)
    detail = f"windows up to {closed_s} are closed, those up to {due_s} are due" if closed_s < due_s else ""
    # Any number of batches may have ended unseen before the query stopped.
    rows = max(1, (closed_s - START_S - windows.size_s) // step_s + 3) * params["rows"]
    return closed_s, finished.spark.range(rows).withColumnRenamed("id", "value"), detail


def averages(rows: DataFrame, key: str, value: Any, windows: Windows, closed_s: int) -> DataFrame:
    """By key and window: the average of a value, and the number of rows.

    This is computed differently from the query, to be fast: rows are summed by advance first, then these sums by window.
    """
    size_s, advance_s = windows.size_s, windows.advance_s
    pane = (F.floor(F.unix_seconds("ts") / advance_s) * advance_s).alias("pane")
    by_pane = rows.select(key, pane, value.alias("v")).groupBy(key, "pane").agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    first = F.col("pane") - size_s + advance_s
    spread = by_pane.withColumn("begin", F.explode(F.sequence(first, F.col("pane"), F.lit(advance_s).cast("long"))))
    over = spread.filter(F.col("begin") + size_s <= closed_s).groupBy(key, "begin")
    summed = over.agg((F.sum("total") / F.sum("n")).alias("average"), F.sum("n").alias("rows"))
    start, end = F.timestamp_seconds("begin"), F.timestamp_seconds(F.col("begin") + size_s)
    return summed.select(key, F.struct(start.alias("start"), end.alias("end")).alias("window"), "average", "rows")
