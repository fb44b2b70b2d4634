"""Catalyst expressions as plain data, read in one walk from Spark's analysed plan.

The compiler decides what becomes of a node. Only this module knows what Spark calls it. An expression of a class that is not listed here
becomes `Unknown`: it is never guessed. Parts without columns are evaluated by Spark itself, such as dates that are written as strings.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, DecimalType, NullType, StringType

from headrace.errors import require
from headrace.spark import gateway, trees
from headrace.spark.expressions import data_type
from headrace.spark.plans import analyzed
from headrace.spark.versions import dialect

_log = logging.getLogger(__name__)

Mode: TypeAlias = Literal["ansi", "legacy", "try"]
"""What an overflow gives: an error, the wrapped value, or null."""
_MODES = ("ansi", "legacy", "try")
_LONG_DIGITS = 18
"""A decimal of so many digits fits a long."""


@dataclass(frozen=True)
class Attribute:
    """A column."""

    id: str
    type: DataType
    sql: str


@dataclass(frozen=True)
class Constant:
    """A value that is the same in every query."""

    value: bool | int | float | bytes | str | None
    """Texts are bytes in UTF-8; dates and times are whole days and microseconds; short decimals are unscaled. Others are Spark's text."""
    type: DataType
    sql: str


@dataclass(frozen=True)
class Call:
    """An operator or a function of SQL with its arguments."""

    name: str
    """One of the values of ``FUNCTIONS``."""
    arguments: tuple[Node, ...]
    type: DataType
    sql: str
    mode: Mode = "legacy"
    """What an overflow gives, for functions for which Spark has a choice."""
    zone: str = ""
    """The time zone of wall-clock times, for functions that use one."""


@dataclass(frozen=True)
class Unknown:
    """An expression that Headrace does not know."""

    name: str
    """The name of its class in Spark."""
    type: DataType
    sql: str


Node: TypeAlias = Attribute | Constant | Call | Unknown

TRANSPARENT = (
    "Alias", "Between", "Nvl", "NullIf", "DatetimeSub", "TryAdd", "TrySubtract", "TryMultiply", "TryDivide", "UnaryPositive",
    "KnownFloatingPointNormalized", "KnownNotNull", "KnownNullable",
)  # fmt: skip
"""Classes that mean the same as their first child: Spark has rewritten them, or they only carry a hint."""

FUNCTIONS: Mapping[str, str] = {
    "EqualTo": "eq", "LessThan": "lt", "LessThanOrEqual": "le", "GreaterThan": "gt", "GreaterThanOrEqual": "ge", "EqualNullSafe": "same",
    "And": "and", "Or": "or", "Not": "not", "In": "in", "IsNull": "is_null", "IsNotNull": "is_not_null", "IsNaN": "is_nan",
    "Add": "add", "Subtract": "subtract", "Multiply": "multiply", "Divide": "divide", "Remainder": "remainder",
    "IntegralDivide": "quotient", "UnaryMinus": "negate", "Abs": "abs", "NormalizeNaNAndZero": "normalize", "Cast": "cast",
    "Coalesce": "coalesce", "CaseWhen": "case", "If": "if", "NullIfResult": "null_if",
    "StartsWith": "startswith", "EndsWith": "endswith", "Contains": "contains",
    "SubtractTimestamps": "subtract_timestamps", "TimestampAddInterval": "add_interval", "SubtractDates": "subtract_dates",
    "DateDiff": "date_diff", "UnixMicros": "unix_micros", "UnixMillis": "unix_millis", "UnixSeconds": "unix_seconds",
    "Sqrt": "sqrt", "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh",
    "Cosh": "cosh", "Tanh": "tanh", "Exp": "exp", "Log": "ln", "Log10": "log10", "Signum": "signum", "Rint": "rint",
    "ToRadians": "radians", "ToDegrees": "degrees", "Floor": "floor", "Ceil": "ceil", "Pow": "pow", "Atan2": "atan2", "Hypot": "hypot",
}  # fmt: skip
"""By Catalyst class: the name of a call."""
_WITH_MODE = {"Add", "Subtract", "Multiply", "Divide", "Remainder", "IntegralDivide", "Cast"}
_WITH_FLAG = {"UnaryMinus", "Abs"}
_ROUNDING = {"Floor", "Ceil"}
_WITH_ZONE = {"SubtractTimestamps", "TimestampAddInterval"}

_PACKAGE = "org.apache.spark.sql.catalyst.expressions"
_ELSEWHERE = {"NormalizeNaNAndZero": "org.apache.spark.sql.catalyst.optimizer"}
ONLY_IN = {"NullIfResult": ("4.3",)}
"""Classes that only some of the supported versions have. The plans of the others never contain them."""


def classes(version: str) -> list[str]:
    """The full names of all classes that this module knows in a version of Spark."""
    names = [name for name in (*TRANSPARENT, *FUNCTIONS) if version in ONLY_IN.get(name, (version,))]
    return [f"{_ELSEWHERE.get(name, _PACKAGE)}.{name}" for name in names]


@dataclass(frozen=True)
class Condition:
    """The condition of a filter."""

    columns: tuple[str, ...]
    """The ids of the filter's columns, in their order."""
    node: Node


def filter_condition(frame: DataFrame) -> Condition | None:
    """The condition of a DataFrame that was just filtered. None if Spark needs more than a filter, such as a window, to evaluate it."""
    plan = analyzed(frame)
    if gateway.class_name(plan) != "Filter":
        return None
    columns = tuple(str(each.exprId().toString()) for each in gateway.items(plan.output()))
    return Condition(columns, read(frame.sparkSession, plan.condition()))


def read(session: SparkSession, expression: Any) -> Node:
    """The tree of a resolved Catalyst expression."""
    return _Reader(trees.patterns(session, trees.MOMENTARY)).node(expression)


@dataclass(frozen=True)
class _Reader:
    momentary: list[Any]
    common: dict[str, Any] = field(default_factory=dict)
    """Common expressions that Spark defines once, by the id of their references."""

    def node(self, expression: Any) -> Node:
        name = gateway.class_name(expression)
        if name in TRANSPARENT:
            return self.node(expression.children().apply(0))
        if name == "With":
            return self._with(expression)
        if name == "CommonExpressionRef":
            return self.node(self.common[expression.id().toString()])
        kind, sql = data_type(expression), str(expression.sql())
        if name == "AttributeReference":
            return Attribute(str(expression.exprId().toString()), kind, sql)
        if name == "Literal" or self._is_constant(expression):
            constant = _constant(expression, kind, sql)
            if constant is not None:
                return constant
        if name not in FUNCTIONS:
            return Unknown(name, kind, sql)
        arguments = tuple(self.node(child) for child in gateway.items(expression.children()))
        zone = str(expression.zoneId().toString()) if name in _WITH_ZONE else ""
        return Call(FUNCTIONS[name], arguments, kind, sql, _mode(name, expression), zone)

    def _with(self, expression: Any) -> Node:
        body, *definitions = gateway.items(expression.children())
        for each in definitions:
            self.common[each.id().toString()] = each.children().apply(0)
        return self.node(body)

    def _is_constant(self, expression: Any) -> bool:
        """True if the value is the same in every query. Spark's foldable includes values that are fixed per query: the time, the user."""
        return expression.foldable() and expression.deterministic() and not trees.contains_any(expression, self.momentary)


def _constant(expression: Any, kind: DataType, sql: str) -> Constant | None:
    """A part without columns, evaluated by Spark. None if that fails; the error is then raised when the value is needed."""
    if isinstance(kind, NullType):
        return Constant(None, kind, sql)
    try:
        return Constant(_plain(expression.eval(None), kind), kind, sql)
    except gateway.SPARK_ERRORS as failure:
        _log.debug("Spark cannot evaluate the constant %s: %s", sql, gateway.first_line(failure))
        return None


def _plain(value: Any, kind: DataType) -> bool | int | float | bytes | str | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(kind, StringType):
        return bytes(value.getBytes())
    if isinstance(kind, DecimalType) and kind.precision <= _LONG_DIGITS:
        return int(value.toUnscaledLong())
    return str(value.toString())


def _mode(name: str, expression: Any) -> Mode:
    if name in _WITH_MODE:
        mode = str(expression.evalMode().toString()).lower()
        require(mode in _MODES, f"the evaluation mode of {name} is one of {_MODES}, but it is {mode}")
        return cast(Mode, mode)
    if name in _WITH_FLAG or (name in _ROUNDING and dialect().rounding_checks_overflow):
        return "ansi" if expression.failOnError() else "legacy"
    return "legacy"
