"""The kernel of the worked example in CONTRIBUTING.md: the greatest values of each key."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import MAIN, Applied, Moment, OneStore, Views
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, Layout
from headrace.state.segments import sort_into_segments

VALUE, GREATEST = "v", "p0"


@dataclass(frozen=True)
class Greatest(OneStore):
    """Keeps the `count` greatest values of each key, the greatest first. Emits the list of a key when a batch brought rows of it."""

    keys: tuple[tuple[str, pa.DataType], ...]
    value: pa.DataType
    count: int

    @property
    def store(self) -> Store:
        # One row per key, which a newer one replaces. It lives for ever: those are the defaults.
        return Store(Layout(self.keys, ((GREATEST, pa.list_(self.value)),)))

    @property
    def input_schema(self) -> pa.Schema:
        return pa.schema([(HASH, pa.uint64()), *self.keys, (VALUE, self.value)])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([*self.keys, (GREATEST, pa.list_(self.value))])

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows, emits_changed=True)
        if not rows.num_rows:
            return result
        layout = self.store.layout
        ordered, starts = sort_into_segments(rows, layout)
        keys = ordered.select([HASH, *layout.key_names]).take(pa.array(starts))
        known, old = lookup.newest(views[MAIN].runs(), keys, layout)
        lists = old.column(GREATEST)
        values = pa.concat_arrays([ordered.column(VALUE), lists.flatten()])
        new_keys = np.repeat(np.arange(len(starts)), np.diff([*starts, rows.num_rows]))
        key = np.concatenate([new_keys, np.repeat(known, np.asarray(lists.value_lengths()))])
        greatest = self._lists(key, values, len(starts))
        result.changed[MAIN] = pa.RecordBatch.from_arrays([*keys.columns, greatest], schema=layout.schema)
        result.keys, result.keys_new = len(starts), len(starts) - len(known)
        return result

    def _lists(self, key: np.ndarray, values: pa.Array, keys: int) -> pa.Array:
        """For each key the list of its greatest values. `key` says which key each value belongs to; every key has a value."""
        order = pa.table({"key": key, "value": values}).sort_by([("key", "ascending"), ("value", "descending")])
        sorted_keys = np.asarray(order["key"])
        rank = np.arange(len(sorted_keys)) - np.searchsorted(sorted_keys, sorted_keys)
        kept = order.filter(pa.array(rank < self.count))
        ends = np.searchsorted(np.asarray(kept["key"]), np.arange(keys + 1))
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), kept["value"].combine_chunks())
