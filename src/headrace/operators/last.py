"""Tuple-count joins: a row is paired with the last rows of the other side, in the order of event time.

Rows wait until the watermark has passed them, since only then their order is known. It is (time, left before right, a hash of the row),
so it does not depend on how rows arrived. A row that falls due is paired with the last ``size`` rows of its key on the other side that come
before it. The stores are:

    waiting     rows that the watermark has not passed
    left/right  the last ``size`` rows of each key, in a ring: row n has the sub-key n modulo ``size`` and replaces the row before it there
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import Applied, Moment, Operator, OutputMode, Refs, View, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.matching import CHUNK_PAIRS, bisect, expand
from headrace.operators.pairing import LEFT, NAMES, RIGHT, Pairing, Piece, in_time
from headrace.operators.store import Store
from headrace.state import lookup
from headrace.state.layout import HASH, SUB, Indices, Layout, Policy, subs
from headrace.state.segments import key_starts, segment_order, sort_into_segments

TIE = "tie"
"""Input column: a hash of the row, by which rows of one moment are ordered."""
WAITING = "waiting"
"""The store of rows that the watermark has not passed."""
NUMBER, TIME = "n", "t"
"""Value columns of the rings: the number of the row among those of its key, and its event time."""


@dataclass(frozen=True)
class _Table:
    """One side's rows for the keys that are due, in the order of key and time: stored rows and new rows together."""

    rows: pa.RecordBatch
    """In the columns of the input."""
    key: Indices
    """The number of each row's key."""
    is_new: Indices
    """True for the rows that fall due now."""
    number: Indices
    """The number of each row among those of its key."""


@dataclass(frozen=True)
class LastJoin(Operator):
    """``join(..., last=size)``."""

    pairing: Pairing
    size: int

    @property
    def store_names(self) -> tuple[str, str]:
        return ("rows", "rows") if self.pairing.one_input else (NAMES[LEFT], NAMES[RIGHT])

    @cached_property
    def rings(self) -> tuple[Store, Store]:
        """The stores of the last rows of the left and of the right side."""
        fixed = ((NUMBER, pa.int64()), (TIME, pa.int64()))
        left, right = (Store(Layout(each.keys, (*fixed, *each.values), has_sub=True)) for each in self.pairing.layouts)
        return left, right

    @cached_property
    def waiting(self) -> Store:
        """The store of rows that the watermark has not passed."""
        schema = self.input_schema
        values = tuple((f.name, f.type) for f in schema if f.name not in (HASH, SUB, *self.pairing.layouts[LEFT].key_names))
        layout = Layout(self.pairing.layouts[LEFT].keys, values, has_sub=True, policy=Policy.KEEP)
        return Store(layout, lifetime=UntilWatermark(due_us=0))

    @property
    def stores(self) -> dict[str, Store]:
        return {**dict(zip(self.store_names, self.rings, strict=True)), WAITING: self.waiting}

    @property
    def input_schema(self) -> pa.Schema:
        return self.pairing.input_schema.append(pa.field(TIE, pa.int64()))

    @property
    def output_schema(self) -> pa.Schema:
        return self.pairing.output_schema

    def emits_at_once(self, mode: OutputMode) -> bool:
        return False

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        rows = in_time(rows, moment.watermark_us)
        result.rows_late = result.rows - rows.num_rows
        if rows.num_rows:
            layout = self.waiting.layout
            result.changed[WAITING], starts = sort_into_segments(rows.select(layout.schema.names), layout)
            result.keys = len(starts)
        return result

    def close_rows_max(self, due: Refs, moment: Moment, until_ms: int) -> int:
        """A row has at most `size` partners."""
        return sum(ref.rows for ref in due.get(WAITING, ())) * self.size

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        result = Applied()
        due = self._due(views[WAITING], moment.watermark_us, until_ms * 1000)
        if due is None:
            return result
        left, right = self._tables(due, views)
        for side, (table, other) in enumerate(((left, right), (right, left))):
            result.emitted.extend(self.pairing.pairs(self._pairs(table, other, side)))
            name = self.store_names[side]
            if name not in result.changed and (changed := self._newest(table, side)) is not None:
                result.changed[name] = changed
        return result

    def _due(self, view: View, after_us: int, until_us: int) -> pa.RecordBatch | None:
        """The rows that fall due, sorted by their hash."""
        parts = []
        for run in view.runs(after_us + 1):
            time = subs(run.rows)
            turn = (time > after_us) & (time <= until_us)
            if turn.any():
                parts.append(run.rows.filter(pa.array(turn)).replace_schema_metadata(None))
        if not parts:
            return None
        rows = pa.concat_batches(parts)
        return rows.take(pa.array(np.argsort(rows.column(TIE).to_numpy(), kind="stable")))

    def _tables(self, due: pa.RecordBatch, views: Views) -> tuple[_Table, _Table]:
        """The tables of both sides, with the same numbers for the same keys."""
        new = self.pairing.split(due)
        sides = (LEFT,) if self.pairing.one_input else (LEFT, RIGHT)
        kept = [self._kept(views[self.store_names[side]], due, side) for side in sides]
        parts = [part for side in sides for part in (kept[side][0], new[side])]
        fixed = [HASH, *self.pairing.layouts[LEFT].key_names, SUB]
        layout = Layout(self.pairing.layouts[LEFT].keys, (), has_sub=True)
        together = pa.concat_batches([part.select(fixed) for part in parts])
        order, _ = segment_order(together, layout)
        firsts = key_starts(together.take(pa.array(order)), layout)
        key = np.repeat(np.arange(len(firsts)), np.diff(np.append(firsts, len(order))))
        tables = []
        begin = 0
        for side in sides:
            end = begin + kept[side][0].num_rows + new[side].num_rows
            mine = (order >= begin) & (order < end)
            places = order[mine] - begin
            rows = pa.concat_batches([kept[side][0], new[side]]).take(pa.array(places))
            numbers = np.concatenate([kept[side][1], np.zeros(new[side].num_rows, dtype=np.int64)])[places]
            is_new = places >= kept[side][0].num_rows
            tables.append(_numbered(rows, key[mine], is_new, numbers))
            begin = end
        return tables[0], tables[-1]

    def _kept(self, view: View, due: pa.RecordBatch, side: int) -> tuple[pa.RecordBatch, Indices]:
        """The stored rows of the keys that are due, in the order of their numbers, and these numbers."""
        layout = self.pairing.layouts[side]
        found = lookup.all_rows(view.runs(), due)
        if found is None:
            return layout.empty(), np.zeros(0, dtype=np.int64)
        # The newest run comes first, so the first row of a place in the ring is the current one.
        order, starts = segment_order(found, self.rings[side].layout, presorted=True)
        found = found.take(pa.array(order[starts]))
        found = found.take(pa.array(np.argsort(found.column(NUMBER).to_numpy(), kind="stable")))
        columns = [found.column(TIME if name == SUB else name) for name in layout.schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=layout.schema), np.asarray(found.column(NUMBER).to_numpy())

    def _pairs(self, table: _Table, other: _Table, side: int) -> Iterator[Piece]:
        """Pairs of a new row of this side and one of the last rows of the other side that come before it."""
        needles = np.flatnonzero(table.is_new)
        key = table.key[needles]
        begin, end = np.searchsorted(other.key, key, "left"), np.searchsorted(other.key, key, "right")
        # Of two rows of one moment the left one comes first.
        upto = bisect(subs(other.rows), begin, end, subs(table.rows)[needles] + side)
        for which, partner in expand(np.maximum(begin, upto - self.size), upto, CHUNK_PAIRS):
            at = needles[which]
            yield (table.rows, other.rows, at, partner) if side == LEFT else (other.rows, table.rows, partner, at)

    def _newest(self, table: _Table, side: int) -> pa.RecordBatch | None:
        """The new rows that are among the last of their key, in the columns of the ring; None if there are none."""
        layout = self.rings[side].layout
        behind = np.searchsorted(table.key, table.key, "right") - np.arange(len(table.key))
        chosen = np.flatnonzero(table.is_new & (behind <= self.size))
        if not len(chosen):
            return None
        rows, number = table.rows.take(pa.array(chosen)), table.number[chosen]
        given = {SUB: pa.array(number % self.size), NUMBER: pa.array(number), TIME: rows.column(SUB)}
        columns = [given[name] if name in given else rows.column(name) for name in layout.schema.names]
        return sort_into_segments(pa.RecordBatch.from_arrays(columns, schema=layout.schema), layout)[0]


def _numbered(rows: pa.RecordBatch, key: Indices, is_new: Indices, kept: Indices) -> _Table:
    """A table of rows whose numbers follow from the number of the first row of each key."""
    first = np.searchsorted(key, key, "left")
    return _Table(rows, key, is_new, kept[first] + np.arange(len(key)) - first if len(key) else kept)
