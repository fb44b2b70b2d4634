"""Conditions over a left and a right row, as small trees that numpy evaluates.

A user's predicate over two streams is compiled (`compile.vectorise`) into such a tree. Types are those of the columns in memory:
timestamps and day-time intervals are int64 microseconds, dates are int32 days, small decimals are their unscaled int64, strings and bytes
are ranks in a sorted dictionary. All conversions are explicit, as in Spark's analysed plans, so all operands of a node have the same type.

A tree is data. Its JSON form uses names from a fixed list, so reading one runs no code from it.

>>> near = Compare("lt", Abs(Arithmetic("subtract", Column("left", "x"), Column("right", "x"))), Literal(5.0, "float64"))
>>> from_description(describe(near)) == near
True
>>> print(near)
(abs((left.x - right.x)) < 5.0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias
from typing import Literal as Choice

from headrace.errors import CheckpointError

Json = dict[str, Any]
Mode = Choice["ansi", "legacy", "try"]
"""What an overflow gives: an error, the wrapped value, or null. A division by zero gives an error, null, or null."""

MODES = ("ansi", "legacy", "try")
SIDES = ("left", "right")
TYPES = ("bool", "int8", "int16", "int32", "int64", "float32", "float64", "text")
COMPARISONS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "remainder": "%", "quotient": "div", "floordiv": "//"}
MATH1 = (
    "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "radians", "degrees", "exp", "ln", "log10", "signum",
    "rint",
)  # fmt: skip
WHOLE = ("floor", "ceil")
MATH2 = ("atan2", "pow", "hypot")
TEXT_TESTS = ("startswith", "endswith", "contains")


@dataclass(frozen=True)
class Column:
    """A column of the left or the right row."""

    side: str
    name: str

    def __str__(self) -> str:
        return f"{self.side}.{self.name}"


@dataclass(frozen=True)
class Literal:
    """A constant. None is null; text is given as bytes."""

    value: bool | int | float | bytes | None
    type: str

    def __str__(self) -> str:
        return "NULL" if self.value is None else repr(self.value)

    def __hash__(self) -> int:
        return hash(self._identity())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Literal) and self._identity() == other._identity()

    def _identity(self) -> tuple[str, str]:
        # To Python 1, 1.0 and True are equal, and so are -0.0 and 0.0, but NaN is not equal to NaN.
        return repr(self.value), self.type


@dataclass(frozen=True)
class Compare:
    """A comparison. It is null if either side is null. NaN equals NaN and is greater than all other values."""

    op: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"({self.left} {COMPARISONS[self.op]} {self.right})"


@dataclass(frozen=True)
class Same:
    """SQL's `<=>`: null equals null, and the result is never null."""

    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"({self.left} <=> {self.right})"


@dataclass(frozen=True)
class And:
    """All conditions hold, by SQL's rules for null."""

    items: tuple[Expr, ...]

    def __str__(self) -> str:
        return "(" + " AND ".join(map(str, self.items)) + ")"


@dataclass(frozen=True)
class Or:
    """At least one condition holds, by SQL's rules for null."""

    items: tuple[Expr, ...]

    def __str__(self) -> str:
        return "(" + " OR ".join(map(str, self.items)) + ")"


@dataclass(frozen=True)
class Not:
    """The opposite of a condition; null stays null."""

    child: Expr

    def __str__(self) -> str:
        return f"(NOT {self.child})"


@dataclass(frozen=True)
class IsNull:
    """True for null."""

    child: Expr

    def __str__(self) -> str:
        return f"({self.child} IS NULL)"


@dataclass(frozen=True)
class IsNaN:
    """True for NaN; false for null."""

    child: Expr

    def __str__(self) -> str:
        return f"isnan({self.child})"


@dataclass(frozen=True)
class Arithmetic:
    """An arithmetic operation. `remainder` and `quotient` round towards zero, as in Java; `floordiv` needs a positive integer divisor."""

    op: str
    left: Expr
    right: Expr
    mode: Mode = "ansi"

    def __str__(self) -> str:
        return f"({self.left} {ARITHMETIC[self.op]} {self.right})"


@dataclass(frozen=True)
class Negate:
    """The negative of a number."""

    child: Expr
    mode: Mode = "ansi"

    def __str__(self) -> str:
        return f"(- {self.child})"


@dataclass(frozen=True)
class Abs:
    """The absolute value of a number."""

    child: Expr
    mode: Mode = "ansi"

    def __str__(self) -> str:
        return f"abs({self.child})"


@dataclass(frozen=True)
class Math1:
    """A mathematical function of a double."""

    function: str
    child: Expr

    def __str__(self) -> str:
        return f"{self.function}({self.child})"


@dataclass(frozen=True)
class Whole:
    """Floor or ceiling, as int64. NaN gives 0."""

    function: str
    child: Expr
    mode: Mode = "ansi"

    def __str__(self) -> str:
        return f"{self.function}({self.child})"


@dataclass(frozen=True)
class Math2:
    """A mathematical function of two doubles."""

    function: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        return f"{self.function}({self.left}, {self.right})"


@dataclass(frozen=True)
class Cast:
    """A cast between numbers, or between numbers and booleans."""

    child: Expr
    type: str
    mode: Mode = "ansi"

    def __str__(self) -> str:
        return f"CAST({self.child} AS {self.type})"


@dataclass(frozen=True)
class Coalesce:
    """The first value that is not null."""

    items: tuple[Expr, ...]

    def __str__(self) -> str:
        return f"coalesce({', '.join(map(str, self.items))})"


@dataclass(frozen=True)
class CaseWhen:
    """The value that belongs to the first condition that is true."""

    conditions: tuple[Expr, ...]
    values: tuple[Expr, ...]
    otherwise: Expr

    def __str__(self) -> str:
        branches = " ".join(f"WHEN {c} THEN {v}" for c, v in zip(self.conditions, self.values, strict=True))
        return f"CASE {branches} ELSE {self.otherwise} END"


@dataclass(frozen=True)
class TextTest:
    """True if a text starts with, ends with or contains a constant, compared byte by byte."""

    test: str
    child: Expr
    text: bytes

    def __str__(self) -> str:
        return f"{self.test}({self.child}, {self.text!r})"


Expr: TypeAlias = (
    Column | Literal | Compare | Same | And | Or | Not | IsNull | IsNaN | Arithmetic | Negate | Abs | Math1 | Whole | Math2 | Cast
    | Coalesce | CaseWhen | TextTest
)  # fmt: skip

NODES: dict[str, type[Any]] = {
    "column": Column,
    "literal": Literal,
    "compare": Compare,
    "same": Same,
    "and": And,
    "or": Or,
    "not": Not,
    "isNull": IsNull,
    "isNaN": IsNaN,
    "arithmetic": Arithmetic,
    "negate": Negate,
    "abs": Abs,
    "math1": Math1,
    "whole": Whole,
    "math2": Math2,
    "cast": Cast,
    "coalesce": Coalesce,
    "caseWhen": CaseWhen,
    "textTest": TextTest,
}
"""The names of nodes in checkpoints. They stay the same when a class is renamed."""
# The fields of each class are cached: trees are walked many times, and asking the class would take most of that time.
_FIELDS: dict[type[Any], tuple[str, ...]] = {kind: tuple(each.name for each in fields(kind)) for kind in NODES.values()}
_NAME_OF = {kind: name for name, kind in NODES.items()}
_KNOWN: dict[str, tuple[str, ...] | dict[str, str]] = {"side": SIDES, "type": TYPES, "mode": MODES, "test": TEXT_TESTS}


def children(expr: Expr) -> Iterator[Expr]:
    """The direct children of a node."""
    for name in _FIELDS[type(expr)]:
        value = getattr(expr, name)
        if type(value) in _NAME_OF:
            yield value
        elif isinstance(value, tuple):
            yield from value


def walk(expr: Expr) -> Iterator[Expr]:
    """The tree's nodes, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def columns(expr: Expr) -> set[Column]:
    """The columns that a tree reads."""
    return {node for node in walk(expr) if isinstance(node, Column)}


def with_children(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The node with `change` applied to each child."""
    new: dict[str, Any] = {}
    for each in fields(expr):
        value = getattr(expr, each.name)
        if type(value) in _NAME_OF:
            new[each.name] = change(value)
        elif isinstance(value, tuple):
            new[each.name] = tuple(change(item) for item in value)
    return replace(expr, **new) if new else expr


def conjuncts(expr: Expr) -> list[Expr]:
    """The conditions that an AND combines, or the expression itself if it is no AND."""
    if isinstance(expr, And):
        return [each for item in expr.items for each in conjuncts(item)]
    return [expr]


def describe(expr: Expr) -> Json:
    """The tree as JSON."""
    about: Json = {"kind": _NAME_OF[type(expr)]}
    for each in fields(expr):
        value = getattr(expr, each.name)
        if type(value) in _NAME_OF:
            about[each.name] = describe(value)
        elif isinstance(value, tuple):
            about[each.name] = [describe(item) for item in value]
        elif isinstance(value, bytes):
            about[each.name] = {"hex": value.hex()}
        elif isinstance(value, float) and not math.isfinite(value):
            about[each.name] = {"float": repr(value)}  # JSON has no NaN and no infinity.
        else:
            about[each.name] = value
    return about


def from_description(about: Json) -> Expr:
    """The reverse of `describe`. Unknown names come from a newer Headrace and are refused."""
    kind = NODES.get(about["kind"])
    if kind is None:
        raise _unknown("expression", about["kind"])
    values = {each.name: _field_from(kind, each.name, about[each.name]) for each in fields(kind)}
    expr: Expr = kind(**values)
    return expr


def _field_from(kind: type[Any], name: str, value: Any) -> Any:
    if isinstance(value, dict):
        if "hex" in value:
            return bytes.fromhex(value["hex"])
        return float(value["float"]) if "float" in value else from_description(value)
    if isinstance(value, list):
        return tuple(from_description(item) for item in value)
    known = {Compare: COMPARISONS, Arithmetic: ARITHMETIC}.get(kind) if name == "op" else _KNOWN.get(name)
    if name == "function":
        known = {Math1: MATH1, Math2: MATH2, Whole: WHOLE}[kind]
    if known is not None and value not in known:
        raise _unknown(name, value)
    return value


def _unknown(what: str, found: Any) -> CheckpointError:
    return CheckpointError(where="query.json", wanted=f"a known {what}", found=repr(found), hint="a newer Headrace may have written it")
