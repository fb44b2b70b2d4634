"""How the stores of a join or product are shown to a user, and the names that a checkpoint keeps for their columns."""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import StoreReader
from headrace.compile.sides import SideColumns, required_time
from headrace.compile.types import decode, transport_type
from headrace.operators.description import ColumnNames
from headrace.operators.join import StreamJoin
from headrace.operators.last import NUMBER, TIME, WAITING, LastJoin
from headrace.operators.pairing import LEFT, NAMES, SIDE
from headrace.operators.product import WindowedProduct
from headrace.state.layout import SUB

Sides = tuple[SideColumns, SideColumns]
PairOperator = StreamJoin | LastJoin | WindowedProduct


def readers(operator: PairOperator, sides: Sides, kinds: list[T.DataType]) -> dict[str, StoreReader]:
    """How each store is shown to a user. `kinds` are the types of the value columns that both sides share."""
    if not isinstance(operator, LastJoin):
        return {name: side.reader() for name, side in zip(operator.store_names, sides, strict=True)}
    found = {name: _ring(side) for name, side in zip(operator.store_names, sides, strict=True)}
    waiting = ColumnNames(sides[LEFT].on, tuple(operator.waiting.layout.value_names), "time")
    return {**found, WAITING: _waiting(sides[LEFT], kinds, operator.pairing.one_input, waiting)}


def _ring(side: SideColumns) -> StoreReader:
    time = required_time(side)
    keys = [T.StructField(f"k{i}", transport_type(f.dataType)) for i, f in enumerate(side.keys)]
    values = [T.StructField(f"p{i}", transport_type(f.dataType)) for i, f in enumerate(side.rest)]
    shown = [decode(F.col(f"k{i}"), f.dataType).alias(f.name) for i, f in enumerate(side.keys) if f not in side.rest]
    if time.name not in side.on:
        shown.append(event_time.from_micros(F.col(TIME), time.dataType).alias(time.name))
    shown += [decode(F.col(f"p{i}"), f.dataType).alias(f.name) for i, f in enumerate(side.rest)]
    numbers = [T.StructField(NUMBER, T.LongType()), T.StructField(TIME, T.LongType())]
    names = ColumnNames(side.on, ("number", "time", *(f.name for f in side.rest)))
    return StoreReader(T.StructType([*keys, *numbers, *values]), lambda frame: frame.select(*shown), names)


def _waiting(side: SideColumns, kinds: list[T.DataType], one_input: bool, names: ColumnNames) -> StoreReader:
    """Shows the rows that wait, of both sides. Both sides share the value columns, so these have no names of the user's."""
    keys = [T.StructField(f"k{i}", transport_type(f.dataType)) for i, f in enumerate(side.keys)]
    sides = [] if one_input else [T.StructField(SIDE, T.ByteType())]
    values = [T.StructField(f"v{i}", kind) for i, kind in enumerate(kinds)]
    shown = [decode(F.col(f"k{i}"), f.dataType).alias(f.name) for i, f in enumerate(side.keys)]
    shown.append(event_time.from_micros(F.col(SUB), required_time(side).dataType).alias("time"))
    if not one_input:
        shown.append(F.when(F.col(SIDE) == LEFT, NAMES[0]).otherwise(NAMES[1]).alias(SIDE))
    shown += [F.col(f.name) for f in values]
    schema = T.StructType([*keys, T.StructField(SUB, T.LongType()), *sides, *values])
    return StoreReader(schema, lambda frame: frame.select(*shown), names)
