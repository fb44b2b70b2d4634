"""Results equal Spark's batch answer to the same question, in Nexmark's own words, over the same events.

append, by the watermark   all results up to the newest one must be there, and results that are due must have come
append, at once            the answer over the rows of the finished batches
update                     the newest row of each key is the answer over the rows of the finished batches
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.nexmark.events import AUCTION_MS_MAX, JITTER_MS
from benchmarks.nexmark.queries import QUERIES, UPDATE, Query
from benchmarks.nexmark.sql import REFERENCE, SQL
from benchmarks.nexmark.tables import so_far
from benchmarks.rows import START_S
from headrace.bench.model import Verdict
from headrace.bench.runner import Finished, verdict

DELAY_S = 4
UNSEEN = 3
"""A query may have finished so many batches more than were seen before it stopped."""


def check(finished: Finished) -> Verdict:
    spark, params = finished.spark, finished.params
    query = QUERIES[params["query"]]
    if query.mode == UPDATE:
        found = newest(spark, query, finished)
    else:
        # With a schema, folders of partitions do not become numbers and dates.
        found = spark.read.schema(answer(spark, query, 1, params).schema).parquet(str(finished.folder / "output"))
    if query.shown:
        found.createOrReplaceTempView("found")
        found = spark.sql(query.shown)
    found = found.cache()
    try:
        return final(found, query, finished) if query.final else complete(found, query, finished)
    finally:
        found.unpersist()


def answer(spark: SparkSession, query: Query, rows: int, params: dict[str, Any]) -> DataFrame:
    """Spark's batch answer over the first rows."""
    so_far(spark, rows, params).register()
    return spark.sql(REFERENCE.get(query.name) or SQL[query.name])


def newest(spark: SparkSession, query: Query, finished: Finished) -> DataFrame:
    """The newest row of each key. A folder without the mark of success is of a batch that was interrupted."""
    folders = [path for path in (finished.folder / "output").glob("batch=*") if (path / "_SUCCESS").exists()]
    rows = spark.read.option("basePath", str(finished.folder / "output")).parquet(*map(str, folders))
    values = [name for name in rows.columns if name not in (*query.keys, "batch")]
    last = rows.groupBy(*query.keys).agg(F.max_by(F.struct(*values), "batch").alias("last"))
    return last.select(*query.keys, "last.*")


def complete(found: DataFrame, query: Query, finished: Finished) -> Verdict:
    """The results of all rows up to the end of some batch. It is the last one that was seen, or one of the next."""
    verdicts: list[Verdict] = []
    for unseen in range(UNSEEN + 1):
        rows = finished.rows + unseen * finished.params["rows"]
        expected = answer(finished.spark, query, rows, finished.params)
        verdicts.append(verdict(found.select(*expected.columns), expected, rows))
        if verdicts[-1].equal:
            return verdicts[-1]
    return verdicts[0]


def final(found: DataFrame, query: Query, finished: Finished) -> Verdict:
    """The results up to the newest one. The watermark has passed it, so all others up to then must have come."""
    params = finished.params
    newest_ms = int(found.agg(F.unix_millis(F.max(F.expr(query.final)))).collect()[0][0] or 0)
    step_ms, batches = params["step_s"] * 1000, finished.rows // params["rows"]
    # By the last batch that was seen, with the watermark of the one before, as in Spark.
    due_ms = (START_S + (batches - 2) * params["step_s"] - DELAY_S - query.lag_s) * 1000 - JITTER_MS - step_ms
    missing = f"results have come up to {newest_ms - START_S * 1000} ms, and were due up to {due_ms - START_S * 1000} ms"
    needed_ms = max(0, newest_ms - START_S * 1000) + AUCTION_MS_MAX + JITTER_MS + step_ms
    rows = -(-needed_ms // step_ms) * params["rows"]
    # Cached, because Spark's optimizer would move a condition on sessions below the aggregate, and so cut sessions short.
    whole = answer(finished.spark, query, rows, params).cache()
    expected = whole.filter(F.unix_millis(F.expr(query.final)) <= newest_ms)
    return verdict(found.select(*expected.columns), expected, finished.rows, missing if newest_ms < due_ms else "")
