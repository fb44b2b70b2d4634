"""``dropDuplicates``: emits the first row of each key and remembers the key."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, OutputMode, Views
from headrace.operators.lifetime import FOREVER, UntilWatermark
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import Indices, Layout, subs
from headrace.state.segments import sort_into_segments

TIME = "t"
"""Input column: the event time in microseconds, if it is not part of the key."""


@dataclass(frozen=True)
class DropDuplicates(OneStore):
    """A row is late once the watermark has passed its event time. Keys that include the event time expire then; others never do."""

    layout: Layout
    payload: pa.Schema
    """The columns of the row itself, in the input and in the output."""
    late_by_column: bool = False
    """True if rows have an event time that is not part of the key."""

    @cached_property
    def store(self) -> Store:
        return Store(self.layout, lifetime=UntilWatermark() if self.layout.has_sub else FOREVER)

    @property
    def input_schema(self) -> pa.Schema:
        time = [pa.field(TIME, pa.int64())] if self.late_by_column else []
        return pa.schema([*self.layout.schema, *self.payload, *time])

    @property
    def output_schema(self) -> pa.Schema:
        return self.payload

    def looks_back_us(self, mode: OutputMode) -> int | None:
        return 0 if self.layout.has_sub else None

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        time = self._time(rows)
        if time is not None and rows.num_rows:
            in_time = time > moment.watermark_us
            result.rows_late = int(len(in_time) - in_time.sum())
            rows = rows if bool(in_time.all()) else rows.filter(pa.array(in_time))
        if rows.num_rows:
            ordered, starts = sort_into_segments(rows, self.layout)
            firsts = ordered.take(pa.array(starts))
            result.keys = firsts.num_rows
            known, _ = lookup.newest(views[MAIN].runs(), firsts.select(self.layout.schema.names), self.layout)
            new = np.ones(firsts.num_rows, dtype=np.bool_)
            new[known] = False
            fresh = firsts.filter(pa.array(new))
            if fresh.num_rows:
                result.changed[MAIN] = fresh.select(self.layout.schema.names)
                result.emitted = [fresh.select(self.payload.names)]
        return result

    def _time(self, rows: pa.RecordBatch) -> Indices | None:
        """The event times of rows, whether they belong to the key or not; None if rows are never late."""
        if self.layout.has_sub:
            return subs(rows)
        return np.asarray(rows.column(TIME).to_numpy(), dtype=np.int64) if self.late_by_column else None
