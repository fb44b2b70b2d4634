"""Distinct aggregates: ``count(DISTINCT x)``, ``sum(DISTINCT x)`` and others. The state is the set of distinct values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.pieces import Call, Piece, Row
from headrace.compile.types import arrow_type, check_key, decode, encode, normalize, transport_type
from headrace.errors import UnsupportedError
from headrace.operators import partials as P

_SAME = ("min", "max", "bit_and", "bit_or", "collect_set", "approx_count_distinct")
"""Functions that give the same for all values and for the distinct ones."""


def distinct(call: Call, builders: Mapping[str, Callable[[Call], Piece]]) -> Piece:
    """A distinct aggregate. ``builders`` has the functions that build the others."""
    function = call.function
    if function.function in _SAME:
        return builders[function.function](call)
    if function.function not in ("count", "sum", "avg", "collect_list") or function.is_try:
        raise UnsupportedError(
            where=call.where,
            found=f"{function.sql_name} with DISTINCT",
            supported=("count", "sum", "avg", "min", "max", "collect_list"),
            hint="drop duplicates by the keys and the value before",
        )
    value, kind = _value(call)
    check_key(kind, call.where)
    found = set_of(value, kind)
    assert found.finish is not None
    values = found.finish
    if function.function == "collect_list":
        return found

    def total(p: list[Column], of: T.DataType) -> Column:
        zero = F.lit(0).cast(of)
        return F.aggregate(values(p), zero, lambda a, x: (a + x.cast(of)).cast(of))

    def buffers(p: list[Column]) -> dict[str, Column]:
        number = F.size(p[0]).cast("long")
        if function.function == "count":
            return {"count": number}
        summed = total(p, call.buffer_type("sum"))
        if function.function == "avg":
            return {"sum": summed, "count": number}
        return {"sum": F.when(number > 0, summed), "isEmpty": number == 0}

    return Piece(found.partial, found.inputs, found.row, found.many, buffers, types=found.types)


def set_of(value: Column, kind: T.DataType) -> Piece:
    """The set of a column's values without nulls, as a list."""
    value = encode(normalize(value, kind), kind)
    travels = T.ArrayType(transport_type(kind))

    def finish(p: list[Column]) -> Column:
        known = F.coalesce(p[0], F.array().cast(travels))
        return F.transform(known, lambda x: decode(x, kind)) if transport_type(kind) != kind else known

    row: Row = lambda i: [F.when(i[0].isNull(), F.array().cast(travels)).otherwise(F.array(i[0]).cast(travels))]  # noqa: E731
    return Piece(P.Distinct(arrow_type(kind)), [value], row, None, None, finish=finish, types=[travels])


def _value(call: Call) -> tuple[Column, T.DataType]:
    """The value that must be distinct: the argument, or a struct of several, of which none may be null."""
    arguments = call.function.arguments
    if len(arguments) == 1:
        return call.child()
    present = F.lit(True)
    for at in range(len(arguments)):
        present = present & call.child(at)[0].isNotNull()
    kind = T.StructType([T.StructField(f"v{at}", each.type) for at, each in enumerate(arguments)])
    return F.when(present, F.struct(*[each.column.alias(f"v{at}") for at, each in enumerate(arguments)])), kind
