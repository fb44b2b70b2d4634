"""The running aggregate: one row of state per key. A newer row of a key replaces the older ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.errors import require
from headrace.operators.kernel import MAIN, ROWS, Applied, Moment, OneStore, OutputMode, Views
from headrace.operators.partials import Partial
from headrace.operators.settled import KNOWN, is_whole, marked
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, Indices, Layout
from headrace.state.segments import sort_into_segments


@dataclass(frozen=True)
class RunningAggregate(OneStore):
    """``groupBy(keys).agg(...)`` without a window."""

    layout: Layout
    partials: tuple[Partial, ...]
    one_group: bool = False
    """True if there are no keys. The only group, at hash 0, then exists even without rows."""

    @cached_property
    def store(self) -> Store:
        return Store(self.layout, self.partials)

    @property
    def input_schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.layout.keys, *self.layout.values])

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        view = views[MAIN]
        result = Applied(rows=source_rows(rows), keys_new=0)
        changed = None
        if self.one_group and not rows.num_rows and any(lo == 0 for lo, _ in view.ranges):
            rows = self._no_rows()
        if rows.num_rows:
            whole = rows if is_whole(rows) else self.gather(rows, views)
            # Gathered rows have been through Spark, which keeps their order; it is checked all the same.
            ordered, starts = sort_into_segments(whole, self.layout)
            require(len(starts) == ordered.num_rows, "gathered rows are one per key")
            changed = result.changed[MAIN] = ordered.select(self.layout.schema.names)
            result.keys = changed.num_rows
            result.keys_new = changed.num_rows - int(np.count_nonzero(ordered.column(KNOWN).to_numpy(zero_copy_only=False)))
        if moment.mode is OutputMode.UPDATE:
            result.emits_changed = True
        else:
            result.computed = map(self.output, view.scan(self.store, newer=changed))
        return result

    def gather(self, rows: pa.RecordBatch, views: Views) -> pa.RecordBatch:
        """The state of the rows' keys after the batch, as far as the kernel can merge it."""
        ordered, starts = sort_into_segments(rows, self.layout)
        needles = ordered.select([HASH, *self.layout.key_names]).take(pa.array(starts))
        found, old = lookup.newest(views[MAIN].runs(), needles, self.layout)
        merged = self._merged(ordered.select(self.layout.schema.names), starts, needles, found, old)
        known = np.zeros(len(starts), dtype=np.bool_)
        known[found] = True
        lengths = np.diff(np.append(starts, ordered.num_rows))
        sources = np.add.reduceat(ordered.column(ROWS).to_numpy(), starts) if ROWS in ordered.schema.names else lengths
        return marked(merged, pa.array(known), sources, lengths)

    def output(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of state as results."""
        return rows.select(self.output_schema.names)

    def _no_rows(self) -> pa.RecordBatch:
        """The state of the only group before its first row."""
        values = [value for partial in self.partials for value in partial.neutral()]
        columns = [pa.array([value], field.type) for value, field in zip([0, 0, *values], self.layout.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)

    def _merged(
        self, ordered: pa.RecordBatch, starts: Indices, needles: pa.RecordBatch, found: Indices, old: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The state after the batch: one row per key, merged from the key's old row, if it has one, and its new rows."""
        names = self.layout.value_names
        values = [ordered.column(name) for name in names]
        if len(found):
            known = np.zeros(len(starts), dtype=np.int64)
            known[found] = 1
            shift = np.cumsum(known)
            lengths = np.diff(np.append(starts, ordered.num_rows))
            take = np.empty(ordered.num_rows + len(found), dtype=np.int64)
            take[np.arange(ordered.num_rows) + np.repeat(shift, lengths)] = np.arange(ordered.num_rows)
            starts = starts + shift - known
            take[starts[found]] = ordered.num_rows + np.arange(len(found))
            index = pa.array(take)
            values = [pa.concat_arrays([new, old.column(name)]).take(index) for new, name in zip(values, names, strict=True)]
        merged = self.store.combine(values, starts)
        return pa.RecordBatch.from_arrays([*needles.columns, *merged], schema=self.layout.schema)


def source_rows(rows: pa.RecordBatch) -> int:
    """How many rows of the source these rows stand for."""
    if ROWS not in rows.schema.names:
        return int(rows.num_rows)
    return int(rows.column(ROWS).to_numpy().sum()) if rows.num_rows else 0
