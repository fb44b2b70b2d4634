"""A kernel of users' stateful code over runs in a folder, without Spark's JVM."""

from __future__ import annotations

import itertools
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T

from headrace.compile.types import arrow_type
from headrace.ids import SLOTS
from headrace.operators.kernel import MAIN, Applied, Moment, OutputMode, View
from headrace.operators.user_state.kernel import ORDER, TIME, UserState
from headrace.operators.user_state.shape import EXISTS, GROUP_STATE, TIMEOUT, Interface, Kind, TimeMode, UserShape, Variable
from headrace.spark.types import to_arrow
from headrace.spark.user_state.declared import declared_by
from headrace.spark.user_state.front import Conversion, Form, UserFront
from headrace.state.compact import Compactor
from headrace.state.layout import HASH, SUB
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.segments import sort_into_segments
from headrace.state.sequence import BEFORE_ALL, VersionStep, run_seq

WHOLE = ((0, SLOTS),)
MODES = {"None": TimeMode.NONE, "ProcessingTime": TimeMode.PROCESSING, "EventTime": TimeMode.EVENT}
TIMEOUTS = {"NoTimeout": TimeMode.NONE, "ProcessingTimeTimeout": TimeMode.PROCESSING, "EventTimeTimeout": TimeMode.EVENT}


def schema(**columns: Any) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name, kind in columns.items()])


def arrow(of: T.StructType) -> pa.Schema:
    return pa.schema([(f.name, arrow_type(f.dataType)) for f in of.fields])


def kernel(
    code: Any,
    form: Form,
    rows: T.StructType,
    keys: list[str],
    result: T.StructType,
    time: str,
    state: T.StructType | None = None,
    **more: Any,
) -> UserState:
    """The kernel of a processor or function, as the compiler would make it. ``state`` is that of a function."""
    key_schema = T.StructType([rows[name] for name in keys])
    if state is None:
        declared = declared_by(code, time, "here")
        variables = tuple(
            Variable(Kind(d.kind), d.name, arrow(d.values), None if d.keys is None else arrow(d.keys), d.ttl_ms) for d in declared
        )
        named = {d.name: (d.values, d.keys) for d in declared}
    else:
        variables = (Variable(Kind.VALUE, GROUP_STATE, arrow(state), extra=((EXISTS, pa.bool_()), (TIMEOUT, pa.int64()))),)
        named = {GROUP_STATE: (state, None)}
    interface = {Form.ROWS: Interface.ROWS, Form.PANDAS: Interface.PANDAS, Form.GROUP_STATE: Interface.GROUP_STATE}[form]
    shape = UserShape(
        arrow(key_schema),
        arrow(rows),
        pa.schema([(f.name, to_arrow(f.dataType)) for f in result.fields]),
        variables,
        interface,
        MODES.get(time) or TIMEOUTS[time],
        initial=None if "initial" not in more else arrow(more["initial"]),
        event_time=more.get("event_time"),
        name="Mine",
        where="at mine.py:1",
    )
    conversion = Conversion("UTC", more.get("rows_max", 10_000), False, True)
    front = UserFront(form, key_schema, rows, result, more.get("initial"), named, conversion, time, True, "Mine", "at mine.py:1")
    return UserState(code, shape, front, bool(more.get("drops_late")))


class Instance:
    """One instance of a kernel over a folder, with hash collisions."""

    def __init__(self, operator: UserState, folder: Path, buckets: int = 3) -> None:
        self.operator, self.folder, self.buckets = operator, folder, buckets
        self.refs: dict[str, list[RunRef]] = {name: [] for name in operator.stores}
        self.version = -1
        self.watermark_ms = 0
        self.files = itertools.count()

    def batch(self, rows: list[dict[str, Any]], now_ms: int = 0, watermark_ms: int | None = None) -> list[tuple[Any, ...]]:
        """Rows by the names of their columns; ``ts_ms`` is the event time. Gives the rows emitted."""
        self.version += 1
        moment = Moment(OutputMode.APPEND, self.watermark_ms, now_ms)
        applied = self._write(self.operator.apply(self._rows(rows), self.views(), moment), VersionStep.PROCESS)
        emitted = applied.emitted
        self.late = applied.rows_late
        if watermark_ms is not None and watermark_ms > self.watermark_ms:
            emitted = emitted + self._write(self.operator.close(self.views(), moment, watermark_ms), VersionStep.CLOSE).emitted
            self.watermark_ms = watermark_ms
        return [tuple(row.values()) for part in emitted for row in part.to_pylist()]

    def begin_with(self, rows: list[dict[str, Any]]) -> None:
        """The initial state, as the first batch finds it."""
        layout = self.operator.stores[MAIN].layout
        keys = [[row[name] for row in rows] for name in self.operator.shape.keys.names]
        data: dict[str, Any] = {HASH: [self._hash(key) for key in zip(*keys, strict=True)], SUB: range(len(rows))}
        data |= {f"k{i}": column for i, column in enumerate(keys)}
        data |= {f"c{i}": [row[f.name] for row in rows] for i, f in enumerate(self.operator.shape.initial or ())}
        batch = pa.RecordBatch.from_arrays([pa.array(data[f.name], f.type) for f in layout.schema], schema=layout.schema)
        ordered, _ = sort_into_segments(batch, layout)
        self.refs[MAIN].append(write_run(self.folder, self._file(), ordered, layout, seq=BEFORE_ALL, lo=0, hi=SLOTS, sync=False))

    def views(self) -> dict[str, View]:
        stores = self.operator.stores.items()
        return {name: View(RunReader(self.folder, store.layout), self.refs[name], WHOLE) for name, store in stores}

    def state(self, store: str) -> list[dict[str, Any]]:
        return [row for part in self.views()[store].scan(self.operator.stores[store]) for row in part.to_pylist()]

    def compact(self, now_ms: int = 0) -> None:
        for name, store in self.operator.stores.items():
            reader = RunReader(self.folder, store.layout)
            unexpired = partial(store.lifetime.unexpired, watermark_ms=self.watermark_ms, now_ms=now_ms)
            compactor = Compactor(self.folder, store.layout, store.combine, reader, 1, False, self._file, (), unexpired)
            live_from = store.lifetime.live_from(self.watermark_ms)
            self.refs[name], _ = compactor.compact(self.refs[name], WHOLE, 10**6, live_from)

    def _write(self, applied: Applied, step: VersionStep) -> Applied:
        for name, rows in applied.changed.items():
            layout, seq = self.operator.stores[name].layout, run_seq(self.version, step)
            self.refs[name].append(write_run(self.folder, self._file(), rows, layout, seq=seq, lo=0, hi=SLOTS, sync=False))
        return applied

    def _file(self) -> str:
        return f"{next(self.files)}.arrow"

    def _rows(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        shape, of = self.operator.shape, self.operator.input_schema
        keys = [[row[name] for row in rows] for name in shape.keys.names]
        data: dict[str, Any] = {HASH: [self._hash(key) for key in zip(*keys, strict=True)], ORDER: range(len(rows))}
        data |= {f"k{i}": column for i, column in enumerate(keys)}
        data |= {f"c{i}": [row[name] for row in rows] for i, name in enumerate(shape.payload)}
        data[TIME] = [row.get("ts_ms", 0) * 1000 for row in rows]
        return pa.RecordBatch.from_arrays([pa.array(data[f.name], f.type) for f in of], schema=of)

    def _hash(self, key: Any) -> int:
        return (zlib.crc32(repr(key).encode()) % self.buckets) << 61
