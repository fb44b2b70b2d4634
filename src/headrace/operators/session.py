"""Session windows: rows of a key that follow one another within a gap belong to one session.

A batch appends its own small sessions and reads no state. Sessions of one key that touch are one session. This is found out when one of
them falls due: what belongs to a session that is still open is then stored again, under that session's end. So only keys with something
due are read. The columns of a row are:

    sub     when to look at the row again: the end of its session, as known when the row was written
    start   the first moment of this part of a session
    end     its last moment plus the gap; if the gap differs from row to row, the latest of its moments plus their gaps
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, OutputMode, View, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.partials import Partial, combine
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import HASH, SUB, Indices, Layout, hashes, subs
from headrace.state.merge import merge_rows, without_expired
from headrace.state.segments import key_starts, sort_into_segments

START = "start"
END = "end"
DUE = "due"
"""The sub-key of a row of state while rows are sorted by their start."""


@dataclass(frozen=True)
class SessionAggregate(OneStore):
    """``groupBy(keys, session_window(time, gap)).agg(...)``."""

    layout: Layout
    """The values are start, end and the partials. Compaction keeps all rows."""
    partials: tuple[Partial, ...]
    gap_us: int | None
    """The gap of all rows; None if the rows have a column `END`, because the gap differs from row to row."""

    @cached_property
    def store(self) -> Store:
        return Store(self.layout, lifetime=UntilWatermark(due_us=0))

    @property
    def input_schema(self) -> pa.Schema:
        left_out = (START, END) if self.gap_us is not None else (START,)
        return pa.schema([f for f in self.layout.schema if f.name not in left_out])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.layout.keys, *self.layout.values])

    @property
    def partial_names(self) -> list[str]:
        return self.layout.value_names[2:]

    def emits_at_once(self, mode: OutputMode) -> bool:
        return mode is OutputMode.COMPLETE

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        if rows.num_rows and moment.mode is not OutputMode.COMPLETE:
            in_time = self._ends(rows) > moment.watermark_us
            result.rows_late = int(len(in_time) - in_time.sum())
            rows = rows if not result.rows_late else rows.filter(pa.array(in_time))
        changed = None
        if rows.num_rows:
            ordered, _ = sort_into_segments(rows, self._by_time)
            time = subs(ordered)
            values = [ordered.column(name) for name in self.partial_names]
            fixed = ordered.select([HASH, *self.layout.key_names])
            changed = result.changed[MAIN] = self._stored(self._merge(fixed, time, self._ends(ordered), values))
            result.keys = changed.num_rows
        if moment.mode is OutputMode.COMPLETE:
            every = views[MAIN].scan(self.store, newer=changed)
            result.computed = (self._sessions(self._by_start(part)).select(self.output_schema.names) for part in every)
        return result

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        result = Applied()
        if moment.mode is not OutputMode.APPEND:
            return result
        left_over = []
        for rows in self._of_due_keys(views[MAIN], moment, until_ms):
            sessions = self._sessions(rows)
            ended = sessions.column(END).to_numpy() <= until_ms * 1000
            result.emitted.append(sessions.filter(pa.array(ended)).select(self.output_schema.names))
            left_over.append(self._left_over(rows, sessions, until_ms * 1000))
        kept = [part for part in left_over if part.num_rows]
        if kept:
            result.changed[MAIN] = sort_into_segments(pa.concat_batches(kept), self.layout)[0]
        return result

    def _ends(self, rows: pa.RecordBatch) -> Indices:
        """For rows of a batch: until when another row belongs to the same session."""
        ends: Indices = rows.column(END).to_numpy() if self.gap_us is None else subs(rows) + self.gap_us
        return ends

    @property
    def _by_time(self) -> Layout:
        return Layout(self.layout.keys, (), has_sub=True)

    def _of_due_keys(self, view: View, moment: Moment, until_ms: int) -> Iterator[pa.RecordBatch]:
        """All rows of the keys that have a row that is due, in (key, start) order."""
        live_from = moment.watermark_us + 1
        for slices in view.slices(live_from):
            due = [hashes(part)[(subs(part) >= live_from) & (subs(part) <= until_ms * 1000)] for part in slices]
            wanted = np.unique(np.concatenate(due)) if due else np.zeros(0, dtype=np.uint64)
            if len(wanted):
                parts = [without_expired(lookup.rows_of_hashes(part, wanted), live_from) for part in slices]
                yield self._by_start(merge_rows(parts, self.layout))

    def _sessions(self, ordered: pa.RecordBatch) -> pa.RecordBatch:
        """Merge rows in (key, start) order to whole sessions, in the same order."""
        begin, end = (ordered.column(name).to_numpy() for name in (START, END))
        values = [ordered.column(name) for name in self.partial_names]
        return self._merge(ordered.select([HASH, *self.layout.key_names]), begin, end, values)

    def _by_start(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Sort rows of state by (key, start). Their sub-key becomes the column `DUE`."""
        renamed = rows.rename_columns([DUE if name == SUB else name for name in rows.schema.names])
        return sort_into_segments(renamed.append_column(SUB, rows.column(START)), self._by_time)[0]

    def _firsts(self, fixed: pa.RecordBatch, begin: Indices, end: Indices) -> Indices:
        """The index of the first row of each session, among rows in (key, start) order."""
        first = np.zeros(fixed.num_rows, dtype=np.bool_)
        first[key_starts(fixed, self.layout)] = True
        reach = _running_max(end, first)
        # As in Spark: a row exactly at the end of a session still belongs to it.
        first[1:] |= begin[1:] > reach[:-1]
        return np.flatnonzero(first)

    def _merge(self, fixed: pa.RecordBatch, begin: Indices, end: Indices, values: list[pa.Array]) -> pa.RecordBatch:
        """Merge rows in (key, start) order that touch each other."""
        starts = self._firsts(fixed, begin, end)
        merged = combine(self.partials)(values, starts) if len(starts) < fixed.num_rows else values
        whole = [pa.array(begin[starts]), pa.array(np.maximum.reduceat(end, starts))] if len(starts) else [pa.array(begin), pa.array(end)]
        names = [*fixed.schema.names, START, END, *self.partial_names]
        return pa.RecordBatch.from_arrays([*fixed.take(pa.array(starts)).columns, *whole, *merged], names=names)

    def _stored(self, sessions: pa.RecordBatch) -> pa.RecordBatch:
        """Sessions as rows of state. Each falls due when it ends."""
        return sort_into_segments(self._row_of(sessions, sessions.column(END)), self.layout)[0]

    def _row_of(self, rows: pa.RecordBatch, due: pa.Array) -> pa.RecordBatch:
        columns = {name: rows.column(name) for name in rows.schema.names} | {SUB: due}
        return pa.RecordBatch.from_arrays([columns[f.name] for f in self.layout.schema], schema=self.layout.schema)

    def _left_over(self, ordered: pa.RecordBatch, sessions: pa.RecordBatch, until_us: int) -> pa.RecordBatch:
        """The rows that are due but whose session is still open. They fall due again when that session ends."""
        begin, end = (ordered.column(name).to_numpy() for name in (START, END))
        heads = np.zeros(ordered.num_rows, dtype=np.int64)
        heads[self._firsts(ordered.select([HASH, *self.layout.key_names]), begin, end)] = 1
        ends = sessions.column(END).to_numpy()[np.cumsum(heads) - 1]
        again = (ordered.column(DUE).to_numpy() <= until_us) & (ends > until_us)
        return self._row_of(ordered.filter(pa.array(again)), pa.array(ends[again]))


def _running_max(values: Indices, restart: Mask) -> Indices:
    """The greatest value so far, beginning anew at each restart."""
    group = np.cumsum(restart) - 1
    low = int(values.min()) if len(values) else 0
    width = int(values.max()) - low + 1 if len(values) else 1
    if len(values) and (int(group[-1]) + 1) * width < 2**62:
        running: Indices = np.maximum.accumulate(group * width + (values - low)) - group * width + low
        return running
    pieces = np.split(values, np.flatnonzero(restart)[1:])
    return np.concatenate([np.maximum.accumulate(piece) for piece in pieces]) if pieces else values
