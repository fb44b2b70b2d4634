"""The kernel that runs a user's ``StatefulProcessor``, or function with a group state, in Spark's order:

    rows of the initial state (once) -> rows of the batch, key by key -> timers or timeouts by the watermark at its start -> close

What falls due when the watermark moves at the end of a batch comes in a second call without rows, as in the empty batch that Spark adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import ProcessorError
from headrace.operators.instance_state import distinct_keys
from headrace.operators.kernel import MAIN, Applied, Moment, Operator, View, Views
from headrace.operators.lifetime import NOTHING_YET
from headrace.operators.per_key import collector_paused
from headrace.operators.shape import user_code
from headrace.operators.store import Store
from headrace.operators.user_state.group_state import GroupStates
from headrace.operators.user_state.handle import CallState, Handle, Phase
from headrace.operators.user_state.shape import Front, Groups, Interface, Output, TimeMode, UserShape
from headrace.operators.user_state.stored import Keys
from headrace.operators.user_state.timers import MS, UserTimers, due_until
from headrace.state.layout import DELETED, HASH, Indices, Layout
from headrace.state.merge import merge_rows
from headrace.state.segments import int_order, key_starts, segment_order
from headrace.state.sequence import BEFORE_ALL

TIME = "t"
"""Input column: the event time in microseconds. Only if late rows are dropped."""
ORDER = "o"
"""Input column: the place of the row in the batch. Rows of a key come in this order."""


@dataclass(frozen=True)
class UserState(Operator):
    """``transformWithState``, ``transformWithStateInPandas`` and ``applyInPandasWithState``."""

    code: Any
    """The user's processor or function."""
    shape: UserShape
    front: Front
    drops_late: bool
    """True if rows at or before the watermark are dropped."""

    @cached_property
    def stores(self) -> dict[str, Store]:
        return self.shape.stores()

    @property
    def input_schema(self) -> pa.Schema:
        payload = [pa.field(f"c{i}", self.shape.rows.field(name).type) for i, name in enumerate(self.shape.payload)]
        time = [pa.field(TIME, pa.int64())] if self.drops_late else []
        return pa.schema([(HASH, pa.uint64()), *self.shape.key_columns, *payload, *time, (ORDER, pa.int64())])

    @property
    def output_schema(self) -> pa.Schema:
        return pa.schema([(f"c{i}", f.type) for i, f in enumerate(self.shape.output)])

    @property
    def runs_user_code(self) -> bool:
        return True

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        kept = rows
        if self.drops_late and rows.num_rows:
            in_time = rows.column(TIME).to_numpy() > moment.watermark_us
            kept = rows if bool(in_time.all()) else rows.filter(pa.array(in_time))
        fires = self.shape.time is not TimeMode.EVENT or not moment.closes_next
        applied = self._run(kept, views, moment, moment.fires_ms, fires)
        return replace(applied, rows=rows.num_rows, rows_late=rows.num_rows - kept.num_rows)

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        if self.shape.time is not TimeMode.EVENT:
            return Applied()
        nothing = pa.RecordBatch.from_arrays([pa.array([], f.type) for f in self.input_schema], schema=self.input_schema)
        return self._run(nothing, views, moment, until_ms)

    def _run(self, rows: pa.RecordBatch, views: Views, moment: Moment, watermark_ms: int, fires: bool = True) -> Applied:
        reached_ms = moment.now_ms if self.shape.time is TimeMode.PROCESSING else watermark_ms if fires else NOTHING_YET
        due = self._due(views, reached_ms)
        initial = self._initial_rows(views)
        given = _Sorted.of(rows, self._bare)
        if not rows.num_rows and not initial.num_rows and (due is None or not due.num_rows):
            return Applied()
        names = [HASH, *self._bare.key_names]
        starts = key_starts(initial, self.stores[MAIN].layout) if initial.num_rows else np.zeros(0, dtype=np.int64)
        first = _Sorted(initial, starts)
        parts = [given.firsts(names), first.firsts(names)] + ([] if due is None else [due.select(names)])
        parts = [part for part in parts if part.num_rows]
        keys = Keys(parts[0] if parts[0].num_rows == len(given.starts) and len(parts) == 1 else distinct_keys(parts, self._bare))
        call = _Call(self, keys, views, moment.now_ms, watermark_ms, reached_ms, due)
        with collector_paused(), self.front.running():
            emitted = call.run(first, given)
        changed = call.changed()
        if initial.num_rows:
            changed[MAIN] = initial.append_column(DELETED, pa.array(np.ones(initial.num_rows, dtype=np.bool_)))
        self._check_event_times(emitted, moment)
        results = [pa.RecordBatch.from_arrays(emitted, schema=self.output_schema)] if emitted and len(emitted[0]) else []
        return Applied(changed=changed, emitted=results, keys=len(keys))

    @property
    def _bare(self) -> Layout:
        return Layout(self.shape.key_columns, ())

    def _due(self, views: Views, reached_ms: int) -> pa.RecordBatch | None:
        """The stored timers that may fire."""
        if self.shape.time is TimeMode.NONE:
            return None
        return due_until(views[self.shape.timers], self.stores[self.shape.timers].layout, reached_ms * MS)

    def _initial_rows(self, views: Views) -> pa.RecordBatch:
        """The rows of the initial state, if no batch has handled them yet. The batch that does deletes them, in a newer run."""
        view = views.get(MAIN)
        if view is None or not view.refs or any(ref.seq != BEFORE_ALL for ref in view.refs):
            return pa.RecordBatch.from_arrays([], names=[])
        return merge_rows([part for parts in view.slices() for part in parts], self.stores[MAIN].layout)

    def _check_event_times(self, emitted: list[pa.Array], moment: Moment) -> None:
        at = self.shape.event_time
        if at is None or not emitted or not len(emitted[at]):
            return
        least = emitted[at].cast(pa.timestamp("us", emitted[at].type.tz)).cast(pa.int64()).drop_null().to_numpy()
        if len(least) and int(least.min()) <= moment.watermark_us:
            raise ProcessorError(
                f"{self.shape.name} emits rows whose event time the watermark has passed",
                where=self.shape.where,
                wanted=f"{self.shape.output.names[at]} after the watermark, {moment.watermark_ms} ms",
                found=f"{int(least.min()) / 1000:g} ms",
            )


@dataclass(frozen=True)
class _Sorted:
    """Rows sorted by key and, within a key, in the order of the batch."""

    rows: pa.RecordBatch
    starts: Indices

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: Layout) -> _Sorted:
        if not rows.num_rows:
            return cls(rows, np.zeros(0, dtype=np.int64))
        place = rows.column(ORDER).to_numpy()
        if not bool((place[1:] >= place[:-1]).all()):
            rows = rows.take(pa.array(int_order(place)))
        order, starts = segment_order(rows, layout)
        return cls(rows.take(pa.array(order)), starts)

    def firsts(self, names: list[str]) -> pa.RecordBatch:
        """The first row of each key, with these columns."""
        if not self.rows.num_rows:
            return pa.RecordBatch.from_arrays([], names=[])
        return self.rows.select(names).take(pa.array(self.starts))


class _Call:
    """One call of the kernel: the state that it reads, and the user's code."""

    def __init__(
        self, kernel: UserState, keys: Keys, views: Views, now_ms: int, watermark_ms: int, reached_ms: int, due: pa.RecordBatch | None
    ) -> None:
        self._kernel, self._shape, self._front, self._keys = kernel, kernel.shape, kernel.front, keys
        self._now_ms, self._watermark_ms, self._reached_ms = now_ms, watermark_ms, reached_ms
        self._state = CallState(self._shape, kernel.stores, keys, views, self._front, now_ms)
        self._timers: UserTimers | None = None
        if due is not None:
            view: View = views[self._shape.timers]
            self._timers = UserTimers(keys, view, kernel.stores[self._shape.timers].layout, due)
        self._about: Any = None

    def run(self, initial: _Sorted, given: _Sorted) -> list[pa.Array]:
        """Call the user's code; returns the columns of what it emits."""
        output = self._front.output()
        if self._shape.interface is Interface.GROUP_STATE:
            self._group_states(given, output)
        else:
            self._processor(initial, given, output)
        return output.columns()

    def changed(self) -> dict[str, pa.RecordBatch]:
        """The changed rows of new runs, by store."""
        found = self._state.changed()
        if self._timers is not None and (rows := self._timers.rows()) is not None:
            found[self._shape.timers] = rows
        return found

    def _processor(self, initial: _Sorted, given: _Sorted, output: Output) -> None:
        shape, handle = self._shape, Handle(self._state, self._timers)
        # Each batch gets a processor of its own, as in Spark.
        processor = copy(self._kernel.code)
        times = self._front.timer_values(*((-1, -1) if shape.time is TimeMode.NONE else (self._now_ms, self._watermark_ms)))
        with user_code(shape, "init"):
            processor.init(handle)
        handle.enter(Phase.ROWS)
        with user_code(shape, "handleInitialState", self._for_key):
            groups = self._groups(initial, is_initial=True)
            for group, (key, owner) in enumerate(self._each(groups, initial)):
                handle.owner = owner
                for part in groups.of(group):
                    processor.handleInitialState(key, part, times)
        with user_code(shape, "handleInputRows", self._for_key):
            groups, add, handle_rows = self._groups(given), output.add, processor.handleInputRows
            of = groups.of
            for group, (key, owner) in enumerate(self._each(groups, given)):
                handle.owner = owner
                add(handle_rows(key, of(group), times))
        if self._timers is not None:
            handle.enter(Phase.TIMERS)
            with user_code(shape, "handleExpiredTimer", self._for_key):
                for owner, key, at_ms in self._due():
                    handle.owner = owner
                    info = self._front.expired(at_ms)
                    add(processor.handleExpiredTimer(key=key, timerValues=times, expiredTimerInfo=info))
        handle.enter(Phase.CLOSE)
        with user_code(shape, "close"):
            processor.close()

    def _group_states(self, given: _Sorted, output: Output) -> None:
        states = GroupStates(self._state, self._timers, self._front, self._now_ms, self._watermark_ms)
        function = self._kernel.code
        with user_code(self._shape, "", self._for_key):
            groups = self._groups(given)
            for group, (key, owner) in enumerate(self._each(groups, given)):
                state = states.of(owner, timed_out=False)
                output.add(function(key, groups.of(group), state))
                states.keep(owner, state)
            if self._timers is not None:
                # A state times out once the clock has passed its moment: Spark compares with "less than".
                due = [(owner, key) for owner, key, _ in self._due(before=True)]
                for owner, key in due:
                    self._about = key
                    state = states.of(owner, timed_out=True)
                    output.add(function(key, iter([self._front.no_rows()]), state))
                    states.keep(owner, state)
                    states.keep_timer(owner)

    def _groups(self, sorted_: _Sorted, is_initial: bool = False) -> Groups:
        rows, starts, shape = sorted_.rows, sorted_.starts, self._shape
        make = self._front.initial_groups if is_initial else self._front.groups
        if not rows.num_rows:
            return make([], [], starts)
        key_names = [name for name, _ in shape.key_columns]
        first = rows.select(key_names).take(pa.array(starts))
        if is_initial:
            columns = [rows.column(f"c{i}") for i in range(len(shape.initial or ()))]
        else:
            payload = {name: rows.column(f"c{i}") for i, name in enumerate(shape.payload)}
            keys = {f.name: rows.column(f"k{i}") for i, f in enumerate(shape.keys)}
            columns = [payload[f.name] if f.name in payload else keys[f.name] for f in shape.rows]
        return make(columns, first.columns, starts)

    def _each(self, groups: Groups, sorted_: _Sorted) -> Iterator[tuple[Any, int]]:
        """Key and owner of each group."""
        if not sorted_.rows.num_rows:
            return
        owners = self._keys.of(sorted_.firsts(self._keys.rows.schema.names))
        for key, owner in zip(groups.keys(), owners.tolist(), strict=True):
            self._about = key
            yield key, owner

    def _due(self, before: bool = False) -> Iterator[tuple[int, Any, int]]:
        """Owner, key and moment of the timers that fire."""
        assert self._timers is not None
        keys: list[Any] | None = None
        for owner, at_ms in self._timers.pop_due(self._reached_ms - 1 if before else self._reached_ms):
            if keys is None:
                keys = self._front.rows_of_keys(self._keys.columns)
            self._about = keys[owner]
            yield owner, keys[owner], at_ms

    def _for_key(self) -> str:
        return "" if self._about is None else f" (for key {tuple(self._about)!r})"
