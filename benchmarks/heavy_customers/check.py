"""The output equals the batch answer for all closed windows, and all windows that are due have closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.heavy_customers.query import HEAVY_S, columns
from benchmarks.sliding.check import averages, closed
from benchmarks.sliding.query import HOURLY
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished, columns: Callable[[DataFrame, dict[str, Any]], DataFrame] = columns) -> Verdict:
    """Check the result. ``columns`` makes the calls from row numbers."""
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("src", "window", "avg_duration", "calls")
    closed_s, numbers, detail = closed(finished, written, HOURLY)
    lasts = F.col("end").cast("long") - F.col("start").cast("long")
    found = averages(columns(numbers, finished.params), "src", lasts, HOURLY, closed_s).filter(F.col("average") > HEAVY_S)
    expected = found.select("src", "window", F.col("average").alias("avg_duration"), F.col("rows").alias("calls"))
    return verdict(written, expected, finished.rows, detail)
