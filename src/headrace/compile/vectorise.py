"""Translates a condition of Spark's analysed plan to a tree that numpy evaluates on all pairs of rows at once.

Each call in this module is translated with Spark's exact meaning. Others are refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import types as T

from headrace.compile.types import is_binary_collated
from headrace.errors import UnsupportedError
from headrace.operators import expressions as E
from headrace.operators.expressions import Expr, Mode
from headrace.spark.expression_tree import Attribute, Call, Constant, Node, Unknown

Resolve: TypeAlias = Callable[[str], tuple[str, str] | None]
"""Maps an attribute's id to its side, 'left' or 'right', and its column; None if it is on neither side."""

DAY_US = 86_400_000_000
DECIMAL_DIGITS_MAX = 18
_FIXED_ZONE = re.compile(r"(Etc/)?(UTC|GMT|UCT|Zulu|Universal|Greenwich|Z)|((UTC|GMT|UT)?[+-]\d{1,2}(:?\d{2}){0,2})")
_TYPES: dict[type[T.DataType], str] = {
    T.BooleanType: "bool",
    T.ByteType: "int8",
    T.ShortType: "int16",
    T.IntegerType: "int32",
    T.LongType: "int64",
    T.FloatType: "float32",
    T.DoubleType: "float64",
    T.StringType: "text",
    T.BinaryType: "text",
    T.DateType: "int32",
    T.TimestampType: "int64",
    T.TimestampNTZType: "int64",
    T.DayTimeIntervalType: "int64",
    T.DecimalType: "int64",
}
_NUMBERS = (T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType)
_DIGITS: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10}


def vectorise(node: Node, resolve: Resolve) -> Expr:
    """The tree for a resolved expression of Spark's analysed plan.

    Raises `UnsupportedError` with the first part that has no exact counterpart. The caller can then let Spark evaluate the condition, or
    tell the user.
    """
    return _Translation(resolve).of(node)


@dataclass(frozen=True)
class _Translation:
    resolve: Resolve

    def of(self, node: Node) -> Expr:
        match node:
            case Attribute():
                return self._column(node)
            case Constant():
                return _literal(node)
            case Call() if node.name in _CALLS:
                return _CALLS[node.name](self, node)
            case Call() | Unknown():
                raise _unsupported(node, node.name)

    def arguments(self, call: Call) -> list[Expr]:
        return [self.of(argument) for argument in call.arguments]

    def _column(self, node: Attribute) -> Expr:
        found = self.resolve(node.id)
        if found is None:
            raise _unsupported(node, "a column of neither side")
        _type_of(node)
        return E.Column(*found)


def _unsupported(node: Node, found: str) -> UnsupportedError:
    return UnsupportedError("this cannot be evaluated on all pairs at once", where=node.sql, found=found)


def _type_of(node: Node) -> str:
    """The numpy type of the node's values."""
    kind = node.type
    exact = not isinstance(kind, T.DecimalType) or kind.precision <= DECIMAL_DIGITS_MAX
    if type(kind) not in _TYPES or not exact or (isinstance(kind, T.StringType) and not is_binary_collated(kind)):
        raise _unsupported(node, f"a value of type {kind.simpleString()}")
    return _TYPES[type(kind)]


def _literal(node: Constant) -> Expr:
    if isinstance(node.type, T.NullType):
        return E.Literal(None, "bool")
    kind, value = _type_of(node), node.value
    if value is None or isinstance(value, bytes):
        return E.Literal(value, kind)
    return E.Literal(float(value) if kind.startswith("float") else bool(value) if kind == "bool" else int(value), kind)


def _fail_mode(call: Call) -> Mode:
    # Spark checks intervals for overflow in every mode.
    return "ansi" if isinstance(call.type, T.DayTimeIntervalType) else call.mode


def _compare(to: _Translation, call: Call) -> Expr:
    left, right = to.arguments(call)
    return E.Compare(call.name, left, right)


def _not(to: _Translation, call: Call) -> Expr:
    (child,) = to.arguments(call)
    # NOT (a = b) becomes a <> b, which is the same: both are null only if an operand is null.
    return E.Compare("ne", child.left, child.right) if isinstance(child, E.Compare) and child.op == "eq" else E.Not(child)


def _flattened(kind: type[E.And] | type[E.Or]) -> Translate:
    def translate(to: _Translation, call: Call) -> Expr:
        items: list[Expr] = []
        for child in to.arguments(call):
            items += child.items if isinstance(child, kind) else (child,)
        return kind(tuple(items))

    return translate


def _in(to: _Translation, call: Call) -> Expr:
    value, *items = to.arguments(call)
    equal = tuple(E.Compare("eq", value, item) for item in items)
    return equal[0] if len(equal) == 1 else E.Or(equal)


def _arithmetic(to: _Translation, call: Call) -> Expr:
    interval = isinstance(call.type, T.DayTimeIntervalType) and call.name in ("add", "subtract")
    operands = [argument.type for argument in call.arguments]
    if not interval and not all(isinstance(each, _NUMBERS) for each in [call.type, *operands]):
        raise _unsupported(call, f"arithmetic of type {operands[0].simpleString()}")
    left, right = to.arguments(call)
    return E.Arithmetic(call.name, left, right, "ansi" if interval else call.mode)


def _normalized(to: _Translation, call: Call) -> Expr:
    # Adding zero turns -0.0 into 0.0.
    (child,) = to.arguments(call)
    return E.Arithmetic("add", child, E.Literal(0.0, _type_of(call)))


def _sign(kind: type[E.Abs] | type[E.Negate]) -> Translate:
    def translate(to: _Translation, call: Call) -> Expr:
        (child,) = to.arguments(call)
        return kind(child, _fail_mode(call))

    return translate


def _math1(to: _Translation, call: Call) -> Expr:
    if isinstance(call.arguments[0].type, T.DecimalType | T.DayTimeIntervalType):
        raise _unsupported(call, f"{call.name} of a decimal or an interval")
    (child,) = to.arguments(call)
    return E.Math1(call.name, child)


def _math2(to: _Translation, call: Call) -> Expr:
    left, right = to.arguments(call)
    return E.Math2(call.name, left, right)


def _whole(to: _Translation, call: Call) -> Expr:
    if not isinstance(call.arguments[0].type, _NUMBERS):
        raise _unsupported(call, f"{call.name} of a decimal")
    (child,) = to.arguments(call)
    return E.Whole(call.name, child, call.mode)


def _cast(to: _Translation, call: Call) -> Expr:
    source = call.arguments[0].type
    target = call.type
    if isinstance(source, T.NullType):
        return E.Literal(None, _type_of(call))
    (child,) = to.arguments(call)
    if source == target or (isinstance(source, T.StringType) and isinstance(target, T.StringType) and is_binary_collated(target)):
        return child
    if isinstance(source, _NUMBERS) and isinstance(target, _NUMBERS):
        return E.Cast(child, _type_of(call), call.mode)
    if isinstance(source, T.TimestampType) and isinstance(target, T.DoubleType):
        return E.Arithmetic("divide", E.Cast(child, "float64", call.mode), E.Literal(1e6, "float64"), call.mode)
    if isinstance(source, T.TimestampType) and isinstance(target, T.LongType):
        return _seconds(child)
    if isinstance(source, T.DayTimeIntervalType) and isinstance(target, T.DayTimeIntervalType) and target.endField >= source.endField:
        return child
    if isinstance(target, T.DecimalType):
        _type_of(call)
        return _to_decimal(call, child, source, target)
    raise _unsupported(call, f"a cast from {source.simpleString()} to {target.simpleString()}")


def _to_decimal(call: Call, child: Expr, source: T.DataType, target: T.DecimalType) -> Expr:
    """A cast to decimal, if every value fits without rounding; others are refused."""
    if isinstance(source, T.DecimalType):
        digits, scale = source.precision - source.scale, source.scale
    elif type(source) in _DIGITS:
        digits, scale, child = _DIGITS[type(source)], 0, E.Cast(child, "int64")
    else:
        raise _unsupported(call, f"a cast from {source.simpleString()} to {target.simpleString()}")
    if target.scale < scale or target.precision - target.scale < digits:
        raise _unsupported(call, "a cast to a decimal that may not fit")
    factor = 10 ** (target.scale - scale)
    return child if factor == 1 else E.Arithmetic("multiply", child, E.Literal(factor, "int64"))


def _seconds(micros: Expr, unit_us: int = 1_000_000) -> Expr:
    return E.Arithmetic("floordiv", micros, E.Literal(unit_us, "int64"))


def _unix(unit_us: int) -> Translate:
    def translate(to: _Translation, call: Call) -> Expr:
        (child,) = call.arguments
        if not isinstance(child.type, T.TimestampType):
            raise _unsupported(call, "a date or a string as an instant")
        return to.of(child) if unit_us == 1 else _seconds(to.of(child), unit_us)

    return translate


def _is_plain_time(call: Call) -> bool:
    """True if differences in wall-clock time are differences in microseconds: there is no time zone, or no daylight saving in it."""
    child = call.arguments[0].type
    return isinstance(child, T.TimestampNTZType) or _FIXED_ZONE.fullmatch(call.zone) is not None


def _subtract_timestamps(to: _Translation, call: Call) -> Expr:
    if not isinstance(call.type, T.DayTimeIntervalType) or not _is_plain_time(call):
        raise _unsupported(call, "a difference of wall-clock times in a zone whose offset changes")
    left, right = to.arguments(call)
    return E.Arithmetic("subtract", left, right)


def _add_interval(to: _Translation, call: Call) -> Expr:
    time, interval = to.arguments(call)
    short = isinstance(interval, E.Literal) and isinstance(interval.value, int) and abs(interval.value) < DAY_US
    is_day_time = isinstance(call.arguments[1].type, T.DayTimeIntervalType)
    if not is_day_time or not (short or _is_plain_time(call)):
        raise _unsupported(call, "an interval of days in a zone whose offset changes, or of months")
    return E.Arithmetic("add", time, interval)


def _date_diff(to: _Translation, call: Call) -> Expr:
    left, right = to.arguments(call)
    return E.Arithmetic("subtract", left, right, "legacy")


def _subtract_dates(to: _Translation, call: Call) -> Expr:
    if not isinstance(call.type, T.DayTimeIntervalType):
        raise _unsupported(call, "a calendar interval")
    left, right = (E.Cast(child, "int64") for child in to.arguments(call))
    return E.Arithmetic("multiply", E.Arithmetic("subtract", left, right), E.Literal(DAY_US, "int64"))


def _case(to: _Translation, call: Call) -> Expr:
    parts = to.arguments(call)
    otherwise = parts.pop() if len(parts) % 2 else E.Literal(None, _type_of(call))
    return E.CaseWhen(tuple(parts[0::2]), tuple(parts[1::2]), otherwise)


def _if(to: _Translation, call: Call) -> Expr:
    condition, then, otherwise = to.arguments(call)
    return E.CaseWhen((condition,), (then,), otherwise)


def _null_if(to: _Translation, call: Call) -> Expr:
    condition, value = to.arguments(call)
    return E.CaseWhen((condition,), (E.Literal(None, _type_of(call)),), value)


def _text_test(to: _Translation, call: Call) -> Expr:
    child, text = to.arguments(call)
    if not isinstance(text, E.Literal) or not isinstance(text.value, bytes):
        raise _unsupported(call, f"{call.name} of a text that is not constant")
    return E.TextTest(call.name, child, text.value)


Translate: TypeAlias = Callable[[_Translation, Call], Expr]

_CALLS: dict[str, Translate] = {
    **dict.fromkeys(("eq", "lt", "le", "gt", "ge"), _compare),
    "same": lambda to, call: E.Same(*to.arguments(call)),
    "and": _flattened(E.And),
    "or": _flattened(E.Or),
    "not": _not,
    "is_null": lambda to, call: E.IsNull(*to.arguments(call)),
    "is_not_null": lambda to, call: E.Not(E.IsNull(*to.arguments(call))),
    "is_nan": lambda to, call: E.IsNaN(*to.arguments(call)),
    "in": _in,
    **dict.fromkeys(("add", "subtract", "multiply", "divide", "remainder", "quotient"), _arithmetic),
    "negate": _sign(E.Negate),
    "abs": _sign(E.Abs),
    "normalize": _normalized,
    "cast": _cast,
    "coalesce": lambda to, call: E.Coalesce(tuple(to.arguments(call))),
    "case": _case,
    "if": _if,
    "null_if": _null_if,
    **dict.fromkeys(E.TEXT_TESTS, _text_test),
    "subtract_timestamps": _subtract_timestamps,
    "add_interval": _add_interval,
    "subtract_dates": _subtract_dates,
    "date_diff": _date_diff,
    "unix_micros": _unix(1),
    "unix_millis": _unix(1_000),
    "unix_seconds": _unix(1_000_000),
    **dict.fromkeys(E.MATH1, _math1),
    **dict.fromkeys(E.MATH2, _math2),
    **dict.fromkeys(E.WHOLE, _whole),
}
"""By the name of a call: its translation. A test makes sure that there is one for each name of `spark.expression_tree`."""
