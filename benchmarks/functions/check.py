"""The final state has every key and its number of rows. Results of the functions are compared with Spark's in the tests."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.aggregate.query import columns
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    state = finished.state()
    # What follows the count is Spark's buffer or our result.
    state = state.select(*[F.col(name) for name in state.columns[:2]]).toDF("key", "n").cache()
    rows = int(state.agg(F.sum("n")).collect()[0][0] or 0)
    short = f"the state holds {rows} rows of {finished.rows} that were processed" if rows < finished.rows else ""
    numbers = columns(finished.spark.range(rows).withColumnRenamed("id", "value"), finished.params)
    return verdict(state, numbers.groupBy("key").agg(F.count("*").alias("n")), rows, short)
