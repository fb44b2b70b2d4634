"""The kernel of ``process``: a user's own stateful operator.

Rows come in no order; the processor gets them key by key, those of a key in the order that the user asks for, or else of event time,
and then by a hash of the row, so that what it does does not depend on the shuffle. Its state is one row per key, one per key and entry of
a map, and one per timer, each in a store of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from headrace.operators.arrow_fit import fitted
from headrace.operators.buffer import NEVER
from headrace.operators.instance_state import WRITTEN, Clocks, InstanceState, Part, distinct_keys, due_rows
from headrace.operators.kernel import MAIN, Applied, ClosesRowByRow, Moment, OutputMode, Store, View, Views
from headrace.operators.keyed_state import KeyedState
from headrace.operators.per_key import KeyCalls, as_list, collector_paused, emitted, row_class
from headrace.operators.processor import TIMERS, AnyProcessor, Clock, KeyProcessor, Processor, Shape, user_code
from headrace.state.keys import as_ranks
from headrace.state.layout import HASH, Indices, Layout
from headrace.state.run import RunReader
from headrace.state.segments import hash_order, int_order, segment_order

TIME = "t"
"""Input column: the event time in microseconds."""
ORDER = "o"
"""Input column: a hash of the row, the order of rows of one event time."""


@dataclass(frozen=True)
class Process(ClosesRowByRow):
    """``groupBy(keys).process(...)``."""

    processor: AnyProcessor
    shape: Shape
    timed: bool
    """Rows have an event time, and are late once the watermark has passed it."""
    parts: dict[str, Part] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", parts_of(self.shape))

    @property
    def stores(self) -> dict[str, Store]:
        return dict(self.parts)

    @property
    def layout(self) -> Layout:
        return self.parts[MAIN].layout

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

    def emits_at_once(self, mode: OutputMode) -> bool:
        return True

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        kept = self._in_time(rows, moment)
        now_us, by_clock = moment.now_ms * 1000, self.shape.timers is Clock.PROCESSING
        due = due_rows(views[TIMERS], self.parts[TIMERS].layout, None, now_us) if by_clock else None
        clocks = Clocks(moment.watermark_us, now_us, moment.watermark_us, now_us if by_clock else moment.watermark_us)
        return replace(self._run(kept, due, views, clocks), rows=rows.num_rows, rows_late=rows.num_rows - kept.num_rows)

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        if self.shape.timers is not Clock.EVENT:
            return Applied()
        clocks = Clocks(until_ms * 1000, moment.now_ms * 1000, moment.watermark_us, until_ms * 1000)
        due = due_rows(views[TIMERS], self.parts[TIMERS].layout, clocks.after_us, clocks.until_us)
        return self._run(self._no_rows(), due, views, clocks)

    def trial(self) -> None:
        """Run a vectorised processor on no rows, to see that what it gives has the right columns."""
        if isinstance(self.processor, Processor):
            nothing = View(RunReader(Path(), self.layout), [], ())
            keys = self._no_rows().select([HASH, *self.layout.key_names])
            state = InstanceState(self.shape, self.parts, keys, dict.fromkeys(self.parts, nothing), Clocks(0, 0, 0, 0))
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
        """Call the processor, for rows and for timers that are due."""
        if not rows.num_rows and (due is None or not due.num_rows):
            return Applied()
        names = [HASH, *self.layout.key_names]
        order, starts = self._order(rows)
        rows = rows.take(pa.array(order))
        keys = firsts = rows.select(names).take(pa.array(starts))
        if due is not None and due.num_rows:
            keys = distinct_keys([firsts, due.select(names)], self.layout)
        state = InstanceState(self.shape, self.parts, keys, views, clocks, due)
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
        """Per key its greatest event time in the batch; 0 for keys without rows, or without times."""
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
        """Key by key, the rows of a key by what the user orders them by, or else event time, then by their hash; where each key begins."""
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
        """What a key's rows are ordered by, as whole numbers."""
        if self.shape.order:
            return [as_ranks(rows.column(f"c{self.shape.payload.get_field_index(name)}")) for name in self.shape.order]
        return [rows.column(TIME).to_numpy()] if self.timed else []


@dataclass(frozen=True)
class Groups:
    """A batch's rows key by key, each key's in their order."""

    rows: pa.RecordBatch
    starts: Indices
    owners: Indices
    """The number of each group's key in the state."""


def parts_of(shape: Shape) -> dict[str, Part]:
    """The stores of a processor."""
    keys = tuple((f"k{i}", f.type) for i, f in enumerate(shape.keys))
    written = ((WRITTEN, pa.int64()),) if shape.ttl_us is not None else ()
    parts = {MAIN: Part(Layout(keys, (*_named("p", shape.values), *written)), False, shape.ttl_us, shape.ttl_by)}
    for each in shape.maps:
        parts[each.name] = Part(
            Layout((*keys, *_named("m", each.keys)), (*_named("p", each.values), *written)), False, shape.ttl_us, shape.ttl_by
        )
    if shape.timers is not None:
        parts[TIMERS] = Part(Layout(keys, (), has_sub=True), falls_due=shape.timers is Clock.EVENT)
    return parts


def _named(letter: str, schema: pa.Schema) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((f"{letter}{i}", f.type) for i, f in enumerate(schema))
