"""Further aggregate functions in vector form: moments of higher order and of two variables, bits, and lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.buffered import buffered
from headrace.compile.pieces import Call, Piece
from headrace.compile.types import arrow_type, check_carried, check_order, decode, encode, transport_type
from headrace.errors import UnsupportedError
from headrace.operators.more_partials import Bits, CoMoments, HigherMoments, Lists
from headrace.operators.top_rows import TopRows


def _collect_list(call: Call) -> Piece:
    value, kind = call.child()
    if not call.function.ignores_nulls:
        return buffered(call)
    check_carried(kind, call.where)
    kept, travels = T.ArrayType(kind), T.ArrayType(transport_type(kind))
    empty = F.array().cast(travels)
    return Piece(
        Lists(arrow_type(kind)),
        [encode(value, kind)],
        lambda i: [F.when(i[0].isNull(), empty).otherwise(F.array(i[0]).cast(travels))],
        lambda i: [F.collect_list(i[0]).cast(travels)],
        None,
        finish=lambda p: F.coalesce(decode(p[0], kept), F.array().cast(kept)),
        types=[travels],
    )


def _several_by(greatest: bool) -> Callable[[Call], Piece]:
    """``max_by`` and ``min_by`` with a number of rows: the rows with the greatest or least order, as a list that begins with the first."""

    def build(call: Call) -> Piece:
        argument, (order, order_type) = call.function.arguments[0], call.child(1)
        try:
            check_carried(argument.type, call.where)
            check_order(order_type, call.where)
        except UnsupportedError:
            return buffered(call)
        travels = T.ArrayType(
            T.StructType([T.StructField("o0", transport_type(order_type)), T.StructField("c0", transport_type(argument.type))])
        )
        element = pa.struct([("o0", arrow_type(order_type)), ("c0", arrow_type(argument.type))])
        empty = F.array().cast(travels)

        def row(i: list[Column]) -> list[Column | None]:
            one = F.array(F.struct(i[1].alias("o0"), i[0].alias("c0"))).cast(travels)
            return [F.when(i[1].isNull(), empty).otherwise(one)]

        return Piece(
            TopRows(element, 1, int(greatest), 0, call.function.rows, ties=False, dense=False),
            [encode(argument.column, argument.type), encode(order, order_type)],
            row,
            # Spark would have to sort. Shuffling the single rows is cheaper.
            None,
            None,
            # If all orders are null, no row was picked.
            finish=lambda p: F.when(F.size(p[0]) > 0, F.transform(p[0], lambda x: decode(x["c0"], argument.type))),
            types=[travels],
        )

    return build


def _bits(name: str, *, both: bool = False, differ: bool = False) -> Callable[[Call], Piece]:
    def build(call: Call) -> Piece:
        value, kind = call.child()
        aggregate = {"bit_and": F.bit_and, "bit_or": F.bit_or, "bit_xor": F.bit_xor}[name]
        return Piece(
            Bits(arrow_type(kind), both, differ),
            [value],
            lambda i: [i[0]],
            lambda i: [aggregate(i[0])],
            lambda p: {name: p[0]},
            types=[kind],
        )

    return build


def _higher_moments(fourth: bool) -> Callable[[Call], Piece]:
    def build(call: Call) -> Piece:
        value, _ = call.child()

        def row(i: list[Column]) -> list[Column | None]:
            # x - x is 0, or NaN if x is infinite, as in Spark's own update.
            own = F.coalesce(i[0] - i[0], F.lit(0.0))
            return [
                F.when(i[0].isNull(), F.lit(0.0)).otherwise(F.lit(1.0)),
                F.coalesce(i[0], F.lit(0.0)),
                own,
                own,
                *([own] if fourth else []),
            ]

        def many(i: list[Column]) -> list[Column]:
            x, n = i[0], F.count(i[0])
            m2 = F.var_pop(x) * n
            # Spark's functions give the moments in units of the second one, if that is not 0.
            m3 = F.when(m2 == 0, F.lit(0.0)).otherwise(F.skewness(x) * F.sqrt(m2 * m2 * m2 / n))
            m4 = F.when(m2 == 0, F.lit(0.0)).otherwise((F.kurtosis(x) + 3.0) * m2 * m2 / n)
            found = [F.avg(x), m2, m3, *([m4] if fourth else [])]
            return [n.cast("double"), *(F.coalesce(each, F.lit(0.0)) for each in found)]

        names = ("n", "avg", "m2", "m3", "m4")
        return Piece(
            HigherMoments(fourth),
            [value.cast("double")],
            row,
            many,
            lambda p: dict(zip(names, p, strict=False)),
            types=[T.DoubleType()] * (5 if fourth else 4),
        )

    return build


def _co_moments(squares: bool, *, swapped: bool = False) -> Callable[[Call], Piece]:
    """A function of two variables, x and y. If `swapped`, y is the first argument."""

    def build(call: Call) -> Piece:
        (x, _), (y, _) = (call.child(1), call.child(0)) if swapped else (call.child(0), call.child(1))
        x, y = x.cast("double"), y.cast("double")
        both = x.isNotNull() & y.isNotNull()

        def row(i: list[Column]) -> list[Column | None]:
            own = [F.coalesce(a - b, F.lit(0.0)) for a, b in ((i[0], i[0]), (i[1], i[1]))]
            means = [F.coalesce(each, F.lit(0.0)) for each in i]
            found = [*means, own[0] + own[1], *(own if squares else [])]
            return [F.when(i[0].isNull(), F.lit(0.0)).otherwise(F.lit(1.0)), *found]

        def many(i: list[Column]) -> list[Column]:
            x, y, n = i[0], i[1], F.count(i[0])
            found = [F.avg(x), F.avg(y), F.covar_pop(x, y) * n, *([F.var_pop(x) * n, F.var_pop(y) * n] if squares else [])]
            return [n.cast("double"), *(F.coalesce(each, F.lit(0.0)) for each in found)]

        def buffers(p: list[Column]) -> dict[str, Column]:
            found = dict(zip(("n", "xAvg", "yAvg", "ck", "xMk", "yMk"), p, strict=False))
            # The linear regressions have the moments of x in a buffer of their own.
            return {**found, "avg": p[1], "m2": p[4]} if swapped else found

        inputs = [F.when(both, x), F.when(both, y)]
        return Piece(CoMoments(squares), inputs, row, many, buffers, types=[T.DoubleType()] * (6 if squares else 4))

    return build


MORE: Mapping[str, Callable[[Call], Piece]] = {
    "collect_list": _collect_list,
    "max_by_several": _several_by(True),
    "min_by_several": _several_by(False),
    "bit_and": _bits("bit_and", both=True),
    "bit_or": _bits("bit_or"),
    "bit_xor": _bits("bit_xor", differ=True),
    "skewness": _higher_moments(False),
    "kurtosis": _higher_moments(True),
    "corr": _co_moments(True),
    "regr_r2": _co_moments(True),
    "covar_pop": _co_moments(False),
    "covar_samp": _co_moments(False),
    "regr_sxy": _co_moments(False),
    "regr_slope": _co_moments(True, swapped=True),
    "regr_intercept": _co_moments(True, swapped=True),
}
"""By the name of the function."""
