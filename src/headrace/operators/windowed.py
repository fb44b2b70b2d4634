"""The windowed aggregate: one partial aggregate per key and pane, combined when a window closes.

A batch only appends its own partials and reads no state. So the cost of a row does not depend on how many windows contain it. Partials of
one key and pane that lie in several runs are merged when a window needs them, or by compaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.control.handover import Facts
from headrace.operators.aggregate import source_rows
from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, OutputMode, Refs, View, Views
from headrace.operators.lifetime import UntilWindowsClose
from headrace.operators.partials import Partial
from headrace.operators.store import Store
from headrace.operators.windows import TimeWindow
from headrace.state import lookup
from headrace.state.keys import Mask
from headrace.state.layout import HASH, SUB, Indices, Layout, subs
from headrace.state.merge import merge_rows, reduce_segments
from headrace.state.recreation import Part
from headrace.state.run import Run
from headrace.state.segments import key_starts, sort_into_segments

FEW_WINDOWS = 8
"""Up to this many windows are computed one after another, each with its own pass over the panes."""

WINDOW = "w"
"""Output column: the start of the window, in microseconds."""


@dataclass(frozen=True)
class WindowedAggregate(OneStore):
    """``groupBy(keys, window(...)).agg(...)``."""

    layout: Layout
    partials: tuple[Partial, ...]
    window: TimeWindow
    starts_us: tuple[int | None, int | None] = (None, None)
    """It computes only windows that start within these bounds, both included. Rows before the first bound are ignored."""
    counts_from_us: int | None = None
    """Metrics count rows from this event time on; another instance counts earlier ones."""

    @cached_property
    def store(self) -> Store:
        return Store(self.layout, self.partials, UntilWindowsClose(self.window))

    @property
    def input_schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.layout.keys, (WINDOW, pa.int64()), *self.layout.values])

    def emits_at_once(self, mode: OutputMode) -> bool:
        return mode is not OutputMode.APPEND

    def handover(self, mode: OutputMode) -> Facts:
        if self.window.is_instant or mode is OutputMode.COMPLETE:
            return super().handover(mode)
        return Facts((self.window.size_us, self.window.advance_us, self.window.offset_us), self.emits_at_once(mode))

    def looks_back_us(self, mode: OutputMode) -> int | None:
        return None if mode is OutputMode.COMPLETE else self.window.size_us

    def bounded(self, part: Part) -> WindowedAggregate:
        if part.starts_us == (None, None):
            return self
        return replace(self, starts_us=part.starts_us, counts_from_us=part.counts_from_us)

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        view = views[MAIN]
        result = Applied(rows=self._counted(rows))
        changed = None
        first, _ = self.starts_us
        if first is not None:
            rows = rows.filter(pa.array(subs(rows) >= first))
        drops_late = moment.mode is not OutputMode.COMPLETE
        if drops_late and rows.num_rows:
            in_time = self.window.last_end(subs(rows)) > moment.watermark_us
            kept = rows if bool(in_time.all()) else rows.filter(pa.array(in_time))
            result.rows_late = self._counted(rows) - self._counted(kept)
            rows = kept
        if rows.num_rows:
            ordered, starts = sort_into_segments(rows.select(self.layout.schema.names), self.layout)
            changed = result.changed[MAIN] = reduce_segments(ordered, starts, self.layout, self.store.combine)
            result.keys = changed.num_rows
        if moment.mode is OutputMode.COMPLETE:
            every = view.scan(self.store, newer=changed)
            result.computed = (rows for part in every for rows in self._windows(part, None, None))
        elif moment.mode is OutputMode.UPDATE and changed is not None:
            result.computed = self._touched_windows(changed, view, moment)
        return result

    def _counted(self, rows: pa.RecordBatch) -> int:
        if self.counts_from_us is not None:
            rows = rows.filter(pa.array(subs(rows) >= self.counts_from_us))
        return source_rows(rows)

    def _within(self, starts: Indices) -> Mask:
        """True for the windows that start within `starts_us`."""
        first, last = self.starts_us
        return np.asarray((starts >= (starts if first is None else first)) & (starts <= (starts if last is None else last)), dtype=np.bool_)

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        """A row of state belongs to every window over its pane."""
        if moment.mode is not OutputMode.APPEND:
            return 0
        bounds = (moment.watermark_us, until_ms * 1000)
        return sum(ref.rows * self.window.count_over(ref.sub_min or 0, ref.sub_max or 0, *bounds) for ref in due[MAIN])

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        if moment.mode is not OutputMode.APPEND:
            return Applied()
        return Applied(computed=self._closed(views[MAIN], moment, until_ms))

    def _closed(self, view: View, moment: Moment, until_ms: int) -> Iterator[pa.RecordBatch]:
        live_from, until_us = self.window.live_from(moment.watermark_us), until_ms * 1000
        # Windows of a single pane need no combining. Where each event time is a window, there are too many to list.
        due = None if self.window.one_pane_each else self._due(view.runs(live_from), moment.watermark_us, until_us)
        if due is None or len(due) > FEW_WINDOWS:
            for rows in view.scan(self.store, sub_min=live_from):
                yield from self._windows(rows, moment.watermark_us, until_us)
            return
        for slices in view.slices(live_from):
            for start in due:
                if (whole := self._one_window(slices, int(start))) is not None:
                    yield self._output(whole, np.full(whole.num_rows, start))

    def _due(self, runs: list[Run], after_us: int, until_us: int) -> Indices:
        """Starts of the windows that end in (after, until] and may have rows in these runs."""
        panes = [(run.ref.sub_min or 0, run.ref.sub_max or 0) for run in runs]
        starts = [self.window.starts_between(first, last, after_us, until_us) for first, last in panes]
        every = np.unique(np.concatenate(starts)) if starts else np.zeros(0, dtype=np.int64)
        return every[self._within(every)]

    def _one_window(self, slices: list[pa.RecordBatch], start: int) -> pa.RecordBatch | None:
        """The rows of one window, one per key. Each run's panes are combined by themselves first, so that little is sorted."""
        parts = []
        for rows in slices:
            pane = subs(rows)
            inside = np.flatnonzero((pane >= start) & (pane < start + self.window.size_us))
            if len(inside):
                part = rows if len(inside) == len(pane) else rows.take(pa.array(inside))
                parts.append(self._by_key(part, start))
        return merge_rows(parts, self.layout, self.store.combine) if parts else None

    def _by_key(self, rows: pa.RecordBatch, pane: int) -> pa.RecordBatch:
        """Combine sorted rows to one per key, all with the sub-key `pane`."""
        firsts = key_starts(rows, self.layout)
        names = self.layout.value_names
        values = [rows.column(name) for name in names]
        if len(firsts) < rows.num_rows:
            values = self.store.combine(values, firsts)
            rows = rows.take(pa.array(firsts))
        fixed = [rows.column(HASH), *(rows.column(name) for name in self.layout.key_names), pa.array(np.full(rows.num_rows, pane))]
        return pa.RecordBatch.from_arrays([*fixed, *values], schema=self.layout.schema)

    def _touched_windows(self, changed: pa.RecordBatch, view: View, moment: Moment) -> Iterator[pa.RecordBatch]:
        """The open windows that got a row in this batch, with all their panes, also those of earlier batches."""
        if self.window.one_pane_each and not view.refs:
            yield from self._windows(changed, moment.watermark_us, None)
            return
        earlier = lookup.all_rows(view.runs(sub_min=self.window.live_from(moment.watermark_us)), changed)
        rows = merge_rows([changed] if earlier is None else [changed, earlier], self.layout, self.store.combine)
        touched = _member(rows, changed, self.layout)
        yield from self._windows(rows, moment.watermark_us, None, touched)

    def _windows(
        self, rows: pa.RecordBatch, after_us: int | None, until_us: int | None, touched: Mask | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The windows that end in (after, until], from merged rows in (h, key, pane) order.

        If `touched` is given, only windows with a touched pane.
        """
        pane = subs(rows)
        if self.window.one_pane_each:
            end = pane + self.window.size_us
            wanted = self._within(pane) if touched is None else touched & self._within(pane)
            if after_us is not None:
                wanted &= end > after_us
            if until_us is not None:
                wanted &= end <= until_us
            if wanted.any():
                yield self._output(rows.filter(pa.array(wanted)), pane[wanted])
            return
        starts = self.window.starts_over(pane if touched is None else pane[touched], after_us, until_us)
        starts = starts[self._within(starts)]
        members_of = _by_mask(pane) if len(starts) <= FEW_WINDOWS else _by_search(pane)
        for start in starts:
            members = members_of(int(start), int(start) + self.window.size_us)
            part = rows.take(pa.array(members))
            whole = self._by_key(part, int(start))
            if touched is not None:
                whole = whole.filter(pa.array(np.logical_or.reduceat(touched[members], key_starts(part, self.layout))))
            if whole.num_rows:
                yield self._output(whole, np.full(whole.num_rows, start))

    def _output(self, rows: pa.RecordBatch, starts: Indices) -> pa.RecordBatch:
        columns = [rows.column(name) for name in self.layout.key_names]
        values = [rows.column(name) for name in self.layout.value_names]
        return pa.RecordBatch.from_arrays([*columns, pa.array(starts, pa.int64()), *values], schema=self.output_schema)


def _by_mask(pane: Indices) -> Callable[[int, int], Indices]:
    """Find the rows whose pane starts in [begin, end) by comparing all panes each time. Fastest for few windows."""
    return lambda begin, end: np.flatnonzero((pane >= begin) & (pane < end))


def _by_search(pane: Indices) -> Callable[[int, int], Indices]:
    """Find the rows whose pane starts in [begin, end) by bisection, after sorting the panes once."""
    by_pane = np.argsort(pane, kind="stable")
    panes = pane[by_pane]

    def members(begin: int, end: int) -> Indices:
        first, last = np.searchsorted(panes, (begin, end), "left")
        return np.sort(by_pane[first:last])

    return members


def _member(rows: pa.RecordBatch, part: pa.RecordBatch, layout: Layout) -> Mask:
    """True for the rows whose (key, pane) also occurs in `part`. Both are sorted and have distinct rows; they are sorted together."""
    names = [HASH, *layout.key_names, SUB]
    both = pa.concat_batches([rows.select(names), part.select(names)])
    origin = pa.array(np.concatenate([np.zeros(rows.num_rows, np.int64), np.ones(part.num_rows, np.int64)]))
    marked = Layout(layout.keys, (("origin", pa.int64()),), has_sub=True)
    ordered, starts = sort_into_segments(both.append_column("origin", origin), marked)
    lengths = np.diff(np.append(starts, ordered.num_rows))
    return np.asarray(lengths == 2, dtype=np.bool_)
