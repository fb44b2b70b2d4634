"""Making Spark run each instance's task on the executor that we choose.

Spark has no way to say where a task is to run, but it asks an RDD where its partitions would like to be. The *anchor* is a DataFrame with
one row per instance, whose partition i likes instance i's home. It claims to be partitioned just as the routed rows are, so that
grouping both together (cogroup) shuffles nothing: task i gets the anchor's row and the instance's rows, and goes where the anchor is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

INSTANCE = "__instance"

Work = Callable[[int, pa.Table], pa.Table]
"""What an instance makes of its rows."""


PARTITIONS_MIN = 2
"""Spark makes something else of rows that are routed to one partition, which would have to be shuffled to go with the anchor."""


def anchor(session: SparkSession, locations: Sequence[str]) -> DataFrame:
    """One row per instance, in a partition of its own that wants to be at that location (Spark's name for an executor).

    There are at least two: a single instance has one beside it that gets no rows and has nothing to do.
    """
    locations = [*locations, *locations[:1]] if len(locations) < PARTITIONS_MIN else locations
    jvm: Any = session._jvm
    context: Any = session.sparkContext
    java: Any = session._jsparkSession

    def row(instance: int) -> Any:
        values = context._gateway.new_array(jvm.java.lang.Object, 1)
        values[0] = instance
        return jvm.org.apache.spark.sql.RowFactory.create(values)

    located = [jvm.scala.Tuple2(row(at), jvm.PythonUtils.toSeq([location])) for at, location in enumerate(locations)]
    row_class = jvm.java.lang.Class.forName("org.apache.spark.sql.Row")
    rdd = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(located), jvm.scala.reflect.ClassTag.apply(row_class))
    frame = java.createDataFrame(rdd, jvm.org.apache.spark.sql.types.DataType.fromDDL(f"{INSTANCE} int"))
    execution = frame.queryExecution()
    output = execution.analyzed().output()
    direct = jvm.org.apache.spark.sql.catalyst.expressions.DirectShufflePartitionID(output.apply(0))
    partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.ShufflePartitionIdPassThrough(direct, len(locations))
    none = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.LogicalRDD(
        output, execution.toRdd(), partitioning, jvm.PythonUtils.toSeq([]), False, none, java, none, none, False
    )
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(java, relation), session)


def at_home(anchor: DataFrame, routed: DataFrame, work: Work, schema: StructType | str) -> DataFrame:
    """Every instance's work, done at its home. ``routed`` holds each row's instance in the column ``INSTANCE``, and is routed by it."""

    def together(key: tuple[pa.Scalar, ...], anchored: pa.Table, rows: pa.Table) -> pa.Table:
        return work(key[0].as_py(), rows.drop_columns([INSTANCE]))

    return anchor.groupBy(INSTANCE).cogroup(routed.groupBy(INSTANCE)).applyInArrow(together, schema)
