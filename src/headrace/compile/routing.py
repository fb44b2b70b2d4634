"""Sending each row to its instance, in one shuffle."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.homes import INSTANCE, PARTITIONS_MIN
from headrace.ids import SLOT_BITS, hash_at
from headrace.spark import expressions
from headrace.state.layout import HASH, SUB
from headrace.state.routing import WHOLE, Routing
from headrace.state.units import Units

_SIGN = -(1 << 63)


def route(rows: DataFrame, routing: Routing, in_task: bool = True) -> DataFrame:
    """Partition rows by instance: partition i of the result has the rows of instance i.

    A single instance needs no shuffle, unless the rows are computed by instances of another operator (`in_task` is false). Without a
    shuffle those would all run in one task, but an instance is identified by the number of its task.
    """
    tasks = len(routing.parts)
    if tasks == 1:
        return rows.coalesce(1) if in_task else rows.repartition(1)
    if routing.recreations or routing.spread:
        return _with_instance(rows, routing, INSTANCE).repartitionById(tasks, F.col(INSTANCE)).drop(INSTANCE)
    return rows.repartitionById(tasks, _instance_of(rows.sparkSession.sparkContext, routing))


def route_by_column(rows: DataFrame, routing: Routing, column: str) -> DataFrame:
    """Like `route`, for instances with homes: the result also has each row's instance in a column."""
    return _with_instance(rows, routing, column).repartitionById(max(PARTITIONS_MIN, len(routing.parts)), F.col(column))


def _with_instance(rows: DataFrame, routing: Routing, column: str) -> DataFrame:
    """Add each row's instance in a column. A row that goes to two instances is copied."""
    context = rows.sparkSession.sparkContext
    if routing.recreations:
        return rows.withColumn(column, F.explode(_both_of(context, routing)))
    owner = _instance_of(context, routing)
    if routing.spread:
        # Chosen by a hash of the row, not at random: a task that is repeated must send each row to the same instance.
        dealt = F.pmod(F.xxhash64(*rows.columns), F.lit(routing.instances)).cast("int")
        owner = F.when(_is_spread(context, routing), dealt).otherwise(owner)
    return rows.withColumn(column, owner)


@lru_cache(maxsize=64)
def _instance_of(context: SparkContext, routing: Routing) -> Column:
    """The instance of a row, by its hash. Cached by Spark context, because every batch has a new session object."""
    targets = routing.targets()
    return _by_unit(context, targets.units, targets.first, "int")


@lru_cache(maxsize=64)
def _is_spread(context: SparkContext, routing: Routing) -> Column:
    marks = np.zeros(len(WHOLE), dtype=np.int64)
    for lo, hi in routing.spread:
        marks[WHOLE.between(lo, hi)] = 1
    return _by_unit(context, WHOLE, marks, "int") == 1


@lru_cache(maxsize=64)
def _both_of(context: SparkContext, routing: Routing) -> Column:
    """The one or two instances that a row goes to, as an array."""
    to = routing.targets()
    other = F.when(F.col(SUB) < _by_unit(context, to.units, to.until, "long"), _by_unit(context, to.units, to.also, "int"))
    return F.array_compact(F.array(_by_unit(context, to.units, to.first, "int"), F.when(other >= 0, other)))


def _by_unit(context: SparkContext, units: Units, table: npt.NDArray[np.int64], kind: str) -> Column:
    """The entry of a table for a row's unit. The table is passed as one string: Catalyst needs seconds for a list of 4096 literals."""
    text = F.split(F.lit(",".join(map(str, table))), ",").cast(f"array<{kind}>")
    return F.get(expressions.folded(SparkSession(context), text), _unit(units))


def _unit(units: Units) -> Column:
    """The unit of a row: its slot plus the number of cuts at or before its hash. Hashes are unsigned, Spark's numbers are signed."""
    number = F.shiftrightunsigned(F.col(HASH), 64 - SLOT_BITS).cast("int")
    unsigned = F.col(HASH).bitwiseXOR(F.lit(_SIGN))
    for cut in units.cuts:
        number = number + F.when(unsigned >= F.lit(hash_at(cut) + _SIGN), 1).otherwise(0)
    return number
