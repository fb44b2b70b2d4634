"""Which function carries the state of which kind of node over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.plan import StatefulPlan
from headrace.compile.types import encode, normalize
from headrace.errors import UnsupportedError, require
from headrace.graph.nodes import StatefulNode
from headrace.spark.spark_state import SparkState

N = TypeVar("N", bound=StatefulNode)
Carried = dict[str, DataFrame]
"""By store: its rows, in the columns of its layout."""
Carry = Callable[[Any, StatefulPlan, SparkState], Carried]

_CARRIED_BY: dict[type[Any], tuple[tuple[str, ...], Carry]] = {}


def carries(kind: type[N], *names: str) -> Callable[[Carry], Carry]:
    """Decorator: the function carries the state of nodes of class ``kind`` over, which Spark has under one of these names."""

    def register(function: Carry) -> Carry:
        require(kind not in _CARRIED_BY, f"the state of a class of nodes is carried over by one function: {kind.__name__}")
        _CARRIED_BY[kind] = names, function
        return function

    return register


def carried(node: StatefulNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """The rows of a node's stores, from the state of Spark's operator. Raises UnsupportedError for what cannot be carried over exactly."""
    names, function = _CARRIED_BY.get(type(node), ((), None))
    if function is None or state.name not in names:
        raise UnsupportedError(
            where=node.where,
            wanted=f"the state of {' or '.join(names) or 'an operator that Spark has too'} for {plan.kind}",
            found=state.where,
            hint="the program must be the one that wrote the checkpoint",
        )
    found = function(node, plan, state)
    return {name: rows.select(plan.operator.stores[name].layout.schema.names) for name, rows in found.items()}


def fields_of(rows: DataFrame, column: str) -> list[T.StructField]:
    """The fields of a struct column; none if there is no such column."""
    kind = rows.schema[column].dataType if column in rows.columns else T.StructType()
    return kind.fields if isinstance(kind, T.StructType) else []


def key_column(field: T.StructField, kind: T.DataType) -> Column:
    """A field of Spark's key as we store it, for a key of this type."""
    return encode(normalize(F.col("key").getField(field.name).cast(kind), kind), kind)


def check_same_types(where: str, found: list[T.StructField], wanted: list[tuple[str, T.DataType]]) -> None:
    """Refuse columns of other types than the program has."""
    theirs, mine = ([_text(kind) for kind in kinds] for kinds in ([f.dataType for f in found], [kind for _, kind in wanted]))
    if theirs != mine:
        raise UnsupportedError(
            where=where,
            wanted=", ".join(f"{name}: {kind}" for (name, _), kind in zip(wanted, mine, strict=True)) or "no columns",
            found=", ".join(f"{f.name}: {kind}" for f, kind in zip(found, theirs, strict=True)) or "none",
            hint="the program must be the one that wrote the checkpoint",
        )


def _text(kind: T.DataType) -> str:
    """A type without the names of fields: Spark names windows anew."""
    if isinstance(kind, T.StructType):
        return f"struct<{', '.join(_text(f.dataType) for f in kind.fields)}>"
    return kind.simpleString()
