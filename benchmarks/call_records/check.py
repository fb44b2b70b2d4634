"""The output of each query equals the batch answer over the records that were read."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.call_records.query import BY_DISTRICT, columns, duration_s, durations
from benchmarks.heavy_customers.check import check as check_heavy_customers
from benchmarks.join.check import check as check_join
from benchmarks.product.check import check as check_product
from benchmarks.sliding.check import averages, closed
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check_aggregate(finished: Finished) -> Verdict:
    written = finished.spark.read.parquet(str(finished.folder / "output")).select("district", "window", "calls", "avg_duration")
    closed_s, numbers, detail = closed(finished, written, BY_DISTRICT)
    return verdict(written, expected_by_district(columns(numbers, finished.params), closed_s), finished.rows, detail)


def expected_by_district(records: DataFrame, closed_s: int) -> DataFrame:
    """The answer, computed differently from the query: calls are summed by ten seconds first."""
    found = averages(records, "district", duration_s(), BY_DISTRICT, closed_s)
    return found.select("district", "window", F.col("rows").alias("calls"), F.col("average").alias("avg_duration"))


def check_map(finished: Finished) -> Verdict:
    written = finished.spark.read.parquet(str(finished.folder / "output"))
    count = written.count()
    short = f"{count} rows of {finished.rows}" if count < finished.rows else ""
    numbers = finished.spark.range(count).withColumnRenamed("id", "value")
    return verdict(written, durations(columns(numbers, finished.params), finished.params), finished.rows, short)


def check(finished: Finished) -> Verdict:
    name = finished.params["query"]
    if name == "aggregate":
        return check_aggregate(finished)
    if name == "map":
        return check_map(finished)
    of = {"join": check_join, "product": check_product, "heavy-customers": check_heavy_customers}[name]
    return of(finished, columns)
