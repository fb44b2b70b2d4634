"""Spark's aggregate functions, divided into the parts that Headrace needs.

Functions without a vector form keep Spark's own buffers (`compile.buffered`). For the others there are: its inputs, the partial of a single
row, the partial of many rows as Spark computes it before the shuffle, and how partials merge (`operators.partials`). Partials have the
layout of Spark's buffers, so Spark's own ``evaluateExpression`` computes the result from them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import hyperloglog
from headrace.compile.buffered import buffered
from headrace.compile.distinct import distinct, set_of
from headrace.compile.more_functions import MORE
from headrace.compile.pieces import Call, Context, Picking, Piece, Row
from headrace.compile.types import arrow_type, check_carried, check_order, check_value, decode, encode, normalize, transport_type
from headrace.errors import UnsupportedError
from headrace.operators import partials as P
from headrace.operators.partials import Partial
from headrace.spark.aggregation import AggregateCall


def take_apart(call: AggregateCall, context: Context) -> Piece:
    """Divide an aggregate call of Spark's analysed plan into its parts.

    A function without a builder here, or a use of it that its builder refuses, keeps Spark's own buffers.
    """
    if call.is_distinct:
        return distinct(Call(call, context), BUILDERS)
    build = None if call.is_try else BUILDERS.get(call.function)
    if build is None:
        return buffered(Call(call, context))
    try:
        return build(Call(call, context))
    except UnsupportedError:
        return buffered(Call(call, context))


def _count(call: Call) -> Piece:
    partial = P.Count()
    arguments = call.function.arguments
    always = call.function.filter is None and not any(each.nullable for each in arguments)
    if always:
        return Piece(partial, [], lambda _: [None], lambda _: [F.count(F.lit(1))], lambda p: {"count": p[0]}, types=[T.LongType()])
    present = F.lit(True)
    for at in range(len(arguments)):
        present = present & call.child(at)[0].isNotNull()
    one = F.when(present, F.lit(1))
    return Piece(
        partial,
        [one],
        lambda i: [F.coalesce(i[0], F.lit(0)).cast("long")],
        lambda i: [F.count(i[0])],
        lambda p: {"count": p[0]},
        types=[T.LongType()],
    )


def _sum_like(call: Call, kind: T.DataType) -> tuple[Partial, list[Column], Any, Any, list[T.DataType]]:
    """The parts that sum and avg have in common: partial, inputs, row, many, types."""
    value, own = call.child()
    if isinstance(kind, T.DecimalType):
        partial: Partial = P.DecimalSum(arrow_type(kind))
        row = lambda i: [i[0].cast(kind), i[0].isNull()]  # noqa: E731
        many = lambda i: [F.sum(i[0]).cast(kind), F.count(i[0]) == 0]  # noqa: E731
        return partial, [value], row, many, [kind, T.BooleanType()]
    if isinstance(kind, T.YearMonthIntervalType):
        months = encode(value, own).cast("long")
        return P.Sum(pa.int64()), [months], lambda i: [i[0]], lambda i: [F.sum(i[0])], [T.LongType()]
    partial = P.Sum(arrow_type(kind), checked=call.context.ansi or isinstance(kind, T.DayTimeIntervalType))
    return partial, [value.cast(kind)], lambda i: [i[0]], lambda i: [F.sum(i[0])], [kind]


def _sum(call: Call) -> Piece:
    kind = call.buffer_type("sum")
    partial, inputs, row, many, types = _sum_like(call, kind)
    if isinstance(kind, T.DecimalType):
        return Piece(partial, inputs, row, many, lambda p: {"sum": p[0], "isEmpty": p[1]}, types=types)
    if isinstance(kind, T.YearMonthIntervalType):
        return Piece(partial, inputs, row, many, lambda p: {"sum": decode(p[0].cast("int"), kind)}, types=types)
    return Piece(partial, inputs, row, many, lambda p: {"sum": p[0]}, types=types)


def _average(call: Call) -> Piece:
    kind = call.buffer_type("sum")
    partial, inputs, row, many, types = _sum_like(call, kind)
    both = P.Both(partial, P.Count())

    def row_of(i: list[Column]) -> list[Column | None]:
        return [*row(i), F.when(i[0].isNull(), F.lit(0)).otherwise(F.lit(1)).cast("long")]

    def buffers(p: list[Column]) -> dict[str, Column]:
        total = decode(p[0].cast("int"), kind) if isinstance(kind, T.YearMonthIntervalType) else p[0]
        return {"sum": total, "count": p[-1]}

    return Piece(both, inputs, row_of, lambda i: [*many(i), F.count(i[0])], buffers, types=[*types, T.LongType()])


def _extreme(greatest: bool) -> Callable[[Call], Piece]:
    def build(call: Call) -> Piece:
        value, kind = call.child()
        check_order(kind, call.where)
        name, aggregate = ("max", F.max) if greatest else ("min", F.min)
        # Spark sorts to aggregate values of variable length. Shuffling the single rows is cheaper.
        fixed = not isinstance(kind, T.StringType | T.CharType | T.VarcharType | T.BinaryType | T.StructType)
        return Piece(
            P.Extreme(arrow_type(kind), greatest),
            [encode(value, kind)],
            lambda i: [i[0]],
            (lambda i: [aggregate(i[0])]) if fixed else None,
            lambda p: {name: decode(p[0], kind)},
            types=[transport_type(kind)],
        )

    return build


def _moments(call: Call) -> Piece:
    value, _ = call.child()
    zero = F.lit(0.0)
    return Piece(
        P.Moments(),
        [value.cast("double")],
        # x - x is 0, or NaN if x is infinite, as in Spark's own update.
        lambda i: [F.when(i[0].isNull(), zero).otherwise(F.lit(1.0)), F.coalesce(i[0], zero), F.coalesce(i[0] - i[0], zero)],
        lambda i: [F.count(i[0]).cast("double"), F.coalesce(F.avg(i[0]), zero), F.coalesce(F.var_pop(i[0]) * F.count(i[0]), zero)],
        lambda p: {"n": p[0], "avg": p[1], "m2": p[2]},
        types=[T.DoubleType()] * 3,
    )


def _pick(call: Call, order: Column, order_type: T.DataType, order_text: str, greatest: bool) -> Piece:
    """A function that gives its first argument in the row with the least or greatest order."""
    argument = call.function.arguments[0]
    value, kind = argument.column, argument.type
    check_carried(kind, call.where)
    check_order(order_type, call.where)
    return Piece(
        P.Pick(arrow_type(kind), arrow_type(order_type), greatest),
        [encode(value, kind), encode(order, order_type)],
        lambda i: [i[0], i[1]],
        None,
        None,
        # If all orders are null, no row was picked.
        finish=lambda p: F.when(p[1].isNotNull(), decode(p[0], kind)),
        types=[transport_type(kind), transport_type(order_type)],
        pick=Picking(value, kind, argument.text, order, order_type, f"{order_text} | {call.filter_text}", greatest),
    )


def _by(greatest: bool) -> Callable[[Call], Piece]:
    def build(call: Call) -> Piece:
        return _pick(call, *call.child(1), call.child_text(1), greatest)

    return build


def _by_event_time(greatest: bool) -> Callable[[Call], Piece]:
    def build(call: Call) -> Piece:
        time = call.context.event_time
        if time is None:
            # In the order of arrival, as in Spark.
            return buffered(call)
        order, text = call.kept(time), "event time"
        if call.function.ignores_nulls:
            order, text = F.when(call.child(0)[0].isNotNull(), order), f"event time where there is {call.child_text(0)}"
        return _pick(call, order, call.context.event_time_type, text, greatest)

    return build


def _collect_set(call: Call) -> Piece:
    if not call.function.ignores_nulls:
        return buffered(call)
    value, kind = call.child()
    check_value(kind, call.where)
    return set_of(value, kind)


def _approx_count_distinct(call: Call) -> Piece:
    value, kind = call.child()
    check_value(kind, call.where)
    bits = hyperloglog.precision(call.function.relative_error)
    register = F.when(value.isNotNull(), hyperloglog.register(F.xxhash64(normalize(value, kind)), bits))
    travels = T.ArrayType(T.IntegerType())
    row: Row = lambda i: [F.when(i[0].isNull(), F.array().cast(travels)).otherwise(F.array(i[0]).cast(travels))]  # noqa: E731
    estimate = hyperloglog.estimator(call.context.session, bits)
    return Piece(P.Registers(), [register], row, None, None, finish=lambda p: estimate(p[0]), types=[travels])


BUILDERS: dict[str, Callable[[Call], Piece]] = {
    "count": _count,
    "sum": _sum,
    "avg": _average,
    "min": _extreme(False),
    "max": _extreme(True),
    "stddev_samp": _moments,
    "stddev_pop": _moments,
    "var_samp": _moments,
    "var_pop": _moments,
    "min_by": _by(False),
    "max_by": _by(True),
    "first": _by_event_time(False),
    "last": _by_event_time(True),
    "collect_set": _collect_set,
    "approx_count_distinct": _approx_count_distinct,
    "regr_replacement": _moments,
    **MORE,
}
"""By the name of the function. A test makes sure that there is one for each name of `spark.aggregation`."""
