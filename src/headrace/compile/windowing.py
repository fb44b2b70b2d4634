"""How an aggregate is divided: not at all, by event time as a key, by time windows, by sessions, or by counting rows.

Each kind has its own kernel, its own columns beside keys and partials, and its own way to show the window to the user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.plan import Refusal
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import AggregateNode
from headrace.graph.windows import CountSpec, SessionSpec, WindowSpec
from headrace.operators import counted, session
from headrace.operators.aggregate import RunningAggregate
from headrace.operators.counted import CountAggregate
from headrace.operators.kernel import MAIN, Operator, OutputMode
from headrace.operators.partials import Partial
from headrace.operators.session import SessionAggregate
from headrace.operators.windowed import WINDOW, WindowedAggregate
from headrace.operators.windows import TimeWindow, duration
from headrace.spark import expressions, plans
from headrace.state.layout import SUB, Layout, Policy

TIME, UNTIL = "__headrace_time", "__headrace_until"
NEVER = 2**62
"""The event time of a row that has none. Such a row is never late and never due."""

_MERGING = Refusal("a session grows and merges with others, so what update mode has shown of it would have to be taken back")
_FORGOTTEN = Refusal("windows of rows are forgotten once they are emitted, so complete mode has nothing to show again")

Fields = tuple[tuple[str, pa.DataType], ...]
Make = Callable[[Fields, Fields, tuple[Partial, ...]], Operator]


@dataclass(frozen=True)
class Key:
    """A grouping column."""

    name: str
    """The user's name."""
    internal: str
    type: T.DataType
    is_event_time: bool

    @property
    def is_window(self) -> bool:
        """True for a window that is a result of an earlier aggregate."""
        return self.is_event_time and isinstance(self.type, T.StructType)


@dataclass(frozen=True)
class Windowing:
    """One way to divide the rows of a key into groups."""

    make: Make
    """Makes the kernel from the key columns, the columns of the partials, and the partials."""
    sub: Column | None = None
    extra: tuple[Column, ...] = ()
    """Further columns that the kernel needs of each row, beside keys, sub-key and partials."""
    fields: tuple[str, ...] = ()
    """The columns between keys and partials in the kernel's results. All are long."""
    shown: Column | None = None
    """The window column in results."""
    shown_state: tuple[Column, str] | None = None
    """The window column in ``query.state()``, and its name; None: as in results."""
    time_key: str | None = None
    """The internal name of the grouping column that is the sub-key itself, if there is one."""
    time_type: T.DataType | None = None
    sub_names: Mapping[str, str] = field(default_factory=dict)
    """The user's name for the sub-key, by store."""
    text: str | None = None
    modes: tuple[OutputMode, ...] = (OutputMode.UPDATE, OutputMode.COMPLETE)
    combines: bool = True
    """True if rows may be combined before the shuffle."""
    timed: bool = False
    """True if results fall due by the watermark."""
    refusals: Mapping[OutputMode, Refusal] = field(default_factory=dict)

    def schema(self, names: list[str], key_types: list[T.DataType], partial_types: list[T.DataType]) -> T.StructType:
        """Spark's types of the kernel's results."""
        fields = [T.StructField(name, kind) for name, kind in zip(names, key_types, strict=True)]
        fields += [T.StructField(name, T.LongType()) for name in self.fields]
        return T.StructType(fields + [T.StructField(f"p{i}", kind) for i, kind in enumerate(partial_types)])


def windowing(node: AggregateNode, staged: DataFrame, keys: list[Key]) -> Windowing:
    """The way to divide the rows that a node asks for."""
    spec = node.window
    if isinstance(spec, CountSpec):
        return _counted(node, spec, staged)
    timed = spec is not None and plans.watermark_delay_ms(staged, TIME) is not None
    if isinstance(spec, SessionSpec):
        return _sessions(node, spec, staged.schema[TIME].dataType, timed)
    if spec is not None:
        return _time_window(spec, staged.schema[TIME].dataType, timed)
    event_times = [k for k in keys if k.is_event_time]
    if len(event_times) > 1:
        raise UnsupportedError(where=node.where, found=f"several event times among the keys: {[k.name for k in event_times]}")
    if event_times:
        return _time_as_key(event_times[0])
    one_group = not keys
    return Windowing(lambda k, v, p: RunningAggregate(Layout(k, v), p, one_group))


def _time_as_key(key: Key) -> Windowing:
    window = TimeWindow(size_us=0, advance_us=1)
    if key.is_window:
        # The window stays an ordinary key. A group is closed when its window ends.
        assert isinstance(key.type, T.StructType)
        kind = key.type["end"].dataType
        time = event_time.micros(F.col(f"{key.internal}.end"), kind)
    else:
        kind = key.type
        time = event_time.micros(F.col(key.internal), kind)
    return Windowing(
        lambda k, v, p: WindowedAggregate(Layout(k, v, has_sub=True, policy=Policy.COMBINE), p, window),
        sub=F.coalesce(time, F.lit(NEVER).cast("long")),
        fields=(WINDOW,),
        time_key=None if key.is_window else key.internal,
        time_type=kind,
        sub_names={} if key.is_window else {MAIN: key.name},
        text=str(window),
        modes=tuple(OutputMode),
        timed=True,
    )


def _time_window(spec: WindowSpec, kind: T.DataType, timed: bool) -> Windowing:
    window = TimeWindow(spec.size_us, spec.advance_us, spec.offset_us)
    start = event_time.from_micros(F.col(WINDOW), kind).alias("start")
    end = event_time.from_micros(F.col(WINDOW) + F.lit(window.size_us), kind).alias("end")
    # State is stored by pane. If windows have several panes, the state shows only the start of a pane.
    whole = window.one_pane_each
    return Windowing(
        lambda k, v, p: WindowedAggregate(Layout(k, v, has_sub=True, policy=Policy.COMBINE), p, window),
        sub=event_time.pane(event_time.micros(F.col(TIME), kind), window),
        fields=(WINDOW,),
        shown=F.struct(start, end),
        shown_state=(F.struct(start, end), spec.name) if whole else (F.struct(start), "pane"),
        time_type=kind,
        sub_names={MAIN: "window.start" if whole else "pane"},
        text=str(window),
        modes=tuple(OutputMode) if timed else (OutputMode.UPDATE, OutputMode.COMPLETE),
        timed=timed,
    )


def _sessions(node: AggregateNode, spec: SessionSpec, kind: T.DataType, timed: bool) -> Windowing:
    start = event_time.from_micros(F.col(session.START), kind).alias("start")
    end = event_time.from_micros(F.col(session.END), kind).alias("end")
    ends: Fields = ((session.START, pa.int64()), (session.END, pa.int64()))
    return Windowing(
        lambda k, v, p: SessionAggregate(Layout(k, (*ends, *v), has_sub=True, policy=Policy.KEEP), p, spec.gap_us),
        sub=event_time.micros(F.col(TIME), kind),
        extra=() if spec.until is None else (event_time.micros(F.col(UNTIL), kind).alias(session.END),),
        fields=(session.START, session.END),
        shown=F.struct(start, end),
        shown_state=(F.struct(start, end), "part_of_session"),
        time_type=kind,
        sub_names={MAIN: "due"},
        text="sessions with the gaps of their rows" if spec.gap_us is None else f"sessions with gaps of at most {duration(spec.gap_us)}",
        modes=(OutputMode.APPEND, OutputMode.COMPLETE) if timed else (OutputMode.COMPLETE,),
        combines=False,
        timed=timed,
        refusals={OutputMode.UPDATE: _MERGING},
    )


def _counted(node: AggregateNode, spec: CountSpec, staged: DataFrame) -> Windowing:
    times = [f for f in node.source.schema.fields if plans.watermark_delay_ms(node.source, f.name) is not None]
    if not times and not spec.by_arrival:
        raise QueryError(
            "rows are counted in the order of their event time, so that windows do not depend on how rows arrive",
            where=node.where,
            wanted="a stream with a watermark",
            found="none",
            hint="call withWatermark(column, delay) before groupBy, or count_window(..., order='arrival')",
        )
    kind = times[0].dataType if times else T.TimestampType()
    time = event_time.micros(F.col(expressions.quoted(times[0].name)), kind) if times else F.lit(0).cast("long")
    tie = F.xxhash64(*[F.col(expressions.quoted(f.name)) for f in node.source.schema.fields if _hashable(f.dataType)])
    start = event_time.from_micros(F.col(counted.START), kind).alias("start")
    # Windows are half-open, so this one ends a microsecond after its last row.
    end = event_time.from_micros(F.col(counted.END) + F.lit(1), kind).alias("end")
    # F.window_time reads the second field as the window's end.
    bounds = () if spec.by_arrival else (start, end)
    order = "arrival" if spec.by_arrival else "event time"
    return Windowing(
        lambda k, v, p: CountAggregate(k, v, p, spec.size, spec.advance, spec.by_arrival),
        sub=F.coalesce(time, F.lit(NEVER).cast("long")),
        extra=(tie.alias(counted.TIE),),
        fields=(counted.INDEX, counted.START, counted.END),
        shown=F.struct(*bounds, F.col(counted.INDEX).alias("number")),
        time_type=kind,
        sub_names={counted.WAITING: "time"},
        text=f"{spec.size} rows every {spec.advance} rows, by {order}",
        modes=(OutputMode.APPEND, OutputMode.UPDATE),
        combines=False,
        timed=not spec.by_arrival,
        refusals={OutputMode.COMPLETE: _FORGOTTEN},
    )


def _hashable(kind: T.DataType) -> bool:
    return "map<" not in kind.simpleString() and "variant" not in kind.simpleString()


__all__ = ["NEVER", "SUB", "TIME", "UNTIL", "Key", "Windowing", "windowing"]
