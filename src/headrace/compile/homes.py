"""Making Spark run each instance's task on the executor that we choose.

Spark cannot be told where to run a task, but it asks an RDD for the preferred locations of its partitions. The *anchor* is a DataFrame with
one row per instance. Its partition i prefers the home of instance i. It claims to be partitioned like the routed rows, so a cogroup of both
shuffles nothing: task i gets the anchor's row and the instance's rows, and runs where the anchor prefers.
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
"""The work of an instance: its number and its rows give the rows that it returns."""


PARTITIONS_MIN = 2
"""Spark plans rows in a single partition differently: they would be shuffled again to be grouped with the anchor."""


def anchor(session: SparkSession, locations: Sequence[str]) -> DataFrame:
    """One row per instance, each in a partition that prefers the instance's location (Spark's name for an executor).

    There are at least two partitions. If there is one instance, the second partition gets no rows.
    """
    locations = [*locations, *locations[:1]] if len(locations) < PARTITIONS_MIN else locations
    return located_rows(session, INSTANCE, locations)


def at_home(anchor: DataFrame, routed: DataFrame, work: Work, schema: StructType | str) -> DataFrame:
    """Run `work` for every instance at its home. `routed` is partitioned by its column `INSTANCE`, the number of each row's instance."""

    def together(key: tuple[pa.Scalar, ...], anchored: pa.Table, rows: pa.Table) -> pa.Table:
        return work(InstanceId(key[0].as_py()), rows.drop_columns([INSTANCE]))

    return anchor.groupBy(INSTANCE).cogroup(routed.groupBy(INSTANCE)).applyInArrow(together, schema)
