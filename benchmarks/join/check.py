"""The output equals the batch answer over all rows that were joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.join.query import columns, query
from benchmarks.rows import START_S
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished, columns: Callable[[DataFrame, dict[str, Any]], DataFrame] = columns) -> Verdict:
    """Check the result. ``columns`` makes the calls from row numbers."""
    spark, params = finished.spark, finished.params
    written = spark.read.parquet(str(finished.folder / "output")).select("src", "ts", "ts_right", "km")
    # Batches are complete and in order, and each finds pairs. So the newest call in the output shows how far the query has come.
    newest_ms = int(written.agg(F.unix_millis(F.max("ts_right"))).collect()[0][0] or 0)
    batches = (newest_ms - START_S * 1000) // (params["step_s"] * 1000) + 1
    short = f"pairs of {batches} batches of {finished.rows // params['rows']}" if batches * params["rows"] < finished.rows else ""
    numbers = spark.range(max(0, batches) * params["rows"]).withColumnRenamed("id", "value")
    return verdict(written, query(columns(numbers, params), params), finished.rows, short)
