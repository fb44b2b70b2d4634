"""``limit(n)`` of a stream: passes on the first rows that come, n in all batches together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, Views
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, Layout

ORDER = "order"
"""Input column: the place of a row among those of its batch."""
KEY, SEEN = "k0", "seen"
"""The key, which is the same in all rows, and how many rows were passed on."""


@dataclass(frozen=True)
class FirstRows(OneStore):
    """All rows go to one instance, which counts those that it has passed on."""

    payload: pa.Schema
    """The columns of a row."""
    limit: int

    @cached_property
    def layout(self) -> Layout:
        """One row of state: how many rows were passed on."""
        return Layout(((KEY, pa.int8()),), ((SEEN, pa.int64()),))

    @cached_property
    def store(self) -> Store:
        return Store(self.layout)

    @property
    def input_schema(self) -> pa.Schema:
        return pa.schema([self.layout.schema.field(HASH), *self.layout.keys, *self.payload, (ORDER, pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return self.payload

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        if not rows.num_rows:
            return result
        needle = rows.select([HASH, KEY]).slice(0, 1)
        _, known = lookup.newest(views[MAIN].runs(), needle, self.layout)
        seen = int(known.column(SEEN)[0].as_py()) if known.num_rows else 0
        taken = min(rows.num_rows, self.limit - seen)
        if taken > 0:
            first = pc.sort_indices(rows.column(ORDER)).slice(0, taken)
            result.emitted = [rows.select(self.payload.names).take(first)]
            count = pa.array([seen + taken], pa.int64())
            result.changed[MAIN] = pa.RecordBatch.from_arrays([*needle.columns, count], schema=self.layout.schema)
            result.keys = 1
        return result
