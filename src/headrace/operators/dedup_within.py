"""``dropDuplicatesWithinWatermark``: emits the first row of each key, and remembers the key until the watermark has passed that row's time
by the delay of the watermark. Then the key is new again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.dedup import TIME
from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, Views
from headrace.operators.lifetime import WRITTEN, TimeToLive
from headrace.operators.shape import TimerClock
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, Layout
from headrace.state.segments import sort_into_segments

ORDER = "o"
"""Input column: the place of the row in the batch."""


@dataclass(frozen=True)
class DropDuplicatesWithin(OneStore):
    """A row is late once the watermark has passed its event time. Of the rows of a key in one batch, the first that the source gave counts,
    as in Spark."""

    keys: tuple[tuple[str, pa.DataType], ...]
    payload: pa.Schema
    """The columns of the row itself, in the input and in the output."""
    delay_us: int

    @cached_property
    def store(self) -> Store:
        return Store(Layout(self.keys, ((WRITTEN, pa.int64()),)), lifetime=TimeToLive(self.delay_us, TimerClock.EVENT))

    @property
    def input_schema(self) -> pa.Schema:
        return pa.schema([(HASH, pa.uint64()), *self.keys, *self.payload, (TIME, pa.int64()), (ORDER, pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return self.payload

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        in_time = rows.column(TIME).to_numpy() > moment.watermark_us
        result.rows_late = int(len(in_time) - in_time.sum())
        rows = rows.filter(pa.array(in_time))
        if not rows.num_rows:
            return result
        layout = self.store.layout
        # A shuffle may change the order of rows, and which row is the first decides until when the key is known.
        rows = rows.take(pa.array(np.argsort(rows.column(ORDER).to_numpy(), kind="stable")))
        ordered, starts = sort_into_segments(rows, layout)
        firsts = ordered.take(pa.array(starts))
        result.keys = firsts.num_rows
        known, seen = lookup.newest(views[MAIN].runs(), firsts.select([HASH, *layout.key_names]), layout)
        alive = seen.column(WRITTEN).to_numpy() > moment.watermark_us - self.delay_us
        new = np.ones(firsts.num_rows, dtype=np.bool_)
        new[known[alive]] = False
        fresh = firsts.filter(pa.array(new))
        if fresh.num_rows:
            columns = [fresh.column(name) for name in (HASH, *layout.key_names, TIME)]
            result.changed[MAIN] = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
            result.emitted = [fresh.select(self.payload.names)]
        return result
