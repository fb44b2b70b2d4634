"""The state of some keys of an instance during a call of a processor.

A store is read when the processor first asks for it, for all keys at once. Changes stay in memory until the call is over; then they become
one sorted batch per store.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, View, Views
from headrace.operators.key_index import KeyIndex
from headrace.operators.lifetime import WRITTEN
from headrace.operators.shape import TIMERS, ProcessorShape, TimerClock
from headrace.operators.store import Store
from headrace.operators.timers import Pairs, Timers
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import DELETED, HASH, Indices, Layout, hashes, subs
from headrace.state.merge import merge_rows
from headrace.state.segments import sort_into_segments


class Cells:
    """Rows of a store in memory, as columns. Rows are addressed by index; changed ones are marked."""

    def __init__(self, keys: list[pa.Array], values: list[pa.Array], there: Mask) -> None:
        self.keys = keys
        self.values = values
        self.there = there
        """True for rows that exist."""
        self.stored = there.copy()
        """True for rows that may exist in a run."""
        self.changed = np.zeros(len(there), dtype=np.bool_)
        self._index: KeyIndex | None = None

    def find(self, keys: list[pa.Array]) -> Indices:
        """The index of each key, or -1."""
        if self._index is None:
            self._index = KeyIndex(self.keys)
        return self._index.find(keys)

    def known(self, at: Indices) -> Mask:
        """True where a row exists."""
        return (at >= 0) & self.there[at] if len(self.there) else np.zeros(len(at), dtype=np.bool_)

    def read(self, at: Indices) -> list[pa.Array]:
        """The values of these rows, null where no row exists."""
        if self.covers(at) and self.there.all():
            return self.values
        index = pa.array(at, mask=~self.known(at))
        return [column.take(index) for column in self.values]

    def covers(self, at: Indices) -> bool:
        """True if these are all rows, in order."""
        return len(at) == len(self.there) and bool((at == np.arange(len(at))).all())

    def write(self, at: Indices, values: list[pa.Array]) -> None:
        """Set the values of distinct rows."""
        rows = len(self.there)
        index = np.arange(rows)
        index[at] = rows + np.arange(len(at))
        if self.covers(at):
            self.values = values
        elif len(at) == rows:
            self.values = [new.take(pa.array(index - rows)) for new in values]
        else:
            self.values = [pa.concat_arrays([old, new]).take(pa.array(index)) for old, new in zip(self.values, values, strict=True)]
        self.there[at] = True
        self.changed[at] = True

    def put(self, keys: list[pa.Array], values: list[pa.Array]) -> None:
        """Set the values of distinct keys, adding rows for new keys."""
        at = self.find(keys)
        known = np.flatnonzero(at >= 0)
        fresh = pa.array(np.flatnonzero(at < 0))
        if len(known):
            self.write(at[known], [column.take(pa.array(known)) for column in values])
        if len(fresh):
            self.keys = [pa.concat_arrays([old, new.take(fresh)]) for old, new in zip(self.keys, keys, strict=True)]
            self.values = [pa.concat_arrays([old, new.take(fresh)]) for old, new in zip(self.values, values, strict=True)]
            yes, no = np.ones(len(fresh), dtype=np.bool_), np.zeros(len(fresh), dtype=np.bool_)
            self.there, self.changed = np.concatenate([self.there, yes]), np.concatenate([self.changed, yes])
            self.stored = np.concatenate([self.stored, no])
            self._index = None

    def remove(self, at: Indices) -> None:
        """Delete rows. -1 is ignored."""
        at = at[at >= 0]
        self.there[at] = False
        self.changed[at] = True

    def to_write(self) -> Indices:
        """The changed rows that exist, or that must be deleted from the store."""
        return np.flatnonzero(self.changed & (self.there | self.stored))


@dataclass(frozen=True)
class Clocks:
    """The times of a call, in microseconds."""

    watermark_us: int
    now_us: int
    after_us: int
    """Event-time timers up to here have fired in earlier calls."""
    until_us: int
    """Timers up to here fire."""


class InstanceState:
    """The values, maps and timers that a call of a processor reads and changes."""

    def __init__(
        self,
        shape: ProcessorShape,
        stores: dict[str, Store],
        keys: pa.RecordBatch,
        views: Views,
        clocks: Clocks,
        due: pa.RecordBatch | None = None,
    ) -> None:
        """`keys` are sorted and distinct; `due` are the timers of some of them that fire."""
        self.shape = shape
        self.keys = keys
        self.watermark_us = clocks.watermark_us
        self.now_us = clocks.now_us
        self.seen_us: Indices | None = None
        """The event time at which each key was last seen. Set if state expires by event time."""
        self._clocks = clocks
        self._stores = stores
        self._views = views
        self._main: Cells | None = None
        self._maps: dict[str, Cells] = {}
        none = np.zeros(0, dtype=np.int64)
        pairs = (none, none) if due is None else (self._owners(due), subs(due))
        self.timers = Timers(pairs, clocks.until_us, keys.num_rows, self._stored_timers, shape)

    @cached_property
    def key_columns(self) -> list[pa.Array]:
        return [self.keys.column(name) for name in self._stores[MAIN].layout.key_names]

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.key_columns)

    def find(self, keys: list[pa.Array]) -> Indices:
        """The numbers of these keys; -1 for keys that do not belong to the call."""
        # Processors mostly ask for all keys in their order.
        if all(mine.equals(theirs) for mine, theirs in zip(self.key_columns, keys, strict=True)):
            return np.arange(self.keys.num_rows)
        return self._index.find(keys)

    @property
    def main(self) -> Cells:
        """The values of all keys."""
        if self._main is None:
            layout, names = self._stores[MAIN].layout, [f"p{i}" for i in range(len(self.shape.values))]
            place, rows = lookup.newest_places(self._views[MAIN].runs(), self.keys, layout)
            stored = place >= 0
            if self.shape.ttl_us is not None and rows.num_rows:
                place[stored & (rows.column(WRITTEN).to_numpy()[place] <= self._expired_us)] = -1
            index = pa.array(place, mask=place < 0)
            self._main = Cells([], [rows.column(name).take(index) for name in names], place >= 0)
            # An expired row may still be in a run, so a deletion has to be written.
            self._main.stored = stored
        return self._main

    def map(self, name: str) -> Cells:
        """The entries of a map of all keys."""
        if name not in self._maps:
            store, view = self._stores[name], self._views[name]
            rows = self._rows_of_keys(view, store.layout)
            rows = store.lifetime.unexpired(rows, self.watermark_us // 1000, self.now_us // 1000)
            owners = self._owners(rows)
            mine = pa.array(np.flatnonzero(owners >= 0))
            rows, owners = rows.take(mine), owners[owners >= 0]
            shape = next(m for m in self.shape.maps if m.name == name)
            keys = [pa.array(owners), *(rows.column(f"m{i}") for i in range(len(shape.keys)))]
            self._maps[name] = Cells(keys, [rows.column(f"p{i}") for i in range(len(shape.values))], np.ones(len(owners), dtype=np.bool_))
        return self._maps[name]

    def changed(self) -> dict[str, pa.RecordBatch]:
        """The changes as sorted rows of new runs, by store."""
        found = {}
        if self._main is not None and len(at := self._main.to_write()):
            found[MAIN] = self._rows(self._stores[MAIN].layout, at, [], self._main, at)
        for name, cells in self._maps.items():
            if len(at := cells.to_write()):
                owners = cells.keys[0].take(pa.array(at)).to_numpy()
                keys = [column.take(pa.array(at)) for column in cells.keys[1:]]
                rows = self._rows(self._stores[name].layout, owners, keys, cells, at)
                found[name], _ = sort_into_segments(rows, self._stores[name].layout)
        if TIMERS in self._stores and (timers := self._changed_timers()) is not None:
            found[TIMERS] = timers
        return found

    def _rows(self, layout: Layout, owners: Indices, more_keys: list[pa.Array], cells: Cells, at: Indices) -> pa.RecordBatch:
        keys = [self.keys.column(HASH), *self.key_columns]
        if cells is not self._main or not cells.covers(at):
            keys = [column.take(pa.array(owners)) for column in keys]
        values = list(cells.read(at))
        if self.shape.ttl_us is not None:
            values.append(pa.array(self._stamp(owners)))
        rows = pa.RecordBatch.from_arrays([*keys, *more_keys, *values], schema=layout.schema)
        gone = ~cells.there[at]
        return rows.append_column(DELETED, pa.array(gone)) if gone.any() else rows

    def _changed_timers(self) -> pa.RecordBatch | None:
        owners, at_us, alive = self.timers.changed()
        if self.shape.timers is TimerClock.EVENT:
            # Timers that have fired expire by themselves.
            open_ = at_us > self._clocks.until_us
            owners, at_us, alive = owners[open_], at_us[open_], alive[open_]
        if not len(owners):
            return None
        layout = self._stores[TIMERS].layout
        keys = [column.take(pa.array(owners)) for column in (self.keys.column(HASH), *self.key_columns)]
        rows = pa.RecordBatch.from_arrays([*keys, pa.array(at_us)], schema=layout.schema)
        if not alive.all():
            rows = rows.append_column(DELETED, pa.array(~alive))
        return sort_into_segments(rows, layout)[0]

    def _stored_timers(self) -> Pairs:
        rows = self._rows_of_keys(self._views[TIMERS], self._stores[TIMERS].layout)
        owners, at_us = self._owners(rows), subs(rows)
        mine = owners >= 0
        if self.shape.timers is TimerClock.EVENT:
            mine &= at_us > self._clocks.after_us
        return owners[mine], at_us[mine]

    def _rows_of_keys(self, view: View, layout: Layout) -> pa.RecordBatch:
        """The merged rows of a store that have the hash of one of the keys."""
        wanted = np.unique(hashes(self.keys))
        return merge_rows([lookup.rows_of_hashes(run.rows, wanted) for run in view.runs()], layout)

    def _owners(self, rows: pa.RecordBatch) -> Indices:
        """The number of each row's key; -1 for keys that only share a hash with one."""
        return self.find([rows.column(name) for name in self._stores[MAIN].layout.key_names])

    @property
    def _clock_us(self) -> int:
        return self.now_us if self.shape.ttl_by is TimerClock.PROCESSING else self.watermark_us

    @property
    def _expired_us(self) -> int:
        return self._clock_us - (self.shape.ttl_us or 0)

    def _stamp(self, owners: Indices) -> Indices:
        """The time of writing for each row: now, or in event time, when its key was last seen."""
        stamps = np.full(len(owners), self._clock_us, dtype=np.int64)
        if self.shape.ttl_by is TimerClock.EVENT and self.seen_us is not None:
            stamps = np.maximum(stamps, self.seen_us[owners])
        return stamps


def due_rows(view: View, layout: Layout, after_us: int | None, until_us: int) -> pa.RecordBatch:
    """The timers in (after, until], merged."""
    parts = []
    for run in view.runs(None if after_us is None else after_us + 1):
        if run.ref.sub_min is not None and run.ref.sub_min > until_us:
            continue
        at_us = subs(run.rows)
        wanted = at_us <= until_us
        if after_us is not None:
            wanted &= at_us > after_us
        if wanted.any():
            parts.append(run.rows.take(pa.array(np.flatnonzero(wanted))))
    return merge_rows(parts, layout)


def distinct_keys(parts: list[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    """The distinct keys of several batches, sorted, with their hashes."""
    bare = Layout(layout.keys, ())
    ordered, starts = sort_into_segments(pa.concat_batches([part.cast(bare.schema) for part in parts]), bare)
    return ordered.take(pa.array(starts))
