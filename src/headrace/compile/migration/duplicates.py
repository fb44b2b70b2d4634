"""Carrying over the keys that ``dropDuplicates`` and ``dropDuplicatesWithinWatermark`` remember."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.migration.registry import Carried, carries, check_same_types, fields_of, key_column
from headrace.compile.plan import StatefulPlan
from headrace.compile.windowing import NEVER
from headrace.graph.nodes import DedupNode, DedupWithinNode
from headrace.operators.dedup_within import DropDuplicatesWithin
from headrace.operators.kernel import MAIN
from headrace.operators.lifetime import WRITTEN
from headrace.spark import plans
from headrace.spark.spark_state import SparkState
from headrace.state.layout import SUB


@carries(DedupNode, "dedupe")
def carry_keys(node: DedupNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """Spark keeps the columns that are compared, the event time among them."""
    rows, keys = _keys(node, list(node.subset), state)
    kinds = {f.name: f.dataType for f in node.source.schema.fields}
    # A timestamp is stored as it is, so the key has the event time too.
    sub = [
        F.coalesce(event_time.micros(F.col(f"k{at}"), kinds[name]), F.lit(NEVER)).cast("long").alias(SUB)
        for at, name in enumerate(node.subset)
        if plans.watermark_delay_ms(node.source, name) is not None
    ]
    return {MAIN: rows.select(*keys).select("*", *sub).select(plan.input.hashed, "*")}


@carries(DedupWithinNode, "dedupeWithinWatermark")
def carry_keys_for_a_time(node: DedupWithinNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """Spark keeps when a key expires; we keep the event time of its row."""
    names = [f.name for f in node.source.schema.fields if f.name in node.subset]
    rows, keys = _keys(node, names, state)
    assert isinstance(plan.operator, DropDuplicatesWithin)
    written = (F.col("value.expiresAtMicros") - F.lit(plan.operator.delay_us)).cast("long").alias(WRITTEN)
    return {MAIN: rows.select(*keys, written).select(plan.input.hashed, "*")}


def _keys(node: DedupNode | DedupWithinNode, names: list[str], state: SparkState) -> tuple[DataFrame, list[Column]]:
    """Spark's rows, and their key columns under our names. Spark has them by name, in an order of its own."""
    rows = state.rows()
    known: dict[str, T.DataType] = {f.name: f.dataType for f in node.source.schema.fields}
    theirs = {f.name: f for f in fields_of(rows, "key")}
    # Names that differ by case alone were made different for us; then only the order tells.
    found = [theirs[name] for name in names] if set(names) == set(theirs) else fields_of(rows, "key")
    check_same_types(state.where, found, [(name, known[name]) for name in names])
    columns = [key_column(f, known[name]).alias(f"k{at}") for at, (f, name) in enumerate(zip(found, names, strict=True))]
    return rows, columns
