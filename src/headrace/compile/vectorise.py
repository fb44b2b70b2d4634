"""Translates a condition of Spark's analysed plan to a tree that numpy evaluates on all pairs of rows at once.

Each Catalyst class in this module is translated with Spark's exact meaning. Others are refused, never guessed. Parts without columns are
evaluated by Spark itself, such as dates that are written as strings.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from pyspark.sql import types as T

from headrace.compile.types import is_binary_collated
from headrace.errors import UnsupportedError
from headrace.operators import expressions as E
from headrace.operators.expressions import Expr, Mode
from headrace.spark import expressions, gateway, trees

Resolve: TypeAlias = Callable[[str], tuple[str, str] | None]
"""Maps an attribute's id (`exprId().toString()`) to its side, 'left' or 'right', and its column; None if it is on neither side."""

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


def vectorise(expression: Any, resolve: Resolve) -> Expr:
    """The tree for a resolved Catalyst expression of Spark's analysed plan.

    Raises `UnsupportedError` with the first part that has no exact counterpart. The caller can then let Spark evaluate the condition, or
    tell the user.
    """
    return _Translation(resolve).of(expression)


@dataclass(frozen=True)
class _Translation:
    resolve: Resolve
    common: dict[str, Any] = field(default_factory=dict)
    """Common expressions that Spark defines once, by the id of their references."""

    def of(self, node: Any) -> Expr:
        name = gateway.class_name(node)
        if name in _TRANSPARENT:
            return self.of(node.children().apply(0))
        if name == "With":
            return self._with(node)
        if name == "CommonExpressionRef":
            return self.of(self.common[node.id().toString()])
        if name == "AttributeReference":
            return self._column(node)
        if name == "Literal" or _is_constant(node):
            constant = _constant(node)
            if constant is not None:
                return constant
        translate = _NODES.get(name)
        if translate is None:
            raise _unsupported(node, name)
        return translate(self, node)

    def children(self, node: Any) -> list[Expr]:
        return [self.of(child) for child in gateway.items(node.children())]

    def _with(self, node: Any) -> Expr:
        body, *definitions = gateway.items(node.children())
        for each in definitions:
            self.common[each.id().toString()] = each.children().apply(0)
        return self.of(body)

    def _column(self, node: Any) -> Expr:
        found = self.resolve(node.exprId().toString())
        if found is None:
            raise _unsupported(node, "a column of neither side")
        _type_of(node)
        return E.Column(*found)


def _unsupported(node: Any, found: str) -> UnsupportedError:
    return UnsupportedError("this cannot be evaluated on all pairs at once", where=node.sql(), found=found)


def _type_of(node: Any) -> str:
    """The numpy type of the node's values."""
    kind = expressions.data_type(node)
    exact = not isinstance(kind, T.DecimalType) or kind.precision <= DECIMAL_DIGITS_MAX
    if type(kind) not in _TYPES or not exact or (isinstance(kind, T.StringType) and not is_binary_collated(kind)):
        raise _unsupported(node, f"a value of type {kind.simpleString()}")
    return _TYPES[type(kind)]


def _is_constant(node: Any) -> bool:
    """True if the value is the same in every query. Spark's own foldable includes values that are fixed per query: the time, the user."""
    if not node.foldable() or not node.deterministic():
        return False
    return not any(gateway.class_name(each).startswith(("Current", "Now", "LocalTimestamp")) for each in trees.walk(node))


def _constant(node: Any) -> Expr | None:
    """The value of a part without columns, computed by Spark. None if that fails; the error is then raised when the value is needed."""
    if isinstance(expressions.data_type(node), T.NullType):
        return E.Literal(None, "bool")
    kind = _type_of(node)
    try:
        value = node.eval(None)
    except gateway.SPARK_ERRORS:
        return None
    if value is None:
        return E.Literal(None, kind)
    if kind == "text":
        return E.Literal(bytes(value if isinstance(value, bytes | bytearray) else value.getBytes()), kind)
    if isinstance(expressions.data_type(node), T.DecimalType):
        return E.Literal(int(value.toUnscaledLong()), kind)
    return E.Literal(float(value) if kind.startswith("float") else bool(value) if kind == "bool" else int(value), kind)


def _mode(node: Any) -> Mode:
    return cast(Mode, node.evalMode().toString().lower())


def _fail_mode(node: Any) -> Mode:
    # Spark checks intervals for overflow in every mode.
    always = isinstance(expressions.data_type(node), T.DayTimeIntervalType)
    return "ansi" if always or node.failOnError() else "legacy"


def _compare(op: str) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        left, right = to.children(node)
        return E.Compare(op, left, right)

    return translate


def _not(to: _Translation, node: Any) -> Expr:
    (child,) = to.children(node)
    # NOT (a = b) becomes a <> b, which is the same: both are null only if an operand is null.
    return E.Compare("ne", child.left, child.right) if isinstance(child, E.Compare) and child.op == "eq" else E.Not(child)


def _flattened(kind: type[E.And] | type[E.Or]) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        items: list[Expr] = []
        for child in to.children(node):
            items += child.items if isinstance(child, kind) else (child,)
        return kind(tuple(items))

    return translate


def _in(to: _Translation, node: Any) -> Expr:
    value, *items = to.children(node)
    equal = tuple(E.Compare("eq", value, item) for item in items)
    return equal[0] if len(equal) == 1 else E.Or(equal)


def _arithmetic(op: str) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        kind = expressions.data_type(node)
        interval = isinstance(kind, T.DayTimeIntervalType) and op in ("add", "subtract")
        operands = [expressions.data_type(child) for child in gateway.items(node.children())]
        if not interval and not all(isinstance(each, _NUMBERS) for each in [kind, *operands]):
            raise _unsupported(node, f"arithmetic of type {operands[0].simpleString()}")
        left, right = to.children(node)
        return E.Arithmetic(op, left, right, "ansi" if interval else _mode(node))

    return translate


def _normalized(to: _Translation, node: Any) -> Expr:
    # Adding zero turns -0.0 into 0.0.
    (child,) = to.children(node)
    return E.Arithmetic("add", child, E.Literal(0.0, _type_of(node)))


def _sign(kind: type[E.Abs] | type[E.Negate]) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        (child,) = to.children(node)
        return kind(child, _fail_mode(node))

    return translate


def _math1(function: str) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        if isinstance(expressions.data_type(node.children().apply(0)), T.DecimalType | T.DayTimeIntervalType):
            raise _unsupported(node, f"{function} of a decimal or an interval")
        (child,) = to.children(node)
        return E.Math1(function, child)

    return translate


def _whole(function: str) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        if not isinstance(expressions.data_type(node.children().apply(0)), _NUMBERS):
            raise _unsupported(node, f"{function} of a decimal")
        (child,) = to.children(node)
        return E.Whole(function, child, _fail_mode(node))

    return translate


def _math2(function: str) -> Callable[[_Translation, Any], Expr]:
    return lambda to, node: E.Math2(function, *to.children(node))


def _cast(to: _Translation, node: Any) -> Expr:
    source = expressions.data_type(node.children().apply(0))
    target = expressions.data_type(node)
    if isinstance(source, T.NullType):
        return E.Literal(None, _type_of(node))
    (child,) = to.children(node)
    mode = _mode(node)
    if source == target or (isinstance(source, T.StringType) and isinstance(target, T.StringType) and is_binary_collated(target)):
        return child
    if isinstance(source, _NUMBERS) and isinstance(target, _NUMBERS):
        return E.Cast(child, _type_of(node), mode)
    if isinstance(source, T.TimestampType) and isinstance(target, T.DoubleType):
        return E.Arithmetic("divide", E.Cast(child, "float64", mode), E.Literal(1e6, "float64"), mode)
    if isinstance(source, T.TimestampType) and isinstance(target, T.LongType):
        return _seconds(child)
    if isinstance(source, T.DayTimeIntervalType) and isinstance(target, T.DayTimeIntervalType) and target.endField >= source.endField:
        return child
    if isinstance(target, T.DecimalType):
        _type_of(node)
        return _to_decimal(node, child, source, target)
    raise _unsupported(node, f"a cast from {source.simpleString()} to {target.simpleString()}")


def _to_decimal(node: Any, child: Expr, source: T.DataType, target: T.DecimalType) -> Expr:
    """A cast to decimal, if every value fits without rounding; others are refused."""
    if isinstance(source, T.DecimalType):
        digits, scale = source.precision - source.scale, source.scale
    elif type(source) in _DIGITS:
        digits, scale, child = _DIGITS[type(source)], 0, E.Cast(child, "int64")
    else:
        raise _unsupported(node, f"a cast from {source.simpleString()} to {target.simpleString()}")
    if target.scale < scale or target.precision - target.scale < digits:
        raise _unsupported(node, "a cast to a decimal that may not fit")
    factor = 10 ** (target.scale - scale)
    return child if factor == 1 else E.Arithmetic("multiply", child, E.Literal(factor, "int64"))


def _seconds(micros: Expr, unit_us: int = 1_000_000) -> Expr:
    return E.Arithmetic("floordiv", micros, E.Literal(unit_us, "int64"))


def _unix(unit_us: int) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        child = node.children().apply(0)
        if not isinstance(expressions.data_type(child), T.TimestampType):
            raise _unsupported(node, "a date or a string as an instant")
        return to.of(child) if unit_us == 1 else _seconds(to.of(child), unit_us)

    return translate


def _is_plain_time(node: Any) -> bool:
    """True if differences in wall-clock time are differences in microseconds: there is no time zone, or no daylight saving in it."""
    child = expressions.data_type(node.children().apply(0))
    return isinstance(child, T.TimestampNTZType) or _FIXED_ZONE.fullmatch(str(node.zoneId().toString())) is not None


def _subtract_timestamps(to: _Translation, node: Any) -> Expr:
    if not isinstance(expressions.data_type(node), T.DayTimeIntervalType) or not _is_plain_time(node):
        raise _unsupported(node, "a difference of wall-clock times in a zone whose offset changes")
    left, right = to.children(node)
    return E.Arithmetic("subtract", left, right)


def _add_interval(to: _Translation, node: Any) -> Expr:
    time, interval = to.children(node)
    short = isinstance(interval, E.Literal) and isinstance(interval.value, int) and abs(interval.value) < DAY_US
    is_day_time = isinstance(expressions.data_type(node.children().apply(1)), T.DayTimeIntervalType)
    if not is_day_time or not (short or _is_plain_time(node)):
        raise _unsupported(node, "an interval of days in a zone whose offset changes, or of months")
    return E.Arithmetic("add", time, interval)


def _date_diff(to: _Translation, node: Any) -> Expr:
    left, right = to.children(node)
    return E.Arithmetic("subtract", left, right, "legacy")


def _subtract_dates(to: _Translation, node: Any) -> Expr:
    if not isinstance(expressions.data_type(node), T.DayTimeIntervalType):
        raise _unsupported(node, "a calendar interval")
    left, right = (E.Cast(child, "int64") for child in to.children(node))
    return E.Arithmetic("multiply", E.Arithmetic("subtract", left, right), E.Literal(DAY_US, "int64"))


def _case(to: _Translation, node: Any) -> Expr:
    parts = to.children(node)
    otherwise = parts.pop() if len(parts) % 2 else E.Literal(None, _type_of(node))
    return E.CaseWhen(tuple(parts[0::2]), tuple(parts[1::2]), otherwise)


def _if(to: _Translation, node: Any) -> Expr:
    condition, then, otherwise = to.children(node)
    return E.CaseWhen((condition,), (then,), otherwise)


def _null_if(to: _Translation, node: Any) -> Expr:
    condition, value = to.children(node)
    return E.CaseWhen((condition,), (E.Literal(None, _type_of(node)),), value)


def _text_test(test: str) -> Callable[[_Translation, Any], Expr]:
    def translate(to: _Translation, node: Any) -> Expr:
        child, text = to.children(node)
        if not isinstance(text, E.Literal) or not isinstance(text.value, bytes):
            raise _unsupported(node, f"{test} of a text that is not constant")
        return E.TextTest(test, child, text.value)

    return translate


_TRANSPARENT = (
    "Alias", "Between", "Nvl", "NullIf", "DatetimeSub", "TryAdd", "TrySubtract", "TryMultiply", "TryDivide", "UnaryPositive",
    "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable",
)  # fmt: skip
"""Nodes that mean the same as their only child: Spark has rewritten them, or they only carry a hint."""

_NODES: dict[str, Callable[[_Translation, Any], Expr]] = {
    "EqualTo": _compare("eq"),
    "LessThan": _compare("lt"),
    "LessThanOrEqual": _compare("le"),
    "GreaterThan": _compare("gt"),
    "GreaterThanOrEqual": _compare("ge"),
    "EqualNullSafe": lambda to, node: E.Same(*to.children(node)),
    "And": _flattened(E.And),
    "Or": _flattened(E.Or),
    "Not": _not,
    "IsNull": lambda to, node: E.IsNull(*to.children(node)),
    "IsNotNull": lambda to, node: E.Not(E.IsNull(*to.children(node))),
    "IsNaN": lambda to, node: E.IsNaN(*to.children(node)),
    "In": _in,
    "Add": _arithmetic("add"),
    "Subtract": _arithmetic("subtract"),
    "Multiply": _arithmetic("multiply"),
    "Divide": _arithmetic("divide"),
    "Remainder": _arithmetic("remainder"),
    "IntegralDivide": _arithmetic("quotient"),
    "UnaryMinus": _sign(E.Negate),
    "Abs": _sign(E.Abs),
    "NormalizeNaNAndZero": _normalized,
    "Cast": _cast,
    "Coalesce": lambda to, node: E.Coalesce(tuple(to.children(node))),
    "CaseWhen": _case,
    "If": _if,
    "NullIfResult": _null_if,
    "StartsWith": _text_test("startswith"),
    "EndsWith": _text_test("endswith"),
    "Contains": _text_test("contains"),
    "SubtractTimestamps": _subtract_timestamps,
    "TimestampAddInterval": _add_interval,
    "SubtractDates": _subtract_dates,
    "DateDiff": _date_diff,
    "UnixMicros": _unix(1),
    "UnixMillis": _unix(1_000),
    "UnixSeconds": _unix(1_000_000),
    **{name: _math1(name.lower()) for name in ("Sqrt", "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Exp")},
    **{name: _math1(name.lower()) for name in ("Log10", "Signum", "Rint")},
    "Log": _math1("ln"),
    "ToRadians": _math1("radians"),
    "ToDegrees": _math1("degrees"),
    "Floor": _whole("floor"),
    "Ceil": _whole("ceil"),
    "Pow": _math2("pow"),
    "Atan2": _math2("atan2"),
    "Hypot": _math2("hypot"),
}
