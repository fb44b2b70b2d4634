"""The running aggregate: one row of state per key, its newest value wins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, OutputMode, Views
from headrace.operators.partials import Partial, combine, of_no_rows
from headrace.state import lookup
from headrace.state.layout import HASH, Indices, Layout
from headrace.state.run import RunRef
from headrace.state.segments import sort_into_segments

ROWS = "n"
"""How many rows of the source a row stands for, once rows have been combined before the shuffle."""


@dataclass(frozen=True)
class RunningAggregate(OneStore):
    """``groupBy(keys).agg(...)`` without a window."""

    layout: Layout
    partials: tuple[Partial, ...]
    one_group: bool = False
    """No keys: the one group, at hash 0, is there even if no row is."""

    @property
    def input_schema(self) -> pa.Schema:
        return self.layout.schema

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.layout.keys, *self.layout.values])

    def combine(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        return combine(self.partials)(columns, starts)

    def live_from(self, watermark_ms: int) -> int | None:
        return None

    def is_due(self, ref: RunRef, after_ms: int, until_ms: int) -> bool:
        return False

    def emits_at_once(self, mode: OutputMode) -> bool:
        return True

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        view = views[MAIN]
        result = Applied(rows=source_rows(rows), keys_new=0)
        changed = None
        if self.one_group and not rows.num_rows and any(lo == 0 for lo, _ in view.ranges):
            rows = self._no_rows()
        if rows.num_rows:
            ordered, starts = sort_into_segments(rows.select(self.layout.schema.names), self.layout)
            needles = ordered.select([HASH, *self.layout.key_names]).take(pa.array(starts))
            found, old = lookup.newest(view.runs(), needles, self.layout)
            changed = result.changed[MAIN] = self._merged(ordered, starts, needles, found, old)
            result.keys = needles.num_rows
            result.keys_new = needles.num_rows - len(found)
        if moment.mode is OutputMode.UPDATE:
            result.emits_changed = True
        else:
            result.computed = map(self.output, view.scan(self.layout, self.combine, newer=changed))
        return result

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        return Applied()

    def output(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select(self.output_schema.names)

    def _no_rows(self) -> pa.RecordBatch:
        """The one group, as it looks without rows."""
        values = [value for partial in self.partials for value in of_no_rows(partial)]
        columns = [pa.array([value], field.type) for value, field in zip([0, 0, *values], self.layout.schema, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=self.layout.schema)

    def _merged(
        self, ordered: pa.RecordBatch, starts: Indices, needles: pa.RecordBatch, found: Indices, old: pa.RecordBatch
    ) -> pa.RecordBatch:
        """The state after the batch: each key's old row, where there is one, goes in front of its new ones, and each group is merged."""
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
        merged = self.combine(values, starts)
        return pa.RecordBatch.from_arrays([*needles.columns, *merged], schema=self.layout.schema)


def source_rows(rows: pa.RecordBatch) -> int:
    """How many rows of the source these stand for."""
    if ROWS not in rows.schema.names:
        return int(rows.num_rows)
    return int(rows.column(ROWS).to_numpy().sum()) if rows.num_rows else 0
