"""The results of every batch equal a count with numpy, and the final state equals Spark's batch answer."""

from __future__ import annotations

from pyspark.sql import functions as F

from benchmarks.recovery.query import deliveries, query
from benchmarks.recovery.rows import columns, first_wrong
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    params = finished.params
    state = finished.state().toDF("key", "n", "s").cache()
    rows = int(state.agg(F.sum("n")).collect()[0][0] or 0)
    wrong = first_wrong(int(params["keys"]), (int(params["rows"]), int(params["preload_rows"])), deliveries(finished.folder))
    if rows < finished.rows:
        wrong = f"the state holds {rows} rows of {finished.rows} that were processed"
    numbers = finished.spark.range(rows).withColumnRenamed("id", "value")
    return verdict(state, query(columns(numbers, params), params), rows, wrong)
