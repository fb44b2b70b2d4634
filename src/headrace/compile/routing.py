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
    """Partition i of the result holds instance i's rows.

    For one instance no shuffle is needed, unless other instances make the rows (``in_task`` is false): they would all run in one task, and
    know themselves by its number.
    """
    tasks = len(routing.parts)
    if tasks == 1:
        return rows.coalesce(1) if in_task else rows.repartition(1)
    if routing.recreations or routing.spread:
        return _told(rows, routing, INSTANCE).repartitionById(tasks, F.col(INSTANCE)).drop(INSTANCE)
    return rows.repartitionById(tasks, _instance_of(rows.sparkSession.sparkContext, routing))


def route_by_column(rows: DataFrame, routing: Routing, column: str) -> DataFrame:
    """The same, with each row's instance in a column, for instances that have homes."""
    return _told(rows, routing, column).repartitionById(max(PARTITIONS_MIN, len(routing.parts)), F.col(column))


def _told(rows: DataFrame, routing: Routing, column: str) -> DataFrame:
    """Rows with the instance that each goes to in a column; twice, if it goes to two."""
    context = rows.sparkSession.sparkContext
    if routing.recreations:
        return rows.withColumn(column, F.explode(_both_of(context, routing)))
    owner = _instance_of(context, routing)
    if routing.spread:
        # By the whole row, not at random: a task that runs twice must send each row to the same instance.
        dealt = F.pmod(F.xxhash64(*rows.columns), F.lit(routing.instances)).cast("int")
        owner = F.when(_is_spread(context, routing), dealt).otherwise(owner)
    return rows.withColumn(column, owner)


@lru_cache(maxsize=64)
def _instance_of(context: SparkContext, routing: Routing) -> Column:
    """A row's instance by its hash. A query asks for the same every batch, in a session object that is a new one every batch."""
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
    """The instances that a row goes to."""
    to = routing.targets()
    other = F.when(F.col(SUB) < _by_unit(context, to.units, to.until, "long"), _by_unit(context, to.units, to.also, "int"))
    return F.array_compact(F.array(_by_unit(context, to.units, to.first, "int"), F.when(other >= 0, other)))


def _by_unit(context: SparkContext, units: Units, table: npt.NDArray[np.int64], kind: str) -> Column:
    """What a table says of a row's unit. It goes in as one string: building a literal list of 4096 numbers takes Catalyst seconds."""
    text = F.split(F.lit(",".join(map(str, table))), ",").cast(f"array<{kind}>")
    return F.get(expressions.folded(SparkSession(context), text), _unit(units))


def _unit(units: Units) -> Column:
    """A row's unit: its slot, and one more for each cut at or before its hash. Hashes are unsigned, which Spark's numbers are not."""
    number = F.shiftrightunsigned(F.col(HASH), 64 - SLOT_BITS).cast("int")
    unsigned = F.col(HASH).bitwiseXOR(F.lit(_SIGN))
    for cut in units.cuts:
        number = number + F.when(unsigned >= F.lit(hash_at(cut) + _SIGN), 1).otherwise(0)
    return number
