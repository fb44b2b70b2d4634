"""The node of a user's own operator. Wrong arguments are refused at the user's line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from headrace.errors import QueryError
from headrace.graph.nodes import ProcessNode, Rows, StateSpec
from headrace.operators.per_key import RESERVED
from headrace.operators.processor import AnyProcessor, Processor, defines
from headrace.operators.shape import TIMERS, TimerClock
from headrace.spark.expressions import duration_us
from headrace.spark.gateway import checked, pickled
from headrace.spark.plans import watermark_delay_ms

Columns = str | StructType


@dataclass(frozen=True)
class State:
    """What a processor keeps for each key: values, maps, timers, and how long. For the argument ``state`` of ``process``.

    >>> State("count long, total double", maps={"seen": ("item string", "times long")}, ttl="1 hour").timers is None
    True
    """

    values: Columns | None = None
    """The columns of the values, such as ``"count long, total double"``."""
    maps: Mapping[str, tuple[Columns, Columns]] = field(default_factory=dict)
    """The maps of each key, by name. A pair gives the key columns and the value columns of a map."""
    timers: str | None = None
    """Which clock timers follow; None if there are none. An ``"event"`` timer fires when the watermark passes it. A ``"processing"`` timer
    fires in the first batch that begins after it; while the stream has no rows there are no batches, so it waits."""
    ttl: str | timedelta | None = None
    """The time to live, such as ``"1 hour"``: values are removed this long after they were last written. Map entries expire one by one."""
    ttl_by: str = "processing"
    """Which clock ``ttl`` follows: ``"processing"`` (the machine's clock), or ``"event"`` (the watermark)."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """What values are added to a processor whose state is stored: ``{"visits": 0}``. Keys that have state get the default, so a restart
    with the new processor is accepted (docs/changing-queries.md). A default is a number, a text, or True or False."""


def process_node(
    rows: Rows,
    keys: tuple[Column, ...],
    processor: Any,
    schema: Columns,
    state: Columns | State,
    initial: DataFrame | None,
    order_by: Any,
    where: str,
) -> ProcessNode:
    """Check all arguments of ``process`` and return the node."""
    if not keys:
        raise QueryError(where=where, wanted="at least one key", found="none", hint="for one state of the whole stream, groupBy(F.lit(0))")
    _check_processor(processor, where)
    wanted = state if isinstance(state, State) else State(state)
    spec = _state_spec(rows, wanted, where)
    _check_timers(rows, processor, spec, where)
    output = _columns(schema, f"{where}, schema")
    if not output.fields:
        raise QueryError(where=where, wanted="at least one column to emit", found="an empty schema")
    if initial is not None and (not isinstance(initial, DataFrame) or initial.isStreaming):
        raise QueryError(where=where, wanted="a batch DataFrame of keys and values as initial", found=type(initial).__name__)
    return ProcessNode(rows, keys, processor, output, spec, initial, _order(rows, order_by, where), where)


def _order(rows: Rows, order_by: Any, where: str) -> tuple[str, ...]:
    order = (order_by,) if isinstance(order_by, str) else order_by
    if not isinstance(order, list | tuple) or not all(isinstance(name, str) for name in order):
        raise QueryError(where=f"{where}, orderBy", wanted="a column's name, or a list of names", found=repr(order_by))
    types = {f.name: f.dataType for f in rows.schema.fields}
    for name in order:
        if name not in types:
            raise QueryError(where=f"{where}, orderBy", wanted=f"columns of the stream: {', '.join(types)}", found=repr(name))
        if not isinstance(types[name], _ORDERED):
            wanted = "columns of numbers, dates, timestamps or texts"
            raise QueryError(where=f"{where}, orderBy", wanted=wanted, found=f"{name} {types[name].simpleString()}")
    return tuple(order)


def _check_processor(processor: Any, where: str) -> None:
    forms = "an instance of a class derived from hr.Processor or hr.KeyProcessor"
    if inspect.isclass(processor):
        raise QueryError(where=where, wanted=forms, found=f"the class {processor.__name__} itself", hint=f"write {processor.__name__}()")
    if not isinstance(processor, AnyProcessor):
        raise QueryError(where=where, wanted=forms, found=repr(processor))
    name = type(processor).__name__
    if not defines(processor, "process"):
        raise QueryError(where=where, wanted=f"a method process of {name}", found="none")
    known = _VECTORISED if isinstance(processor, Processor) else _PER_KEY
    for method, arguments in known.items():
        if defines(processor, method):
            _check_signature(name, method, getattr(processor, method), arguments, where)
    other = set(_PER_KEY if isinstance(processor, Processor) else _VECTORISED) - set(known)
    for method in other:
        if callable(getattr(processor, method, None)):
            hint = f"a {'hr.KeyProcessor' if method in _PER_KEY else 'hr.Processor'} has {method}"
            raise QueryError(
                where=where, wanted=f"methods {', '.join(known)} of {name}", found=f"{method}, which is never called", hint=hint
            )
    try:
        pickled(processor)
    except Exception as refused:
        raise QueryError(
            f"{name} cannot be sent to a task",
            where=where,
            found=str(refused).split("\n")[0],
            hint="open connections and the like inside the methods, not in the object",
        ) from None


_ORDERED = (T.IntegralType, T.FloatType, T.DoubleType, T.DateType, T.TimestampType, T.TimestampNTZType, T.StringType)
"""Types of columns that rows can be sorted by."""
_FRACTIONS = (T.FloatType, T.DoubleType)
_DEFAULTS: dict[type, tuple[type[T.DataType], ...]] = {
    bool: (T.BooleanType,),
    int: (T.IntegralType, *_FRACTIONS),
    float: _FRACTIONS,
    str: (T.StringType,),
}
"""By kind of a default value: the types of columns that can have it."""
_VECTORISED = {"process": ("rows", "state"), "on_timers": ("due", "state")}
_PER_KEY = {"process": ("key", "rows", "state"), "on_timer": ("key", "at", "state")}


def _check_signature(name: str, method: str, function: Any, arguments: tuple[str, ...], where: str) -> None:
    try:
        signature = inspect.signature(function)
        signature.bind(*arguments)
    except TypeError:
        raise QueryError(
            where=where,
            wanted=f"{name}.{method}({', '.join(('self', *arguments))})",
            found=f"{method}({', '.join(('self', *map(str, signature.parameters.values())))})",
        ) from None


def _state_spec(rows: Rows, state: State, where: str) -> StateSpec:
    values = StructType([]) if state.values is None else _columns(state.values, f"{where}, state")
    maps = []
    for name, pair in state.maps.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise QueryError(where=f"{where}, map {name!r}", wanted="its key columns and its value columns", found=repr(pair))
        keys, entry = (_columns(part, f"{where}, map {name!r}") for part in pair)
        if not keys.fields:
            raise QueryError(where=f"{where}, map {name!r}", wanted="at least one key column", found="none")
        maps.append((name, keys, entry))
    if not values.fields and not maps and state.timers is None:
        raise QueryError(where=where, wanted="a state with values, maps or timers", found="an empty one")
    names = [*values.names, *(name for name, _, _ in maps)]
    for name in names:
        if names.count(name) > 1 or name in RESERVED or name == TIMERS or name.startswith("_") or not name.isidentifier():
            why = "it is there twice" if names.count(name) > 1 else "the state has a method of that name, or it is no name in Python"
            raise QueryError(why, where=where, wanted="another name for a part of the state", found=repr(name))
    ttl_us = None
    if state.ttl is not None:
        text = f"{state.ttl.total_seconds()} seconds" if isinstance(state.ttl, timedelta) else str(state.ttl)
        ttl_us = duration_us(rows.session, text, f"{where}, ttl")
        if ttl_us <= 0:
            raise QueryError(where=f"{where}, ttl", wanted="a time above 0", found=text)
    timers = None if state.timers is None else _clock(state.timers, f"{where}, timers")
    ttl_by = _clock(state.ttl_by, f"{where}, ttl_by")
    if ttl_us is not None and ttl_by is TimerClock.EVENT and not has_event_time(rows):
        raise _no_watermark(f"{where}, ttl_by='event'")
    return StateSpec(values, tuple(maps), timers, ttl_us, ttl_by, _defaults(values, state.defaults, f"{where}, defaults"))


def _defaults(values: StructType, given: Mapping[str, Any], where: str) -> dict[str, object]:
    for name, value in given.items():
        if name not in values.names:
            raise QueryError(where=where, wanted=f"values of the state: {', '.join(values.names) or 'none'}", found=repr(name))
        wanted = values[name].dataType
        fits = isinstance(value, bool | int | float | str) and isinstance(wanted, _DEFAULTS.get(type(value), ()))
        if not fits:
            raise QueryError(where=f"{where}, {name!r}", wanted=f"a {wanted.simpleString()}", found=repr(value))
    return dict(given)


def _check_timers(rows: Rows, processor: AnyProcessor, spec: StateSpec, where: str) -> None:
    method = "on_timers" if isinstance(processor, Processor) else "on_timer"
    name = type(processor).__name__
    if defines(processor, method) != (spec.timers is not None):
        wanted = (
            f"hr.State(..., timers='event') or 'processing', for {name}.{method}" if spec.timers is None else f"a method {name}.{method}"
        )
        raise QueryError(where=where, wanted=wanted, found="none")
    if spec.timers is TimerClock.EVENT and not has_event_time(rows):
        raise _no_watermark(f"{where}, timers='event'")


def _no_watermark(where: str) -> QueryError:
    return QueryError(where=where, wanted="a stream with an event time", found="none", hint="call withWatermark on the stream first")


def has_event_time(rows: Rows) -> bool:
    """True if a column of these rows has a watermark."""
    return any(watermark_delay_ms(rows.frame, name) is not None for name in rows.columns)


def _clock(name: Any, where: str) -> TimerClock:
    try:
        return TimerClock(name)
    except ValueError:
        raise QueryError(where=where, wanted="'event' or 'processing'", found=repr(name)) from None


def _columns(columns: Any, where: str) -> StructType:
    found: Any
    if isinstance(columns, StructType):
        found = columns
    elif isinstance(columns, str):
        found = checked(where, lambda: StructType.fromDDL(columns)) if columns.strip() else StructType([])
    else:
        raise QueryError(where=where, wanted="columns such as 'count long, total double', or a StructType", found=repr(columns))
    doubled = [name for name in found.names if found.names.count(name) > 1]
    if doubled:
        raise QueryError(where=where, wanted="each column once", found=repr(doubled[0]))
    return StructType(found.fields)
