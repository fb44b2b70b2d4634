"""Tuple-count windows: for every key, windows of ``size`` rows that begin at every ``advance``-th row.

Rows are counted in the order of their event time, and rows of one moment in the order of a hash of their content. So the windows do not
depend on how rows arrived. A row waits in a store of its own until the watermark has passed it; then it is counted. If rows are counted by
arrival, they are counted at once.

The rows of a key that windows still need, at most ``size``, are kept as lists in one row of state.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, Operator, OutputMode, Refs, View, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.partials import Partial, combine
from headrace.operators.sets import list_offsets
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, SUB, Indices, Layout, Policy, subs
from headrace.state.segments import key_starts, sort_into_segments

WAITING = "waiting"
"""The store of rows that the watermark has not passed."""
TIE = "tie"
"""Input column: a hash of the row, by which rows of one moment are ordered."""
INDEX, START, END = "index", "start", "end"
"""Output columns: the number of the window, and the event times of its first and last row."""
SEEN, TIMES = "seen", "times"
"""Value columns of the main store: how many rows the key has had, and the event times of those that are kept."""


@dataclass(frozen=True)
class CountAggregate(Operator):
    """``groupBy(keys, count_window(size, advance)).agg(...)``."""

    keys: tuple[tuple[str, pa.DataType], ...]
    values: tuple[tuple[str, pa.DataType], ...]
    """The columns of the partials."""
    partials: tuple[Partial, ...]
    size: int
    advance: int
    by_arrival: bool = False
    """True if rows are counted as they arrive, False if in the order of event time."""

    @cached_property
    def stores(self) -> dict[str, Store]:
        lists = tuple((name, pa.list_(kind)) for name, kind in self.values)
        fixed = ((SEEN, pa.int64()), (TIMES, pa.list_(pa.int64())))
        stores = {MAIN: Store(Layout(self.keys, (*fixed, *lists)))}
        if not self.by_arrival:
            stores[WAITING] = Store(self._rows, lifetime=UntilWatermark(due_us=0))
        return stores

    @cached_property
    def _rows(self) -> Layout:
        return Layout(self.keys, ((TIE, pa.int64()), *self.values), has_sub=True, policy=Policy.KEEP)

    @property
    def input_schema(self) -> pa.Schema:
        return self._rows.schema

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.keys, (INDEX, pa.int64()), (START, pa.int64()), (END, pa.int64()), *self.values])

    def emits_at_once(self, mode: OutputMode) -> bool:
        return self.by_arrival

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        if not rows.num_rows:
            return result
        if self.by_arrival:
            self._count(rows, views[MAIN], result)
            return result
        in_time = subs(rows) > moment.watermark_us
        result.rows_late = int(len(in_time) - in_time.sum())
        rows = rows if not result.rows_late else rows.filter(pa.array(in_time))
        result.keys = rows.num_rows
        if rows.num_rows:
            result.changed[WAITING] = sort_into_segments(rows.select(self._rows.schema.names), self._rows)[0]
        return result

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        """A row belongs to at most ceil(size / advance) windows, and each window is laid out row by row."""
        return sum(ref.rows for ref in due.get(WAITING, ())) * (1 + -(-self.size // self.advance))

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        result = Applied()
        if self.by_arrival:
            return result
        passed = []
        for slices in views[WAITING].slices(moment.watermark_us + 1):
            for part in slices:
                time = subs(part)
                passed.append(part.filter(pa.array((time > moment.watermark_us) & (time <= until_ms * 1000))))
        rows = [part.replace_schema_metadata(None) for part in passed if part.num_rows]
        if rows:
            self._count(pa.concat_batches(rows), views[MAIN], result)
        return result

    def _count(self, rows: pa.RecordBatch, view: View, result: Applied) -> None:
        """Count rows in their order, and emit the windows that they complete."""
        rows = rows.take(pa.array(np.argsort(rows.column(TIE).to_numpy(), kind="stable")))
        ordered, _ = sort_into_segments(rows, self._rows)
        fixed = ordered.select([HASH, *self._rows.key_names])
        layout = self.stores[MAIN].layout
        firsts = key_starts(fixed, layout)
        needles = fixed.take(pa.array(firsts))
        found, old = lookup.newest(view.runs(), needles, layout)
        seen, columns, begin = self._joined(ordered, firsts, found, old)
        count = np.diff(np.append(begin, len(columns[0])))
        # The row at `begin` of a key is its row number `first`. The key now has `total` rows.
        first, total = seen - self._kept(seen), seen + np.diff(np.append(firsts, ordered.num_rows))
        next_window, done = _completed(seen, self.size, self.advance), _completed(total, self.size, self.advance)
        emitted = self._windows(needles, columns, begin, first, next_window, done)
        if emitted is not None:
            result.emitted.append(emitted)
        keep_from = np.minimum(np.maximum(done * self.advance, first), total)
        result.changed[MAIN] = self._state(needles, columns, begin + (keep_from - first), begin + count, total)

    def _kept(self, seen: Indices) -> Indices:
        """How many rows of a key are kept after the key has had `seen` rows."""
        return np.asarray(np.maximum(seen - _completed(seen, self.size, self.advance) * self.advance, 0), dtype=np.int64)

    def _joined(
        self, ordered: pa.RecordBatch, firsts: Indices, found: Indices, old: pa.RecordBatch
    ) -> tuple[Indices, list[pa.Array], Indices]:
        """Put the kept rows of each key in front of its new ones.

        Returns how many rows each key had before, the columns of times and partials, and where each key begins in them.
        """
        seen = np.zeros(len(firsts), dtype=np.int64)
        new = [ordered.column(SUB), *(ordered.column(name) for name, _ in self.values)]
        if not len(found):
            return seen, new, firsts
        seen[found] = old.column(SEEN).to_numpy()
        kept = np.zeros(len(firsts), dtype=np.int64)
        kept[found] = old.column(TIMES).value_lengths().to_numpy()
        lengths = np.diff(np.append(firsts, ordered.num_rows))
        begin = np.concatenate([[0], np.cumsum(kept + lengths)[:-1]]).astype(np.int64)
        take = np.empty(int((kept + lengths).sum()), dtype=np.int64)
        at_old = np.repeat(begin, kept) + _within(kept)
        at_new = np.repeat(begin + kept, lengths) + _within(lengths)
        take[at_old] = np.arange(len(at_old))
        take[at_new] = len(at_old) + np.arange(len(at_new))
        lists = [old.column(name) for name in (TIMES, *(name for name, _ in self.values))]
        pairs = zip(lists, new, strict=True)
        return seen, [pa.concat_arrays([was.flatten().cast(now.type), now]).take(pa.array(take)) for was, now in pairs], begin

    def _windows(
        self, needles: pa.RecordBatch, columns: list[pa.Array], begin: Indices, first: Indices, next_window: Indices, done: Indices
    ) -> pa.RecordBatch | None:
        """The windows numbered `next_window` to `done` - 1 of each key."""
        count = np.maximum(done - next_window, 0)
        if not count.any():
            return None
        key = np.repeat(np.arange(len(count)), count)
        index = np.repeat(next_window, count) + _within(count)
        start = begin[key] + index * self.advance - first[key]
        members = np.repeat(start, self.size) + np.tile(np.arange(self.size), len(start))
        values = combine(self.partials)([c.take(pa.array(members)) for c in columns[1:]], np.arange(len(start)) * self.size)
        times = columns[0].to_numpy()
        keys = needles.take(pa.array(key)).select([name for name, _ in self.keys]).columns
        bounds = [pa.array(index), pa.array(times[start]), pa.array(times[start + self.size - 1])]
        return pa.RecordBatch.from_arrays([*keys, *bounds, *values], schema=self.output_schema)

    def _state(self, needles: pa.RecordBatch, columns: list[pa.Array], begin: Indices, end: Indices, total: Indices) -> pa.RecordBatch:
        """Rows of the main store: each key keeps the rows [begin, end) as lists."""
        lengths = end - begin
        take = pa.array(np.repeat(begin, lengths) + _within(lengths))
        offsets = list_offsets(lengths)
        lists = [pa.ListArray.from_arrays(offsets, column.take(take)) for column in columns]
        return pa.RecordBatch.from_arrays([*needles.columns, pa.array(total), *lists], schema=self.stores[MAIN].layout.schema)


def _completed(rows: Indices, size: int, advance: int) -> Indices:
    """How many windows are complete after this many rows.

    >>> _completed(np.array([0, 2, 3, 4, 5, 7]), size=3, advance=2).tolist()
    [0, 0, 1, 1, 2, 3]
    """
    return np.asarray(np.maximum((rows - size) // advance + 1, 0), dtype=np.int64)


def _within(lengths: Indices) -> Indices:
    """The numbers 0 to length - 1 for each length, one after another.

    >>> _within(np.array([2, 0, 3])).tolist()
    [0, 1, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - lengths, lengths)
