"""Session windows: rows of a key that follow one another within a gap belong together.

A batch appends its own small sessions; nothing is read. Sessions of one key that touch are one session, which is found out when one of
them falls due. What then turns out to belong to a session that is still open is kept under that one's end, so that only keys with
something due are ever looked at:

    sub     when to look again (the end of the session, as far as it was known when the row was written)
    start   the first moment of this part, and ``end``, the last one plus the gap
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, OutputMode, View, Views
from headrace.operators.partials import Partial, combine
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import HASH, SUB, Indices, Layout, hashes, subs
from headrace.state.merge import merge_rows, without_expired
from headrace.state.run import RunRef
from headrace.state.segments import key_starts, sort_into_segments

START = "start"
END = "end"
DUE = "due"


@dataclass(frozen=True)
class SessionAggregate(OneStore):
    """``groupBy(keys, session_window(time, gap)).agg(...)``."""

    layout: Layout
    """Values are start, end and the partials; rows are kept, not combined, by compaction."""
    partials: tuple[Partial, ...]
    gap_us: int

    @property
    def input_schema(self) -> pa.Schema:
        return pa.schema([f for f in self.layout.schema if f.name not in (START, END)])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.layout.keys, *self.layout.values])

    @property
    def partial_names(self) -> list[str]:
        return self.layout.value_names[2:]

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        raise AssertionError("rows of sessions are kept as they are")

    def live_from(self, watermark_ms: int) -> int:
        return watermark_ms * 1000 + 1

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        return ref.sub_min is not None and ref.sub_min <= until_ms * 1000

    def emits_at_once(self, mode: OutputMode) -> bool:
        return mode is OutputMode.COMPLETE

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        if rows.num_rows and moment.mode is not OutputMode.COMPLETE:
            in_time = subs(rows) + self.gap_us > moment.watermark_us
            result.rows_late = int(len(in_time) - in_time.sum())
            rows = rows if not result.rows_late else rows.filter(pa.array(in_time))
        changed = None
        if rows.num_rows:
            ordered, _ = sort_into_segments(rows, self._by_time)
            time = subs(ordered)
            values = [ordered.column(name) for name in self.partial_names]
            fixed = ordered.select([HASH, *self.layout.key_names])
            changed = result.changed[MAIN] = self._stored(self._merge(fixed, time, time + self.gap_us, values))
            result.keys = changed.num_rows
        if moment.mode is OutputMode.COMPLETE:
            every = views[MAIN].scan(self.layout, self.combine, newer=changed)
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

    @property
    def _by_time(self) -> Layout:
        return Layout(self.layout.keys, (), has_sub=True)

    def _of_due_keys(self, view: View, moment: Moment, until_ms: int) -> Iterator[pa.RecordBatch]:
        """All rows of the keys of which one has come to its time, in (key, start) order."""
        live_from = self.live_from(moment.watermark_ms)
        for slices in view.slices(live_from):
            due = [hashes(part)[(subs(part) >= live_from) & (subs(part) <= until_ms * 1000)] for part in slices]
            wanted = np.unique(np.concatenate(due)) if due else np.zeros(0, dtype=np.uint64)
            if len(wanted):
                parts = [without_expired(lookup.rows_of_hashes(part, wanted), live_from) for part in slices]
                yield self._by_start(merge_rows(parts, self.layout, self.combine))

    def _sessions(self, ordered: pa.RecordBatch) -> pa.RecordBatch:
        """The whole sessions of rows in (key, start) order, in the same order."""
        begin, end = (ordered.column(name).to_numpy() for name in (START, END))
        values = [ordered.column(name) for name in self.partial_names]
        return self._merge(ordered.select([HASH, *self.layout.key_names]), begin, end, values)

    def _by_start(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """State rows in (key, start) order; their sub-key becomes ``due``."""
        renamed = rows.rename_columns([DUE if name == SUB else name for name in rows.schema.names])
        return sort_into_segments(renamed.append_column(SUB, rows.column(START)), self._by_time)[0]

    def _firsts(self, fixed: pa.RecordBatch, begin: Indices, end: Indices) -> Indices:
        """Where each session begins among rows in (key, start) order."""
        first = np.zeros(fixed.num_rows, dtype=np.bool_)
        first[key_starts(fixed, self.layout)] = True
        reach = _running_max(end, first)
        # As in Spark: a row exactly at the end of a session still belongs to it.
        first[1:] |= begin[1:] > reach[:-1]
        return np.flatnonzero(first)

    def _merge(self, fixed: pa.RecordBatch, begin: Indices, end: Indices, values: list[pa.Array]) -> pa.RecordBatch:
        """Rows in (key, start) order: those that touch become one."""
        starts = self._firsts(fixed, begin, end)
        merged = combine(self.partials)(values, starts) if len(starts) < fixed.num_rows else values
        whole = [pa.array(begin[starts]), pa.array(np.maximum.reduceat(end, starts))] if len(starts) else [pa.array(begin), pa.array(end)]
        names = [*fixed.schema.names, START, END, *self.partial_names]
        return pa.RecordBatch.from_arrays([*fixed.take(pa.array(starts)).columns, *whole, *merged], names=names)

    def _stored(self, sessions: pa.RecordBatch) -> pa.RecordBatch:
        """Sessions as rows of state, each to be looked at when it ends."""
        return sort_into_segments(self._row_of(sessions, sessions.column(END)), self.layout)[0]

    def _row_of(self, rows: pa.RecordBatch, due: pa.Array) -> pa.RecordBatch:
        columns = {name: rows.column(name) for name in rows.schema.names} | {SUB: due}
        return pa.RecordBatch.from_arrays([columns[f.name] for f in self.layout.schema], schema=self.layout.schema)

    def _left_over(self, ordered: pa.RecordBatch, sessions: pa.RecordBatch, until_us: int) -> pa.RecordBatch:
        """Rows whose time has come, but whose session goes on: they are looked at again when that ends."""
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
