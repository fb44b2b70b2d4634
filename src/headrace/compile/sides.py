"""The columns of two streams that are joined: how they are shuffled, what they are called, and conditions over both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import StoreReader
from headrace.compile.types import arrow_type, decode, encode, normalize, transport_type
from headrace.compile.vectorise import vectorise
from headrace.errors import QueryError, UnsupportedError, require
from headrace.operators.description import ColumnNames
from headrace.operators.expressions import Expr
from headrace.operators.last import TIE
from headrace.operators.lifetime import NEVER
from headrace.operators.pairing import NAMES, SIDE, TIMES
from headrace.spark import expressions, gateway
from headrace.spark.expression_tree import filter_condition
from headrace.spark.words import texts
from headrace.state.layout import SUB, Layout, Policy

_NO_WATERMARK = "call withWatermark(column, delay) on both streams before joining them: without it no row could ever be forgotten"


@dataclass(frozen=True)
class SideColumns:
    """The columns of one side: key, event time, and the rest."""

    frame: DataFrame
    on: tuple[str, ...]
    time: T.StructField | None
    """The event time; None if rows have none that counts."""
    rest: tuple[T.StructField, ...]
    """All columns but the key and the event time. Also keys whose equal values can differ (0.0 and -0.0), to keep the user's value."""

    @property
    def keys(self) -> list[T.StructField]:
        return [field_of(self.frame, name) for name in self.on]

    def layout(self) -> Layout:
        """The layout of the side's buffer."""
        return Layout(
            keys=tuple((f"k{i}", arrow_type(f.dataType)) for i, f in enumerate(self.keys)),
            values=tuple((f"p{i}", arrow_type(f.dataType)) for i, f in enumerate(self.rest)),
            has_sub=True,
            policy=Policy.KEEP,
        )

    def fixed(self) -> list[Column]:
        """The columns of key and event time in the shuffle."""
        keys = [encode(normalize(column_named(f.name), f.dataType), f.dataType).alias(f"k{i}") for i, f in enumerate(self.keys)]
        if self.time is None:
            return [*keys, F.lit(0).cast("long").alias(SUB)]
        micros = event_time.micros(column_named(self.time.name), self.time.dataType)
        return [*keys, F.coalesce(micros, F.lit(NEVER)).cast("long").alias(SUB)]

    def internal(self, name: str) -> str:
        """The kernel's name for a column of the user's."""
        if name in (kept := [f.name for f in self.rest]):
            return f"p{kept.index(name)}"
        if self.time is not None and name == self.time.name and not isinstance(self.time.dataType, T.StructType):
            return SUB
        return f"k{self.on.index(name)}"

    def reader(self) -> StoreReader:
        """How the side's buffer is shown to a user."""
        kinds = [transport_type(f.dataType) for f in self.keys]
        fields = [T.StructField(f"k{i}", kind) for i, kind in enumerate(kinds)]
        fields += [T.StructField(SUB, T.LongType()), *(T.StructField(f"p{i}", transport_type(f.dataType)) for i, f in enumerate(self.rest))]
        shown = [decode(F.col(f"k{i}"), f.dataType).alias(f.name) for i, f in enumerate(self.keys) if f not in self.rest]
        if self.time is not None and self.time.name not in self.on and self.time not in self.rest:
            shown.append(event_time.from_micros(F.col(SUB), self.time.dataType).alias(self.time.name))
        shown += [decode(F.col(f"p{i}"), f.dataType).alias(f.name) for i, f in enumerate(self.rest)]
        names = ColumnNames(self.on, tuple(f.name for f in self.rest), None if self.time is None else self.time.name)
        return StoreReader(T.StructType(fields), lambda frame: frame.select(*shown), names)


def own_templates(frames: tuple[DataFrame, ...]) -> tuple[DataFrame, ...]:
    """The inputs of an operator, each with its own leaf, so that the leaf can be found in the operator's plan.

    Two branches may share one empty leaf. In a plan with both, Spark would give the second one new column ids, and it would not be found.
    Spark does not do this to streaming leaves.
    """
    return tuple(f if f.isStreaming else f.sparkSession.createDataFrame([], f.schema) for f in frames)


def side_columns(frame: DataFrame, on: tuple[str, ...], where: str) -> SideColumns:
    """Divide the columns of a side into key, event time and the rest."""
    return divided_columns(frame, on, the_event_time(frame, where))


def divided_columns(frame: DataFrame, on: tuple[str, ...], time: T.StructField | None, whole: bool = False) -> SideColumns:
    """The same for a known event time. With ``whole``, keys are also kept among the rest."""
    raw = {name for name in on if whole or _has_floats(field_of(frame, name).dataType)}
    # A window's time is its end. The window itself cannot be told from that.
    told = None if time is None or isinstance(time.dataType, T.StructType) else time.name
    rest = tuple(f for f in frame.schema.fields if f.name in raw or (f.name not in on and f.name != told))
    return SideColumns(frame, on, time, rest)


def the_event_time(frame: DataFrame, where: str) -> T.StructField:
    """The one event-time column of a side. None, several, or one that is no timestamp are refused."""
    timed = [f for f in frame.schema.fields if expressions.WATERMARK_KEY in f.metadata]
    if not timed:
        raise QueryError(where=where, wanted="an event time with a watermark on each side", found="none", hint=_NO_WATERMARK)
    if len(timed) > 1:
        names = ", ".join(f.name for f in timed)
        raise QueryError(where=where, wanted="one event time on each side", found=names, hint="drop the one that is not meant")
    if not isinstance(timed[0].dataType, T.TimestampType | T.TimestampNTZType):
        found = f"{timed[0].name}, a {timed[0].dataType.simpleString()}"
        raise UnsupportedError(where=where, wanted="an event time that is a timestamp", found=found)
    return timed[0]


def required_time(side: SideColumns) -> T.StructField:
    """The event time of a side that has one."""
    require(side.time is not None, "the rows of this side have an event time")
    assert side.time is not None
    return side.time


def field_of(frame: DataFrame, name: str) -> T.StructField:
    """The field of the column with this name."""
    return next(f for f in frame.schema.fields if f.name == name)


def column_named(name: str) -> Column:
    """The column with this name, whatever characters the name has."""
    return F.col(expressions.quoted(name))


def share_places(sides: tuple[SideColumns, SideColumns]) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], list[T.DataType]]:
    """For each side and value, the shuffled column that holds it; and the types of these columns. Values of both sides share columns."""
    kinds: list[T.DataType] = []
    places = []
    for side in sides:
        taken: set[int] = set()
        own = []
        for f in side.rest:
            kind = transport_type(f.dataType)
            at = next((i for i, known in enumerate(kinds) if i not in taken and known == kind), None)
            if at is None:
                at = len(kinds)
                kinds.append(kind)
            taken.add(at)
            own.append(f"v{at}")
        places.append(tuple(own))
    return (places[0], places[1]), kinds


def travelling(side: SideColumns, which: int | None, places: tuple[str, ...], kinds: list[T.DataType], tie: bool = False) -> list[Column]:
    """The shuffled columns of a side's rows. `which` adds a column with the side, `tie` one with a hash of the row."""
    own = {place: encode(column_named(f.name), f.dataType) for place, f in zip(places, side.rest, strict=True)}
    values = [own.get(f"v{i}", F.lit(None)).cast(kind).alias(f"v{i}") for i, kind in enumerate(kinds)]
    return [
        *side.fixed(),
        *([] if which is None else [F.lit(which).cast("byte").alias(SIDE)]),
        *values,
        *([hash_of_row(side.frame).alias(TIE)] if tie else []),
    ]


def hash_of_row(frame: DataFrame) -> Column:
    """A hash of the row, over all columns that can be hashed."""
    return F.xxhash64(*[column_named(f.name) for f in frame.schema.fields if not _has_map(f.dataType)])


def _has_map(kind: T.DataType) -> bool:
    if isinstance(kind, T.ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_has_map(f.dataType) for f in kind.fields)
    return isinstance(kind, T.MapType | T.VariantType)


@dataclass(frozen=True)
class Joined:
    """The columns of a pair, in the user's order and under the user's names."""

    sides: tuple[SideColumns, SideColumns]
    outer: tuple[bool, bool]
    fields: tuple[tuple[T.StructField, int | None, str], ...]
    """For each column its field in the result, its side (None for a key), and its name on that side."""

    @property
    def schema(self) -> T.StructType:
        return T.StructType([f for f, _, _ in self.fields])

    @property
    def schema_without_event_time(self) -> T.StructType:
        """The schema without event-time marks, for pairs whose older row can be of any age, so that no watermark holds for them."""
        return T.StructType(
            [
                T.StructField(f.name, f.dataType, f.nullable, {k: v for k, v in f.metadata.items() if k != expressions.WATERMARK_KEY})
                for f in self.schema.fields
            ]
        )

    def kernel_schema(self) -> T.StructType:
        """Spark's types of the pairs that the kernel emits."""
        keys = [T.StructField(f"k{i}", transport_type(f.dataType)) for i, f in enumerate(self.sides[0].keys)]
        values = [
            T.StructField(f"{letter}{i}", transport_type(f.dataType))
            for letter, side in zip("lr", self.sides, strict=True)
            for i, f in enumerate(side.rest)
        ]
        return T.StructType([*keys, *(T.StructField(name, T.LongType()) for name in TIMES), *values])

    def finish(self) -> Callable[[DataFrame], DataFrame]:
        """The function that selects the user's columns from the kernel's pairs."""
        shown = [self._value(f, side, name).alias(f.name) for f, side, name in self.fields]
        return lambda frame: frame.select(*shown)

    def _value(self, f: T.StructField, side: int | None, name: str) -> Column:
        if side is None:
            if name not in [kept.name for kept in self.sides[0].rest]:
                return decode(F.col(f"k{self.sides[0].on.index(name)}"), f.dataType)
            # As in Spark, a pair has the left side's value, or in a right outer join the right side's.
            at = self.sides[0].on.index(name)
            both = [self._value(f, each, side.on[at]) for each, side in enumerate(self.sides)]
            return both[1] if self.outer == (False, True) else F.coalesce(*both) if self.outer == (True, True) else both[0]
        internal = self.sides[side].internal(name)
        if internal == SUB:
            return event_time.from_micros(F.col(TIMES[side]), f.dataType)
        if internal.startswith("k"):
            # The key is of the row that is there. It is shown for a side only if that side has a row, and so a time.
            key = decode(F.col(internal), f.dataType)
            return F.when(F.col(TIMES[side]).isNotNull(), key) if self.outer[1 - side] else key
        return decode(F.col(f"{'lr'[side]}{internal[1:]}"), f.dataType)

    def translated(self, condition: Column, where: str) -> Expr:
        """The condition as a tree that numpy evaluates. Raises `UnsupportedError` if it has no exact counterpart."""
        nothing = self.sides[0].frame.sparkSession.createDataFrame([], self.schema)
        filtered = filter_condition(gateway.checked(where, lambda: nothing.filter(condition)))
        if filtered is None:
            raise UnsupportedError(where=where, found="a condition that is more than an expression over the joined columns")
        known = dict(zip(filtered.columns, self.fields, strict=True))

        def resolve(expr_id: str) -> tuple[str, str] | None:
            if expr_id not in known:
                return None
            _, side, name = known[expr_id]
            return NAMES[side or 0], self.sides[side or 0].internal(name)

        return vectorise(filtered.node, resolve)

    def check(self, condition: Column, where: str) -> None:
        """Refuse a condition that is not a boolean expression over the joined columns."""
        nothing = self.sides[0].frame.sparkSession.createDataFrame([], self.schema)
        gateway.checked(where, lambda: nothing.filter(condition))

    def resolved(self, keys: list[str], condition: Column | None) -> dict[str, object]:
        """Keys and condition for the operator's identity, the condition as Spark has resolved it."""
        if condition is None:
            return {"keys": keys}
        pair = self.sides[0].frame.sparkSession.createDataFrame([], self.schema)
        return {"keys": keys, "condition": texts(pair, [condition])[0]}


def pair_columns(sides: tuple[SideColumns, SideColumns], outer: tuple[bool, bool], suffixes: tuple[str, str], where: str) -> Joined:
    """The columns of a pair: keys once, then the other columns of the left and of the right side. Names of both sides get a suffix."""
    keys = {name.lower() for name in sides[0].on}
    names = [{name.lower() for name in side.frame.columns} for side in sides]
    fields: list[tuple[T.StructField, int | None, str]] = []
    for name in sides[0].on:
        f = field_of(sides[0].frame, name)
        fields.append((_field(name, f, nullable=outer != (False, False)), None, name))
    for which, side in enumerate(sides):
        for f in side.frame.schema.fields:
            if f.name.lower() in keys:
                continue
            named = f.name + (suffixes[which] if f.name.lower() in names[1 - which] else "")
            fields.append((_field(named, f, nullable=outer[1 - which]), which, f.name))
    lower = [f.name.lower() for f, _, _ in fields]
    double = sorted({f.name for f, _, _ in fields if lower.count(f.name.lower()) > 1})
    if double:
        hint = "give suffixes=('_a', '_b') that tell them apart, or rename them before"
        raise QueryError(where=where, wanted="a name of its own for every column", found=f"{', '.join(double)} twice", hint=hint)
    return Joined(sides, outer, tuple(fields))


def _field(name: str, f: T.StructField, nullable: bool) -> T.StructField:
    return T.StructField(name, f.dataType, f.nullable or nullable, f.metadata)


def _has_floats(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has_floats(f.dataType) for f in kind.fields)
    return isinstance(kind, T.FloatType | T.DoubleType)


def bound_in_words(within_us: int, sides: tuple[SideColumns, SideColumns]) -> str:
    """The bound on the time between both rows, in words."""
    names = " and ".join(side.time.name for side in sides if side.time is not None)
    return f"{within_us} microseconds between {names}"


def text_of(condition: Column | None) -> str | None:
    """A condition as a person would write it."""
    if condition is None:
        return None
    return str(condition).removeprefix("Column<'").removesuffix("'>")
