"""Making Spark run each instance's task on the executor that we choose.

Spark has no way to say where a task is to run, but it asks an RDD where its partitions would like to be. The *anchor* is a DataFrame with
one row per instance, whose partition i likes instance i's home. It claims to be partitioned just as the routed rows are, so that
grouping both together (cogroup) shuffles nothing: task i gets the anchor's row and the instance's rows, and goes where the anchor is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.ids import InstanceId
from headrace.spark.exchange import located_rows

INSTANCE = "__instance"

Work = Callable[[InstanceId, pa.Table], pa.Table]
"""What an instance makes of its rows."""


PARTITIONS_MIN = 2
"""Spark makes something else of rows that are routed to one partition, which would have to be shuffled to go with the anchor."""


def anchor(session: SparkSession, locations: Sequence[str]) -> DataFrame:
    """One row per instance, in a partition of its own that wants to be at that location (Spark's name for an executor).

    There are at least two: a single instance has one beside it that gets no rows and has nothing to do.
    """
    locations = [*locations, *locations[:1]] if len(locations) < PARTITIONS_MIN else locations
    return located_rows(session, INSTANCE, locations)


def at_home(anchor: DataFrame, routed: DataFrame, work: Work, schema: StructType | str) -> DataFrame:
    """Every instance's work, done at its home. ``routed`` holds each row's instance in the column ``INSTANCE``, and is routed by it."""

    def together(key: tuple[pa.Scalar, ...], anchored: pa.Table, rows: pa.Table) -> pa.Table:
        return work(InstanceId(key[0].as_py()), rows.drop_columns([INSTANCE]))

    return anchor.groupBy(INSTANCE).cogroup(routed.groupBy(INSTANCE)).applyInArrow(together, schema)
