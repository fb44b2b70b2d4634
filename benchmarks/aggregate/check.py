"""The final state equals Spark's batch answer over the rows that the engine read."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.aggregate.query import columns, query
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    state = finished.state().toDF("key", "n", "s").cache()
    # Batches are complete and in order, so the state shows how many rows it covers. Missing or doubled rows would show.
    rows = int(state.agg(F.sum("n")).collect()[0][0] or 0)
    short = f"the state holds {rows} rows of {finished.rows} that were processed" if rows < finished.rows else ""
    numbers = finished.spark.range(rows).withColumnRenamed("id", "value")
    return verdict(state, query(columns(numbers, finished.params), finished.params), rows, short)
