"""The state as a `KeyProcessor` sees it, one key at a time: values as attributes, maps as dicts.

Columns are turned into Python lists once for all keys of the call, and back into columns at its end. So a key costs little more than the
user's own code.
"""

from __future__ import annotations

import gc
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from datetime import datetime
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ProcessorError
from headrace.operators.arrow_fit import python_column
from headrace.operators.instance_state import Cells, InstanceState
from headrace.operators.keyed_state import check_timers, datetime_micros, moment
from headrace.operators.processor import KeyProcessor
from headrace.operators.shape import MapShape, ProcessorShape, user_code
from headrace.state.layout import Indices

Values = tuple[Any, ...]


class KeyState:
    """The state of one key, as a ``KeyProcessor`` gets it.

    Its values are attributes, None if not set: ``state.total = 5``. Its maps are attributes that behave like dicts:
    ``state.seen["book"] = 1``. A key whose values are all None has no values.
    """

    __slots__ = ("_calls", "_owner")
    _calls: KeyCalls
    _owner: int

    @property
    def exists(self) -> bool:
        """True if the key has any value."""
        return any(value is not None for value in self._calls.values_of(self))

    @property
    def watermark(self) -> datetime:
        """The watermark of the query, in UTC."""
        return moment(self._calls.state.watermark_us)

    @property
    def now(self) -> datetime:
        """The time at which the batch began, in UTC."""
        return moment(self._calls.state.now_us)

    def delete(self) -> None:
        """Delete the values of the key. Maps and timers stay."""
        for name in self._calls.names:
            setattr(self, name, None)

    def set_timer(self, at: datetime) -> None:
        """Set a timer: ``on_timer`` is called for this key when the time ``at`` has come."""
        self._calls.change_timer(self._owner, at, True)

    def delete_timer(self, at: datetime | None = None) -> None:
        """Delete the timer at the time ``at``; without a time, all timers of this key."""
        for each in self.timers() if at is None else [at]:
            self._calls.change_timer(self._owner, each, False)

    def timers(self) -> list[datetime]:
        """The timers of this key that have not fired, earliest first."""
        check_timers(self._calls.shape)
        return [moment(us) for us in self._calls.state.timers.of_one(self._owner)]


RESERVED = frozenset(name for name in vars(KeyState) if not name.startswith("_"))
"""Names that a value or a map cannot have."""


def state_class(shape: ProcessorShape) -> type[KeyState]:
    """A class with the user's values as slots, so that a misspelt name is an error, and the maps as properties."""
    members: dict[str, Any] = {"__slots__": tuple(shape.values.names)}
    for each in shape.maps:
        members[each.name] = _map_property(each.name)
    return type("KeyState", (KeyState,), members)


def _map_property(name: str) -> property:
    return property(lambda self: self._calls.map_of(name, self._owner))


class KeyCalls:
    """Calls a processor for one key after another, and keeps the changes until `store` writes them back."""

    def __init__(self, processor: KeyProcessor, state: InstanceState) -> None:
        self.processor = processor
        self.state = state
        self.shape = state.shape
        self.names = list(self.shape.values.names)
        self._get = _getter(self.names)
        columns = [as_list(column) for column in state.main.values] if self.names else []
        self._values: list[Values] = list(zip(*columns, strict=True)) if columns else [()] * state.keys.num_rows
        self._changed: dict[int, Values] = {}
        self._maps: dict[str, MapOfKeys] = {}
        self._one = state_class(self.shape)()
        self._one._calls = self
        self._keys = _keys(state)
        # Lists and structs may be changed in place, which no comparison can see. State with a time to live is written to renew it.
        self._always = self.shape.ttl_us is not None or any(pa.types.is_nested(f.type) for f in self.shape.values)

    def process(self, owners: Iterable[int], groups: Iterable[list[Any]]) -> list[Any]:
        """Call the processor for each key with its rows; returns the rows to emit."""
        out: list[Any] = []
        with user_code(self.shape, "process", self._about):
            for owner, rows in zip(owners, groups, strict=True):
                self._call(self.processor.process, owner, rows, out)
        return out

    def on_timer(self, owners: Indices, at_us: Indices) -> list[Any]:
        """Call the processor for each timer; returns the rows to emit."""
        out: list[Any] = []
        with user_code(self.shape, "on_timer", self._about):
            for owner, us in zip(owners.tolist(), at_us.tolist(), strict=True):
                self._call(self.processor.on_timer, owner, moment(us), out)
        return out

    def _call(self, method: Callable[[Any, Any, KeyState], Any], owner: int, about: Any, out: list[Any]) -> None:
        one, before = self._one, self._values[owner]
        one._owner = owner
        for name, value in zip(self.names, before, strict=True):
            setattr(one, name, value)
        result = method(self._keys[owner], about, one)
        if result is not None:
            # A generator runs here, so the state is read afterwards.
            out.extend(result)
        after = self._get(one)
        if self._always or after != before:
            self._values[owner] = self._changed[owner] = after

    def _about(self) -> str:
        return f" (for key {self._keys[self._one._owner]!r})"

    def values_of(self, one: KeyState) -> Values:
        """The current values of the key."""
        return self._get(one)

    def change_timer(self, owner: int, at: datetime, alive: bool) -> None:
        """Set or delete a timer."""
        check_timers(self.shape)
        if not isinstance(at, datetime):
            raise ProcessorError(f"{self.shape.name}: a timer", where=self.shape.where, wanted="a datetime", found=repr(at))
        self.state.timers.change_one(owner, datetime_micros(at), alive)

    def map_of(self, name: str, owner: int) -> MapOfKey:
        """The map of one key."""
        if name not in self._maps:
            shape = next(m for m in self.shape.maps if m.name == name)
            self._maps[name] = MapOfKeys(self.state.map(name), shape)
        return self._maps[name].of(owner)

    def store(self) -> None:
        """Write the changes of all calls into the columns of the state."""
        nothing = (None,) * len(self.names)
        there = [owner for owner, values in self._changed.items() if values != nothing]
        gone = [owner for owner, values in self._changed.items() if values == nothing] if len(there) < len(self._changed) else []
        if self.names and gone:
            self.state.main.remove(np.array(gone))
        if there:
            columns = list(zip(*(self._changed[owner] for owner in there), strict=True))
            fields = list(self.shape.values)
            arrays = [python_column(list(c), f, self.shape, "a value of the state") for c, f in zip(columns, fields, strict=True)]
            self.state.main.write(np.array(there), arrays)
        for each in self._maps.values():
            each.store(self.shape)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector: a batch makes many small objects, none of them in a reference cycle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class MapOfKeys:
    """A map state of all keys of the call, as one dict per key."""

    def __init__(self, cells: Cells, shape: MapShape) -> None:
        self._cells = cells
        self._shape = shape
        self._dicts: dict[int, dict[Any, Any]] = {}
        self.changed: dict[tuple[int, Any], None] = {}
        owners, *columns = [as_list(column) for column in cells.keys]
        keys = single_or_tuples(columns, shape.keys)
        values = single_or_tuples([as_list(column) for column in cells.values], shape.values)
        for owner, key, value in zip(owners, keys, values, strict=True):
            self._dicts.setdefault(owner, {})[key] = value

    def of(self, owner: int) -> MapOfKey:
        """The map of one key."""
        return MapOfKey(self, owner, self._dicts.setdefault(owner, {}))

    def store(self, shape: ProcessorShape) -> None:
        """Write the changed entries into the columns of the state."""
        puts: list[tuple[int, Any]] = []
        removed: list[tuple[int, Any]] = []
        for owner, key in self.changed:
            (puts if key in self._dicts[owner] else removed).append((owner, key))
        what = f"the map {self._shape.name!r}"
        if removed:
            self._cells.remove(self._cells.find(self._key_columns(removed, shape, what)))
        if puts:
            values = _as_columns([self._dicts[owner][key] for owner, key in puts], self._shape.values, shape, what)
            self._cells.put(self._key_columns(puts, shape, what), values)

    def _key_columns(self, entries: list[tuple[int, Any]], shape: ProcessorShape, what: str) -> list[pa.Array]:
        owners = pa.array([owner for owner, _ in entries], pa.int64())
        return [owners, *_as_columns([key for _, key in entries], self._shape.keys, shape, what)]


class MapOfKey(MutableMapping[Any, Any]):
    """A map of one key, as a dict. Keys and values are single values, or tuples if the map has several such columns."""

    __slots__ = ("_all", "_entries", "_owner")

    def __init__(self, all_: MapOfKeys, owner: int, entries: dict[Any, Any]) -> None:
        self._all = all_
        self._owner = owner
        self._entries = entries

    def __getitem__(self, key: Any) -> Any:
        return self._entries[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._entries[key] = value
        self._all.changed[self._owner, key] = None

    def __delitem__(self, key: Any) -> None:
        del self._entries[key]
        self._all.changed[self._owner, key] = None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return repr(self._entries)


def emitted(rows: list[Any], shape: ProcessorShape) -> list[pa.Array]:
    """The rows that a processor emitted, as columns of its output."""
    names = shape.output.names
    tuples = [as_tuple(row, names, shape, "a row to emit") for row in rows]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * len(names)
    fields = list(shape.output)
    return [python_column(list(column), field, shape, "a row to emit") for column, field in zip(columns, fields, strict=True)]


def row_class(name: str, schema: pa.Schema) -> Any:
    """A named tuple class of the columns. Columns whose names Python does not allow can only be read by position."""
    return namedtuple(name, schema.names, rename=True)


def as_list(column: pa.Array) -> list[Any]:
    """A column's values in Python. Goes through numpy where that gives the same values, since it is several times faster."""
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        return list(column.to_numpy(zero_copy_only=False).tolist())
    return list(column.to_pylist())


def single_or_tuples(columns: list[list[Any]], schema: pa.Schema) -> list[Any]:
    """One entry per row: a single value if there is one column, else a named tuple."""
    if len(columns) == 1:
        return columns[0]
    return list(map(row_class("Entry", schema)._make, zip(*columns, strict=True)))


def _as_columns(values: list[Any], schema: pa.Schema, shape: ProcessorShape, what: str) -> list[pa.Array]:
    if len(schema) == 1:
        return [python_column(values, schema.field(0), shape, what)]
    tuples = [as_tuple(value, schema.names, shape, what) for value in values]
    columns = list(zip(*tuples, strict=True)) if tuples else [()] * len(schema)
    return [python_column(list(column), field, shape, what) for column, field in zip(columns, schema, strict=True)]


def as_tuple(row: Any, names: list[str], shape: ProcessorShape, what: str) -> Values:
    """A row that the user gave as a tuple, list or dict, as a tuple in the order of `names`."""
    if isinstance(row, tuple) and len(row) == len(names):
        return row
    if isinstance(row, list) and len(row) == len(names):
        return tuple(row)
    if isinstance(row, dict) and row.keys() == set(names):
        return tuple(row[name] for name in names)
    raise ProcessorError(
        f"{shape.name}: {what}",
        where=shape.where,
        wanted=f"a tuple or a dict of {', '.join(names)}",
        found=repr(row),
        hint="process gives back a list of rows, or yields them" if what == "a row to emit" else "",
    )


def _getter(names: list[str]) -> Callable[[Any], Values]:
    if not names:
        return lambda one: ()
    if len(names) == 1:
        single = attrgetter(names[0])
        return lambda one: (single(one),)
    return attrgetter(*names)


def _keys(state: InstanceState) -> list[Any]:
    """Each key as the user sees it: a value, or a named tuple if there are several key columns."""
    columns = [as_list(column) for column in state.key_columns]
    if len(columns) == 1:
        return columns[0]
    return list(map(row_class("Key", state.shape.keys)._make, zip(*columns, strict=True)))
