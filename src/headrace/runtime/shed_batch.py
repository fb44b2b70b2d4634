"""Load shedding at the beginning of a batch: sets what it drops, before Spark reads the rows of the sources."""

from __future__ import annotations

import math

from pyspark.sql import DataFrame

from headrace.compile.dataflow import Dataflow
from headrace.compile.shedding import NO_DROPPING, Dropping
from headrace.control.shedding.costs import SCAN
from headrace.ids import Version
from headrace.runtime.shedding import Shedder
from headrace.runtime.spark_query import SparkQuery
from headrace.spark.kept_rows import compute
from headrace.spark.observed import observed_in_batch
from headrace.spark.task_times import tagged
from headrace.state.drops import Counted, Drop, Drops, ShedId
from headrace.state.journal import Record


def dropping_of(
    flow: Dataflow, spark: SparkQuery, shedder: Shedder | None, batch: DataFrame, version: Version, record: Record | None
) -> Dropping:
    """What a version drops, from now on. If it was committed before, that is in its record. Attempts at it all drop the same."""
    if not flow.sheds:
        return NO_DROPPING

    def turned(drops: Drops | None) -> Dropping:
        return flow.dropping(drops, lambda: observed_in_batch(spark.execution()))

    if record is not None or shedder is None:
        return turned(None if record is None else record.facts.drops)
    counted = None
    if shedder.wants_count(version):
        counted = _count(batch, turned(Drops(0, {place: Drop(0, math.inf) for place in flow.sheds})))
    return turned(shedder.choose(version, counted))


def _count(batch: DataFrame, dropping: Dropping) -> dict[ShedId, Counted]:
    """The rows that come to each place, counted in the plans of the sources while they drop all that may be dropped."""
    dropping.again()
    cached = batch.is_cached
    if cached:
        batch.unpersist()
    compute(batch)
    if cached:
        batch.persist()
    dropping.learn_from_sources()
    return dropping.counted


def scan(batch: DataFrame, dropping: Dropping) -> None:
    """If several branches read a batch, let Spark read and cache its rows in a job of its own, so that it says what that costs."""
    if dropping.places and batch.is_cached:
        with tagged(batch.sparkSession.sparkContext, SCAN, dropping.tags):
            compute(batch)
