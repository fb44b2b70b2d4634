"""The state of some keys of an instance while a processor works on it.

Stores are read when somebody asks for them, for all the keys at once; what is changed stays in memory until the call is over, and
becomes one sorted batch per store then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, View, Views
from headrace.operators.key_index import KeyIndex
from headrace.operators.processor import TIMERS, Clock, Shape
from headrace.operators.timers import Pairs, Timers
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import DELETED, HASH, Indices, Layout, hashes, subs
from headrace.state.merge import merge_rows
from headrace.state.run import RunRef
from headrace.state.segments import sort_into_segments

WRITTEN = "written"
"""Value column of states that expire: when the row was written, in microseconds."""


@dataclass(frozen=True)
class Part:
    """A store of a processor: its values, one of its maps, or its timers. The newest row of a key is the state."""

    layout: Layout
    falls_due: bool = False
    """The sub-key is a moment of event time, and the row is done with when the watermark has passed it."""
    ttl_us: int | None = None
    ttl_by: Clock = Clock.PROCESSING

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        raise AssertionError("the newest row of a key replaces the others")

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        return self.falls_due and ref.sub_min is not None and ref.sub_min <= until_ms * 1000 and (ref.sub_max or 0) > after_ms * 1000

    def live_from(self, watermark_ms: int) -> int | None:
        return watermark_ms * 1000 + 1 if self.falls_due else None

    def unexpired(self, rows: pa.RecordBatch, watermark_ms: int, now_ms: int) -> pa.RecordBatch:
        """Without rows that were written too long ago. Older rows of a key are older, so nothing comes to light when one goes."""
        if self.ttl_us is None or not rows.num_rows:
            return rows
        clock_us = (now_ms if self.ttl_by is Clock.PROCESSING else watermark_ms) * 1000
        alive = rows.column(WRITTEN).to_numpy() > clock_us - self.ttl_us
        return rows if bool(alive.all()) else rows.filter(pa.array(alive))


class Cells:
    """Rows of a store in memory: found by key, read, written, removed; what was changed is known."""

    def __init__(self, keys: list[pa.Array], values: list[pa.Array], there: Mask) -> None:
        self.keys = keys
        self.values = values
        self.there = there
        self.stored = there.copy()
        self.changed = np.zeros(len(there), dtype=np.bool_)
        self._index: KeyIndex | None = None

    def find(self, keys: list[pa.Array]) -> Indices:
        if self._index is None:
            self._index = KeyIndex(self.keys)
        return self._index.find(keys)

    def known(self, at: Indices) -> Mask:
        return (at >= 0) & self.there[at] if len(self.there) else np.zeros(len(at), dtype=np.bool_)

    def read(self, at: Indices) -> list[pa.Array]:
        """The values at these places, null where nothing is."""
        if self.covers(at) and self.there.all():
            return self.values
        index = pa.array(at, mask=~self.known(at))
        return [column.take(index) for column in self.values]

    def covers(self, at: Indices) -> bool:
        """Whether these are all places, in order."""
        return len(at) == len(self.there) and bool((at == np.arange(len(at))).all())

    def write(self, at: Indices, values: list[pa.Array]) -> None:
        """New values at distinct places."""
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
        """New values under distinct keys, which need not be there yet."""
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
        at = at[at >= 0]
        self.there[at] = False
        self.changed[at] = True

    def to_write(self) -> Indices:
        """Changed rows that are there, or were stored and must be deleted."""
        return np.flatnonzero(self.changed & (self.there | self.stored))


@dataclass(frozen=True)
class Clocks:
    """Where a call stands in time, in microseconds."""

    watermark_us: int
    now_us: int
    after_us: int
    """Timers of event time up to here have fired in calls before."""
    until_us: int
    """Timers up to here are due."""


class InstanceState:
    """What a processor's calls on one instance read and change."""

    def __init__(
        self,
        shape: Shape,
        parts: dict[str, Part],
        keys: pa.RecordBatch,
        views: Views,
        clocks: Clocks,
        due: pa.RecordBatch | None = None,
    ) -> None:
        """``keys`` are sorted and distinct; ``due`` are timers of some of them."""
        self.shape = shape
        self.keys = keys
        self.watermark_us = clocks.watermark_us
        self.now_us = clocks.now_us
        self.seen_us: Indices | None = None
        """The event time at which each key was last seen, where that matters."""
        self._clocks = clocks
        self._parts = parts
        self._views = views
        self._main: Cells | None = None
        self._maps: dict[str, Cells] = {}
        none = np.zeros(0, dtype=np.int64)
        pairs = (none, none) if due is None else (self._owners(due), subs(due))
        self.timers = Timers(pairs, clocks.until_us, keys.num_rows, self._stored_timers, shape)

    @cached_property
    def key_columns(self) -> list[pa.Array]:
        return [self.keys.column(name) for name in self._parts[MAIN].layout.key_names]

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.key_columns)

    def find(self, keys: list[pa.Array]) -> Indices:
        """The numbers of these keys; -1 for those that the call is not about."""
        # Mostly they are asked for as they came.
        if all(mine.equals(theirs) for mine, theirs in zip(self.key_columns, keys, strict=True)):
            return np.arange(self.keys.num_rows)
        return self._index.find(keys)

    @property
    def main(self) -> Cells:
        if self._main is None:
            layout, names = self._parts[MAIN].layout, [f"p{i}" for i in range(len(self.shape.values))]
            place, rows = lookup.newest_places(self._views[MAIN].runs(), self.keys, layout)
            stored = place >= 0
            if self.shape.ttl_us is not None and rows.num_rows:
                place[stored & (rows.column(WRITTEN).to_numpy()[place] <= self._expired_us)] = -1
            index = pa.array(place, mask=place < 0)
            self._main = Cells([], [rows.column(name).take(index) for name in names], place >= 0)
            # A row that has expired may still lie in a run, so a deletion has to be written.
            self._main.stored = stored
        return self._main

    def map(self, name: str) -> Cells:
        if name not in self._maps:
            part, view = self._parts[name], self._views[name]
            rows = self._rows_of_keys(view, part.layout)
            rows = part.unexpired(rows, self.watermark_us // 1000, self.now_us // 1000)
            owners = self._owners(rows)
            mine = pa.array(np.flatnonzero(owners >= 0))
            rows, owners = rows.take(mine), owners[owners >= 0]
            shape = next(m for m in self.shape.maps if m.name == name)
            keys = [pa.array(owners), *(rows.column(f"m{i}") for i in range(len(shape.keys)))]
            self._maps[name] = Cells(keys, [rows.column(f"p{i}") for i in range(len(shape.values))], np.ones(len(owners), dtype=np.bool_))
        return self._maps[name]

    def changed(self) -> dict[str, pa.RecordBatch]:
        """Per store the sorted rows for a new run."""
        found = {}
        if self._main is not None and len(at := self._main.to_write()):
            found[MAIN] = self._rows(self._parts[MAIN], at, [], self._main, at)
        for name, cells in self._maps.items():
            if len(at := cells.to_write()):
                owners = cells.keys[0].take(pa.array(at)).to_numpy()
                keys = [column.take(pa.array(at)) for column in cells.keys[1:]]
                rows = self._rows(self._parts[name], owners, keys, cells, at)
                found[name], _ = sort_into_segments(rows, self._parts[name].layout)
        if TIMERS in self._parts and (timers := self._changed_timers()) is not None:
            found[TIMERS] = timers
        return found

    def _rows(self, part: Part, owners: Indices, more_keys: list[pa.Array], cells: Cells, at: Indices) -> pa.RecordBatch:
        keys = [self.keys.column(HASH), *self.key_columns]
        if cells is not self._main or not cells.covers(at):
            keys = [column.take(pa.array(owners)) for column in keys]
        values = list(cells.read(at))
        if part.ttl_us is not None:
            values.append(pa.array(self._stamp(owners)))
        rows = pa.RecordBatch.from_arrays([*keys, *more_keys, *values], schema=part.layout.schema)
        gone = ~cells.there[at]
        return rows.append_column(DELETED, pa.array(gone)) if gone.any() else rows

    def _changed_timers(self) -> pa.RecordBatch | None:
        owners, at_us, alive = self.timers.changed()
        if self.shape.timers is Clock.EVENT:
            # What has fallen due is gone anyway.
            open_ = at_us > self._clocks.until_us
            owners, at_us, alive = owners[open_], at_us[open_], alive[open_]
        if not len(owners):
            return None
        layout = self._parts[TIMERS].layout
        keys = [column.take(pa.array(owners)) for column in (self.keys.column(HASH), *self.key_columns)]
        rows = pa.RecordBatch.from_arrays([*keys, pa.array(at_us)], schema=layout.schema)
        if not alive.all():
            rows = rows.append_column(DELETED, pa.array(~alive))
        return sort_into_segments(rows, layout)[0]

    def _stored_timers(self) -> Pairs:
        rows = self._rows_of_keys(self._views[TIMERS], self._parts[TIMERS].layout)
        owners, at_us = self._owners(rows), subs(rows)
        mine = owners >= 0
        if self.shape.timers is Clock.EVENT:
            mine &= at_us > self._clocks.after_us
        return owners[mine], at_us[mine]

    def _rows_of_keys(self, view: View, layout: Layout) -> pa.RecordBatch:
        """The store's merged rows whose hash is that of a key."""
        wanted = np.unique(hashes(self.keys))
        return merge_rows([lookup.rows_of_hashes(run.rows, wanted) for run in view.runs()], layout, _no_combine)

    def _owners(self, rows: pa.RecordBatch) -> Indices:
        """Which key each row belongs to; -1 for keys that only share a hash."""
        return self.find([rows.column(name) for name in self._parts[MAIN].layout.key_names])

    @property
    def _clock_us(self) -> int:
        return self.now_us if self.shape.ttl_by is Clock.PROCESSING else self.watermark_us

    @property
    def _expired_us(self) -> int:
        return self._clock_us - (self.shape.ttl_us or 0)

    def _stamp(self, owners: Indices) -> Indices:
        """When what is now written was written: in event time, when its key was last seen."""
        stamps = np.full(len(owners), self._clock_us, dtype=np.int64)
        if self.shape.ttl_by is Clock.EVENT and self.seen_us is not None:
            stamps = np.maximum(stamps, self.seen_us[owners])
        return stamps


def due_rows(view: View, layout: Layout, after_us: int | None, until_us: int) -> pa.RecordBatch:
    """Timers in (after, until], merged."""
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
    return merge_rows(parts, layout, _no_combine)


def distinct_keys(parts: list[pa.RecordBatch], layout: Layout) -> pa.RecordBatch:
    """The keys of several batches of hashes and keys, sorted."""
    bare = Layout(layout.keys, ())
    ordered, starts = sort_into_segments(pa.concat_batches([part.cast(bare.schema) for part in parts]), bare)
    return ordered.take(pa.array(starts))


def _no_combine(columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
    raise AssertionError("the newest row of a key replaces the others")
