"""The kernel of ``process``: a user's own stateful operator.

The processor gets rows key by key. Those of a key are sorted by the columns that the user names, or else by event time, and then by a hash
of the row. So its results do not depend on the order in which the shuffle delivers rows. Its state is one row per key, one row per entry of
a map, and one row per timer; values, each map and timers have a store of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.operators.arrow_fit import fitted
from headrace.operators.instance_state import Clocks, InstanceState, distinct_keys, due_rows
from headrace.operators.kernel import MAIN, Applied, Moment, Operator, View, Views
from headrace.operators.keyed_state import KeyedState
from headrace.operators.lifetime import FOREVER, NEVER, WRITTEN, TimeToLive, UntilWatermark
from headrace.operators.per_key import KeyCalls, as_list, collector_paused, emitted, row_class
from headrace.operators.processor import AnyProcessor, KeyProcessor, Processor
from headrace.operators.shape import TIMERS, ProcessorShape, TimerClock, user_code
from headrace.operators.store import Store
from headrace.state.keys import as_ranks
from headrace.state.layout import HASH, Indices, Layout
from headrace.state.run import RunReader
from headrace.state.segments import hash_order, int_order, segment_order

TIME = "t"
"""Input column: the event time in microseconds."""
ORDER = "o"
"""Input column: a hash of the row, by which rows of one event time are sorted."""


@dataclass(frozen=True)
class Process(Operator):
    """``groupBy(keys).process(...)``."""

    processor: AnyProcessor
    shape: ProcessorShape
    timed: bool
    """True if rows have an event time. They are late once the watermark has passed it."""

    @cached_property
    def stores(self) -> dict[str, Store]:
        return stores_of(self.shape)

    @property
    def layout(self) -> Layout:
        """The layout of the value state."""
        return self.stores[MAIN].layout

    @property
    def input_schema(self) -> pa.Schema:
        payload = [pa.field(f"c{i}", f.type) for i, f in enumerate(self.shape.payload)]
        time = [pa.field(TIME, pa.int64())] if self.timed else []
        return pa.schema([(HASH, pa.uint64()), *self.layout.keys, *payload, *time, (ORDER, pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([(f"c{i}", f.type) for i, f in enumerate(self.shape.output)])

    @property
    def runs_user_code(self) -> bool:
        return True

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        kept = self._in_time(rows, moment)
        now_us, by_clock = moment.now_ms * 1000, self.shape.timers is TimerClock.PROCESSING
        due = due_rows(views[TIMERS], self.stores[TIMERS].layout, None, now_us) if by_clock else None
        clocks = Clocks(moment.watermark_us, now_us, moment.watermark_us, now_us if by_clock else moment.watermark_us)
        return replace(self._run(kept, due, views, clocks), rows=rows.num_rows, rows_late=rows.num_rows - kept.num_rows)

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        if self.shape.timers is not TimerClock.EVENT:
            return Applied()
        clocks = Clocks(until_ms * 1000, moment.now_ms * 1000, moment.watermark_us, until_ms * 1000)
        due = due_rows(views[TIMERS], self.stores[TIMERS].layout, clocks.after_us, clocks.until_us)
        return self._run(self._no_rows(), due, views, clocks)

    def trial(self) -> None:
        """Run a `Processor` on no rows, to check the columns of what it returns."""
        if isinstance(self.processor, Processor):
            nothing = View(RunReader(Path(), self.layout), [], ())
            keys = self._no_rows().select([HASH, *self.layout.key_names])
            state = InstanceState(self.shape, self.stores, keys, dict.fromkeys(self.stores, nothing), Clocks(0, 0, 0, 0))
            self._process_all(self.processor, self.shape.rows.empty_table(), state)
            if self.shape.timers is not None:
                self._on_timers(self.processor, self.shape.due.empty_table(), state)

    def _in_time(self, rows: pa.RecordBatch, moment: Moment) -> pa.RecordBatch:
        if not self.timed or not rows.num_rows:
            return rows
        in_time = rows.column(TIME).to_numpy() > moment.watermark_us
        return rows if bool(in_time.all()) else rows.filter(pa.array(in_time))

    def _no_rows(self) -> pa.RecordBatch:
        schema = self.input_schema
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)

    def _run(self, rows: pa.RecordBatch, due: pa.RecordBatch | None, views: Views, clocks: Clocks) -> Applied:
        """Call the processor for rows and for timers that fire."""
        if not rows.num_rows and (due is None or not due.num_rows):
            return Applied()
        names = [HASH, *self.layout.key_names]
        order, starts = self._order(rows)
        rows = rows.take(pa.array(order))
        keys = firsts = rows.select(names).take(pa.array(starts))
        if due is not None and due.num_rows:
            keys = distinct_keys([firsts, due.select(names)], self.layout)
        state = InstanceState(self.shape, self.stores, keys, views, clocks, due)
        groups = Groups(rows, starts, state.find(firsts.columns[1:]))
        if self.timed and self.shape.ttl_us is not None:
            state.seen_us = self._last_seen(groups, keys.num_rows)
        if isinstance(self.processor, KeyProcessor):
            with collector_paused():
                emitted_ = self._each_key(self.processor, groups, state)
        else:
            emitted_ = self._all_keys(self.processor, rows, state)
        return Applied(changed=state.changed(), emitted=emitted_, keys=keys.num_rows)

    def _last_seen(self, groups: Groups, keys: int) -> Indices:
        """The greatest event time of each key in the batch; 0 for keys without rows or times."""
        seen = np.zeros(keys, dtype=np.int64)
        if len(groups.starts):
            time_us = groups.rows.column(TIME).to_numpy()
            seen[groups.owners] = np.maximum.reduceat(np.where(time_us < NEVER, time_us, 0), groups.starts)
        return seen

    def _all_keys(self, processor: Processor, rows: pa.RecordBatch, state: InstanceState) -> list[pa.RecordBatch]:
        found = [self._process_all(processor, self._table(rows), state)] if rows.num_rows else []
        while self.shape.timers is not None and (due := state.timers.pop_due()) is not None:
            owners, at_us = due
            columns = [column.take(pa.array(owners)) for column in state.key_columns]
            table = pa.Table.from_arrays([*columns, pa.array(at_us).cast(self.shape.due.field("at").type)], schema=self.shape.due)
            found.append(self._on_timers(processor, table, state))
        return found

    def _process_all(self, processor: Processor, rows: pa.Table, state: InstanceState) -> pa.RecordBatch:
        with user_code(self.shape, "process"):
            out = processor.process(rows, KeyedState(state))
        return self._output(fitted(out, self.shape.output, self.shape, "what process gives"))

    def _on_timers(self, processor: Processor, due: pa.Table, state: InstanceState) -> pa.RecordBatch:
        with user_code(self.shape, "on_timers"):
            out = processor.on_timers(due, KeyedState(state))
        if out is None:
            out = self.shape.output.empty_table()
        return self._output(fitted(out, self.shape.output, self.shape, "what on_timers gives"))

    def _each_key(self, processor: KeyProcessor, groups: Groups, state: InstanceState) -> list[pa.RecordBatch]:
        calls = KeyCalls(processor, state)
        columns = [as_list(column.combine_chunks()) for column in self._table(groups.rows).columns]
        tuples = list(map(row_class("Row", self.shape.rows)._make, zip(*columns, strict=True)))
        ends = [*groups.starts.tolist(), len(tuples)]
        owners = groups.owners.tolist()
        out = calls.process(owners, (tuples[begin:end] for begin, end in pairwise(ends)))
        while self.shape.timers is not None and (due := state.timers.pop_due()) is not None:
            out += calls.on_timer(*due)
        calls.store()
        return [self._output(emitted(out, self.shape))] if out else []

    def _output(self, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, schema=self.output_schema)

    def _table(self, rows: pa.RecordBatch) -> pa.Table:
        names = [*self.layout.key_names, *(f"c{i}" for i in range(len(self.shape.payload)))]
        return pa.Table.from_arrays([rows.column(name) for name in names], schema=self.shape.rows)

    def _order(self, rows: pa.RecordBatch) -> tuple[Indices, Indices]:
        """The order of rows, key by key (see the module), and where each key begins in it."""
        order, starts = segment_order(rows, Layout(self.layout.keys, ()))
        sizes = np.diff(starts, append=len(order))
        among_others = np.flatnonzero(np.repeat(sizes > 1, sizes))
        if len(among_others):
            mine = order[among_others]
            within = hash_order(rows.column(ORDER).to_numpy()[mine].view(np.uint64))
            for values in reversed(self._ordering(rows)):
                within = within[int_order(values[mine[within]])]
            key = np.repeat(np.arange(len(sizes)), sizes)[among_others]
            order[among_others] = mine[within[int_order(key[within])]]
        return order, starts

    def _ordering(self, rows: pa.RecordBatch) -> list[Indices]:
        """The columns by which the rows of a key are sorted, as integers."""
        if self.shape.order:
            return [as_ranks(rows.column(f"c{self.shape.payload.get_field_index(name)}")) for name in self.shape.order]
        return [rows.column(TIME).to_numpy()] if self.timed else []


@dataclass(frozen=True)
class Groups:
    """The sorted rows of a batch, one group per key."""

    rows: pa.RecordBatch
    starts: Indices
    """The index of the first row of each group."""
    owners: Indices
    """The number of each group's key in the state."""


def stores_of(shape: ProcessorShape) -> dict[str, Store]:
    """The stores of a processor: its values, each of its maps, and its timers."""
    keys = tuple((f"k{i}", f.type) for i, f in enumerate(shape.keys))
    lifetime = FOREVER if shape.ttl_us is None else TimeToLive(shape.ttl_us, shape.ttl_by)
    written = ((WRITTEN, pa.int64()),) if shape.ttl_us is not None else ()
    stores = {MAIN: Store(Layout(keys, (*_named("p", shape.values), *written)), lifetime=lifetime)}
    for each in shape.maps:
        layout = Layout((*keys, *_named("m", each.keys)), (*_named("p", each.values), *written))
        stores[each.name] = Store(layout, lifetime=lifetime)
    if shape.timers is not None:
        fires = UntilWatermark(due_us=0) if shape.timers is TimerClock.EVENT else FOREVER
        stores[TIMERS] = Store(Layout(keys, (), has_sub=True), lifetime=fires)
    return stores


def _named(letter: str, schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((f"{letter}{i}", f.type) for i, f in enumerate(schema))
