"""Sending each row to its instance, and the two tricks that make Spark do it in one shuffle."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.ids import SLOT_BITS, SLOTS
from headrace.state.layout import HASH
from headrace.state.slots import SlotRanges


def table(instances: tuple[SlotRanges, ...]) -> list[int]:
    """The routing table: slot to instance."""
    slots = [0] * SLOTS
    for instance, ranges in enumerate(instances):
        for lo, hi in ranges:
            slots[lo:hi] = [instance] * (hi - lo)
    return slots


def route(rows: DataFrame, instances: tuple[SlotRanges, ...]) -> DataFrame:
    """Partition i of the result holds instance i's rows."""
    count = len(instances)
    if count == 1:
        return rows.coalesce(1)
    return rows.repartitionById(count, instance_of(F.col(HASH), table(instances)))


def instance_of(h: Column, slots: list[int]) -> Column:
    """The table goes in as one string: a literal list of 4096 numbers takes Catalyst seconds."""
    slot = F.shiftrightunsigned(h, 64 - SLOT_BITS).cast("int")
    return F.get(F.split(F.lit(",".join(map(str, slots))), ",").cast("array<int>"), slot)


def claim_partitioned_by(frame: DataFrame, column: str) -> DataFrame:
    """The same rows; Catalyst now believes that all rows of one value of ``column`` lie in one partition.

    Grouping by that column and others then stays inside the map task, and gives one group per partition instead of one in all. That is
    what combining before a shuffle means, and harmless, because the kernels merge such groups. Nothing else may be built on the claim.
    Spark has no public way to say it, so this builds a LogicalRDD by hand.
    """
    session: Any = frame.sparkSession
    jvm: Any = session._jvm
    execution = frame._jdf.queryExecution()
    rdd, output = execution.toRdd(), execution.analyzed().output()
    attribute = next(output.apply(i) for i in range(output.size()) if output.apply(i).name() == column)
    partitioning = jvm.org.apache.spark.sql.catalyst.plans.physical.HashPartitioning(
        jvm.PythonUtils.toSeq([attribute]), rdd.getNumPartitions()
    )
    none = jvm.scala.Option.empty()
    relation = jvm.org.apache.spark.sql.execution.LogicalRDD(
        output, rdd, partitioning, jvm.PythonUtils.toSeq([]), False, none, session._jsparkSession, none, none, False
    )
    return DataFrame(jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, relation), session)
