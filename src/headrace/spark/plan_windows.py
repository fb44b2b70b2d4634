"""Time windows and session windows in Spark's analysed plans.

Spark's analysis replaces ``F.window`` and ``F.session_window`` by plain expressions below the aggregate. Their durations are found by
evaluating these expressions for one time. Then Spark analyses a window with these durations anew; unless this gives the very same
expressions, the window is not recognised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from headrace.spark.expressions import column, data_type, expression_maker
from headrace.spark.gateway import class_name, fields, items
from headrace.spark.logical import Expression, Logical
from headrace.spark.plans import analyzed, frame_of
from headrace.spark.trees import rewrite, walk

WINDOW, SESSION = "spark.timeWindow", "spark.sessionWindow"
"""Spark's metadata keys of window columns."""
_PROBE_US = 1_000_000_000_012_345


@dataclass(frozen=True, eq=False)
class FoundWindow:
    """A window that an aggregate groups by."""

    column_id: int
    """The id of the window's column."""
    base: Logical
    """The plan below the window."""
    time: Expression
    """The time of a row, over the columns of `base`."""
    size_us: int
    """The size of a time window, or the gap of a session; 0 if `until` is given."""
    advance_us: int
    offset_us: int
    is_session: bool
    until: Expression | None = None
    """For a session whose gap is not the same for all rows: the time of a row plus its gap, over the columns of `base`."""


@dataclass(frozen=True, eq=False)
class _Shape:
    """The parts of a window's expansion."""

    column: Any
    """The window's column, as an attribute."""
    structs: list[Any]
    condition: Any
    base: Any
    is_session: bool


def found_window(child: Logical) -> FoundWindow | None:
    """The window that Spark has put right below an aggregate whose input is ``child``; None if there is none that is recognised."""
    shape = _shape(child.node)
    if shape is None:
        return None
    time = _time(shape.structs[0])
    if time is None:
        return None
    found = _session(child.session, shape, time) if shape.is_session else _window(child.session, shape, time)
    return found if found is not None and _is_sparks_own(child.session, found, shape) else None


def has_window(node: Logical, key: str) -> bool:
    """True if an output column of a node is marked as a window of this kind."""
    return any(each.metadata().contains(key) for each in items(node.node.output()))


def _shape(node: Any) -> _Shape | None:
    below = node.children().apply(0) if node.children().size() == 1 else None
    if below is None:
        return None
    match class_name(node), class_name(below):
        case "Project", "Filter":
            alias = _first_alias(node, WINDOW)
            if alias is not None and _passes_on(node, below.child()):
                return _Shape(alias.toAttribute(), [alias.child()], below.condition(), below.child(), False)
        case "Filter", "Expand":
            first = below.output().apply(0)
            structs = [each.apply(0) for each in items(below.projections())]
            if first.metadata().contains(WINDOW) and all(class_name(each) == "CreateNamedStruct" for each in structs):
                return _Shape(first, structs, node.condition(), below.child(), False)
        case "Filter", "Project":
            alias = _first_alias(below, SESSION)
            if alias is not None and _passes_on(below, below.child()):
                return _Shape(alias.toAttribute(), [alias.child()], node.condition(), below.child(), True)
    return None


def _first_alias(project: Any, key: str) -> Any | None:
    """The first column of a projection, if it is a struct that is marked as a window."""
    if not project.projectList().size():
        return None
    first = project.projectList().apply(0)
    marked = class_name(first) == "Alias" and first.metadata().contains(key) and class_name(first.child()) == "CreateNamedStruct"
    return first if marked else None


def _passes_on(project: Any, below: Any) -> bool:
    """True if a projection adds one column in front of those below it."""
    others = [int(each.exprId().id()) for each in items(project.projectList())][1:]
    return others == [int(each.exprId().id()) for each in items(below.output())]


def _time(struct: Any) -> Any | None:
    """The time that a window is made of: what is converted to microseconds."""
    conversion = next((node for node in walk(struct) if _is_conversion(node)), None)
    return None if conversion is None else conversion.child()


def _is_conversion(node: Any) -> bool:
    return class_name(node) == "PreciseTimestampConversion" and str(node.toType().simpleString()) == "bigint"


def _window(session: SparkSession, shape: _Shape, time: Any) -> FoundWindow | None:
    def probed(bound: Any) -> int | None:
        return _long(session, bound, lambda node: _is_conversion(node) and node.child().semanticEquals(time))

    bounds = [(probed(struct.children().apply(1)), probed(struct.children().apply(3))) for struct in shape.structs]
    (start, end), *others = bounds
    if start is None or end is None or any(None in each for each in bounds):
        return None
    size = end - start
    advance = start - others[0][0] if others and others[0][0] is not None else size
    if size <= 0 or not 0 < advance <= size:
        return None
    base = Logical(session, shape.base)
    return FoundWindow(_id(shape.column), base, Expression(session, time), size, advance, start % advance, False)


def _session(session: SparkSession, shape: _Shape, time: Any) -> FoundWindow | None:
    added = _time_and_gap(shape)
    if added is None:
        return None
    # Spark checks each row's gap unless it is a constant.
    gap = (_fixed_gap(added) or 0) if class_name(shape.condition) == "IsNotNull" else 0
    until = None if gap else Expression(session, added)
    return FoundWindow(_id(shape.column), Logical(session, shape.base), Expression(session, time), gap, gap, 0, True, until)


def _time_and_gap(shape: _Shape) -> Any | None:
    """For a session: the sum of a row's time and its gap."""
    end = next((node for node in walk(shape.structs[0].children().apply(3)) if _is_conversion(node)), None)
    added = None if end is None else end.child()
    while added is not None and class_name(added) == "Cast" and data_type(added) == data_type(added.child()):
        added = added.child()
    return added if added is not None and class_name(added) == "TimestampAddInterval" else None


def _fixed_gap(added: Any) -> int | None:
    """The gap in microseconds, if it is the same for all rows: a constant that is no matter of the calendar."""
    value = added.right().eval(None) if added.right().foldable() else None
    if value is None:
        return None
    months, days, us = (int(each) for each in fields(value, "months", "days", "microseconds"))
    # A gap of days is as long as the days are in the session's time zone, unless that has no summer time.
    if months or (days and str(added.timeZoneId().get()) not in ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")):
        return None
    gap = days * 86_400_000_000 + us
    return gap if gap > 0 else None


def _long(session: SparkSession, bound: Any, is_time: Any) -> int | None:
    """The microseconds of a window's bound, if the row's time is `_PROBE_US`."""
    literal = expression_maker(session)(F.lit(_PROBE_US).cast("long"))
    while class_name(bound) in ("KnownNullable", "Cast"):
        bound = bound.child()
    if class_name(bound) != "PreciseTimestampConversion":
        return None
    inner = rewrite(session, bound.child(), lambda node: literal if is_time(node) else None)
    if any(class_name(each) == "AttributeReference" for each in walk(inner)):
        return None
    folded = analyzed(session.range(1).select(column(session, inner).alias("at"))).projectList().apply(0).child()
    return int(folded.eval(None))


def window_column(found: FoundWindow, time: Column) -> Column:
    """The window as a user writes it."""
    us = "{} microseconds".format
    if found.is_session and found.until is not None:
        return F.session_window(time, column(found.until.session, found.until.node.right()))
    if found.is_session:
        return F.session_window(time, us(found.size_us))
    return F.window(time, us(found.size_us), us(found.advance_us), us(found.offset_us))


def _is_sparks_own(session: SparkSession, found: FoundWindow, shape: _Shape) -> bool:
    """True if Spark's analysis of the found window gives just what the plan has."""
    base = frame_of(session, shape.base, analyzed=True)
    again = analyzed(base.groupBy(window_column(found, column(session, found.time.node))).count())
    own = _shape(again.child())
    if own is None or own.is_session != shape.is_session or len(own.structs) != len(shape.structs):
        return False
    if shape.is_session and found.until is None:
        # The gap has been read above. It may be written in days, and is analysed here in microseconds.
        starts = [each.structs[0].children().apply(1) for each in (own, shape)]
        return bool(starts[0].semanticEquals(starts[1])) and class_name(shape.condition) == "IsNotNull"
    if not all(mine.semanticEquals(theirs) for mine, theirs in zip(own.structs, shape.structs, strict=True)):
        return False
    mine = _id(own.column)

    def same_column(node: Any) -> Any | None:
        return shape.column if class_name(node) == "AttributeReference" and _id(node) == mine else None

    return bool(rewrite(session, own.condition, same_column).semanticEquals(shape.condition))


def _id(attribute: Any) -> int:
    return int(attribute.exprId().id())
