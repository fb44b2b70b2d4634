"""How ``query.state()`` and ``headrace state`` show the state of users' code: each variable as a table of keys and values."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.plan import StoreReader
from headrace.compile.types import decode, transport_type
from headrace.graph.nodes import UserStateNode
from headrace.operators.description import ColumnNames
from headrace.operators.kernel import MAIN
from headrace.operators.lifetime import WRITTEN
from headrace.operators.user_state.shape import EXISTS, GROUP_STATE, TIMEOUT, TimeMode, UserShape, store_name
from headrace.state.layout import SUB

POSITION, AT = "position", "at"
"""The user's names for the sub-keys of lists and of timers."""
_Shown = list[tuple[str, T.StructField]]


def readers(node: UserStateNode, shape: UserShape, keys: tuple[T.StructField, ...]) -> dict[str, StoreReader]:
    """A reader for each store."""
    keyed = [(f"k{i}", f) for i, f in enumerate(keys)]
    if node.call.state is not None:
        hidden = [(EXISTS, T.StructField(EXISTS, T.BooleanType())), (TIMEOUT, T.StructField(TIMEOUT, T.LongType()))]
        found = {GROUP_STATE: _reader(keyed, [*_lettered("p", node.call.state), *hidden], GROUP_STATE)}
    else:
        found = {}
        for each in node.declared:
            mapped = [*keyed, *_lettered("m", each.keys)] if each.keys is not None else keyed
            values = _lettered("p", each.values)
            found[store_name(each.name)] = _reader(mapped, values, each.name, each.kind == "list", each.ttl_ms is not None)
    if shape.time is not TimeMode.NONE:
        found[shape.timers] = _timers(keyed)
    if node.call.initial is not None:
        own = node.call.initial.schema.fields[node.call.initial_keys :]
        found[MAIN] = _reader(keyed, _lettered("c", T.StructType(own)), "initial", has_position=True)
    return found


def _reader(keys: _Shown, values: _Shown, variable: str, has_position: bool = False, has_written: bool = False) -> StoreReader:
    position = [(SUB, T.StructField(POSITION, T.LongType()))] if has_position else []
    written = [T.StructField(WRITTEN, T.LongType())] if has_written else []
    every = [*keys, *position, *values]
    names = _distinct([f.name for _, f in every], variable, len(keys))
    shown: list[Column] = [decode(F.col(c), f.dataType).alias(name) for (c, f), name in zip(every, names, strict=True)]
    shown += [F.timestamp_micros(f.name).alias(f.name) for f in written]
    schema = T.StructType([*(T.StructField(c, transport_type(f.dataType)) for c, f in every), *written])
    of_values = names[len(keys) + len(position) :] + [f.name for f in written]
    sub = POSITION if has_position else None
    return StoreReader(schema, lambda frame: frame.select(*shown), ColumnNames(tuple(names[: len(keys)]), tuple(of_values), sub=sub))


def _distinct(names: list[str], variable: str, keys: int) -> list[str]:
    """Names in which a column of the variable that is called like a key has the variable's name in front."""
    found: list[str] = []
    for at, name in enumerate(names):
        found.append(f"{variable}_{name}" if at >= keys and name in found else name)
    return found


def _timers(keys: _Shown) -> StoreReader:
    schema = T.StructType([*(T.StructField(c, transport_type(f.dataType)) for c, f in keys), T.StructField(SUB, T.LongType())])
    columns = [*(decode(F.col(c), f.dataType).alias(f.name) for c, f in keys), F.timestamp_micros(SUB).alias(AT)]
    return StoreReader(schema, lambda frame: frame.select(*columns), ColumnNames(tuple(f.name for _, f in keys), sub=AT))


def _lettered(letter: str, schema: T.StructType) -> _Shown:
    return [(f"{letter}{i}", f) for i, f in enumerate(schema.fields)]
