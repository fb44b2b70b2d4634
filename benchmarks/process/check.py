"""The final state equals Spark's batch answer over the rows that the engine read."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.aggregate.query import columns, query
from benchmarks.process.bench import BY_ROWS, IN_PANDAS, WITH_STATE
from benchmarks.process.query import VARIABLE
from headrace.bench.model import OURS, Verdict
from headrace.bench.runner import Finished, verdict


def check(finished: Finished) -> Verdict:
    found = state(finished).toDF("key", "n", "s").cache()
    # Batches are complete and in order, so the state shows how many rows it covers. Missing or doubled rows would show.
    rows = int(found.agg(F.sum("n")).collect()[0][0] or 0)
    short = f"the state holds {rows} rows of {finished.rows} that were processed" if rows < finished.rows else ""
    numbers = finished.spark.range(rows).withColumnRenamed("id", "value")
    return verdict(found, query(columns(numbers, finished.params), finished.params), rows, short)


def state(finished: Finished) -> DataFrame:
    form = finished.params["form"]
    if finished.engine == OURS:
        return finished.state().select("key", "n", "s")
    if form in (IN_PANDAS, BY_ROWS):
        reader = finished.spark.read.format("statestore").option("stateVarName", VARIABLE)
        return reader.load(str(finished.folder / "checkpoint")).select("key.*", "value.*")
    found = finished.state()
    return found.select("key", "groupState.n", "groupState.s") if form == WITH_STATE else found
