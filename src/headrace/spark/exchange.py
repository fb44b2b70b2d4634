"""Two tricks that save a shuffle or choose its destination. Spark's public API has neither, so both build a ``LogicalRDD`` by hand.

``claim_one_partition`` lets Spark aggregate inside each map task. ``located_rows`` makes tasks run on chosen executors. In both, the
``LogicalRDD`` declares a partitioning, and Spark's planner trusts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.gateway import (
    class_name,
    class_named,
    java_array,
    java_context,
    java_frame,
    java_session,
    jvm_of,
    none,
    seq,
    seq_maker,
    singleton,
)
from headrace.spark.plans import analyzed, frame_of
from headrace.spark.versions import dialect


def logical_rdd(session: SparkSession, output: Any, rdd: Any, partitioning: Any) -> DataFrame:
    """The DataFrame of an RDD of internal rows that has these columns and, as it declares, this partitioning."""
    ordering, is_streaming, absent = seq(session, []), False, none(session)
    stream = statistics = constraints = absent
    relation = jvm_of(session).org.apache.spark.sql.execution.LogicalRDD(
        *(output, rdd, partitioning, ordering, is_streaming, stream),
        *(java_session(session), statistics, constraints, *dialect().logical_rdd_flags),
    )
    return frame_of(session, relation)


def claim_one_partition(frame: DataFrame) -> DataFrame:
    """The same rows, declared as a single partition.

    Spark then groups them inside each map task, and returns one group per partition instead of one in all. That is partial aggregation
    before a shuffle. It is correct here because the kernels merge such groups. Nothing else may be built on the result.
    """
    session = frame.sparkSession
    plan = analyzed(frame)
    # A micro-batch is such an RDD already. Wrapped in another one, Spark would copy every row once more.
    rdd = plan.rdd() if class_name(plan) == "LogicalRDD" else java_frame(frame).queryExecution().toRdd()
    one = singleton(jvm_of(session).org.apache.spark.sql.catalyst.plans.physical, "SinglePartition")
    return logical_rdd(session, plan.output(), rdd, one)


def located_rows(session: SparkSession, column: str, locations: Sequence[str]) -> DataFrame:
    """A DataFrame whose partition i holds the number i and prefers location i, which is Spark's name for an executor.

    It declares the partitioning of ``repartitionById(len(locations), column)``. A cogroup with rows that were routed so needs no
    shuffle, and its task i runs at location i.
    """
    jvm, to_seq = jvm_of(session), seq_maker(session)

    def row(number: int) -> Any:
        return jvm.org.apache.spark.sql.RowFactory.create(java_array(session, jvm.java.lang.Object, [number]))

    located = [jvm.scala.Tuple2(row(at), to_seq([location])) for at, location in enumerate(locations)]
    tag = jvm.scala.reflect.ClassTag.apply(class_named(session, "org.apache.spark.sql.Row"))
    rdd = java_context(session).makeRDD(to_seq(located), tag)
    schema = jvm.org.apache.spark.sql.types.DataType.fromDDL(f"{column} int")
    execution = java_session(session).createDataFrame(rdd, schema).queryExecution()
    output = execution.analyzed().output()
    catalyst = jvm.org.apache.spark.sql.catalyst
    direct = catalyst.expressions.DirectShufflePartitionID(output.apply(0))
    partitioning = catalyst.plans.physical.ShufflePartitionIdPassThrough(direct, len(locations))
    return logical_rdd(session, output, execution.toRdd(), partitioning)
