"""Users' own operators for tests without Spark, and a kernel over runs in a folder that runs them."""

from __future__ import annotations

import itertools
import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import strategies as st

from headrace.ids import SLOTS
from headrace.operators.kernel import Applied, Moment, OutputMode, View
from headrace.operators.process import ORDER, TIME, Process
from headrace.operators.processor import KeyProcessor, Processor
from headrace.operators.shape import MapShape, ProcessorShape
from headrace.state.compact import Compactor
from headrace.state.layout import HASH
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.sequence import VersionStep, run_seq

KEYS = pa.schema([("k", pa.string())])
ROWS = pa.schema([("op", pa.string()), ("v", pa.int64())])
VALUES = pa.schema([("n", pa.int64()), ("word", pa.string())])
OUT = pa.schema([("k", pa.string()), ("n", pa.int64())])
WHOLE = ((0, SLOTS),)

keys = st.sampled_from(["a", "b", "c", "d", "e", None])


class Instance:
    """One instance of an operator over a folder, with as many hash collisions as wanted."""

    def __init__(self, operator: Process, folder: Path, buckets: int = 3) -> None:
        self.operator, self.folder, self.buckets = operator, folder, buckets
        self.refs: dict[str, list[RunRef]] = {name: [] for name in operator.stores}
        self.version = -1
        self.watermark_ms = 0
        self.files = itertools.count()

    def batch(self, rows: list[tuple[Any, ...]], now_ms: int = 0, watermark_ms: int | None = None) -> list[tuple[Any, ...]]:
        """Rows are (key, op, v), with the event time in seconds in front of ``v`` where there is one; gives the rows emitted."""
        self.version += 1
        moment = Moment(OutputMode.APPEND, self.watermark_ms, now_ms)
        applied = self._write(self.operator.apply(self._rows(rows), self.views(), moment), VersionStep.PROCESS)
        emitted = applied.emitted
        self.late = applied.rows_late
        if watermark_ms is not None and watermark_ms > self.watermark_ms:
            pairs = [(store.lifetime, ref) for name, store in self.operator.stores.items() for ref in self.refs[name]]
            if any(lifetime.is_due(ref, self.watermark_ms, watermark_ms) for lifetime, ref in pairs):
                emitted = emitted + self._write(self.operator.close(self.views(), moment, watermark_ms), VersionStep.CLOSE).emitted
            self.watermark_ms = watermark_ms
        return [tuple(row.values()) for part in emitted for row in part.to_pylist()]

    def views(self) -> dict[str, View]:
        stores = self.operator.stores.items()
        return {name: View(RunReader(self.folder, store.layout), self.refs[name], WHOLE) for name, store in stores}

    def state(self, store: str = "") -> list[dict[str, Any]]:
        kernel = self.operator.stores[store]
        live = kernel.lifetime.live_from(self.watermark_ms)
        return [row for part in self.views()[store].scan(kernel, sub_min=live) for row in part.to_pylist()]

    def compact(self, now_ms: int = 0) -> None:
        for name, store in self.operator.stores.items():
            compactor = Compactor(
                self.folder,
                store.layout,
                store.combine,
                RunReader(self.folder, store.layout),
                1,
                False,
                self._file,
                (),
                partial(store.lifetime.unexpired, watermark_ms=self.watermark_ms, now_ms=now_ms),
            )
            self.refs[name], _ = compactor.compact(self.refs[name], WHOLE, 10**6, store.lifetime.live_from(self.watermark_ms))

    def _write(self, applied: Applied, step: VersionStep) -> Applied:
        for name, rows in applied.changed.items():
            layout = self.operator.stores[name].layout
            seq = run_seq(self.version, step)
            self.refs[name].append(write_run(self.folder, self._file(), rows, layout, seq=seq, lo=0, hi=SLOTS, sync=False))
        return applied

    def _file(self) -> str:
        return f"{next(self.files)}.arrow"

    def _rows(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        schema = self.operator.input_schema
        columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(4 if self.operator.timed else 3)]
        key, op, *middle, v = columns
        data = {HASH: [self.hash(k) for k in key], "k0": key, "c0": op, "c1": v, ORDER: list(range(len(key)))}
        if self.operator.timed:
            data[TIME] = [int(s * 1_000_000) for s in middle[0]]
        return pa.RecordBatch.from_arrays([pa.array(data[f.name], f.type) for f in schema], schema=schema)

    def hash(self, key: Any) -> int:
        return (zlib.crc32(repr(key).encode()) % self.buckets) << 61


def shape(**more: Any) -> ProcessorShape:
    return replace(ProcessorShape(KEYS, ROWS, VALUES, OUT, name="Mine"), **more)


def instance(processor: Any, folder: Path, timed: bool = False, **more: Any) -> Instance:
    return Instance(Process(processor, shape(**more), timed), folder)


def text(at: Any) -> str:
    return f"word {at}"


class Vectorised(Processor):
    """Puts, deletes and sums, as the rows say; the last row of a key counts."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        last = rows.group_by("k", use_threads=False).aggregate([("op", "last"), ("v", "last")])
        puts = last.filter(pc.equal(last["op_last"], "put"))
        state.put(pa.table({"k": puts["k"], "n": puts["v_last"], "word": pa.array(map(text, puts["v_last"].to_pylist()), pa.string())}))
        state.delete(last.filter(pc.equal(last["op_last"], "delete")))
        now = state.get(last)
        assert pc.is_valid(now["n"]).combine_chunks().equals(state.known(last))
        return pa.table({"k": last["k"], "n": now["n"]})


class PerKey(KeyProcessor):
    """The same."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        if rows[-1].op == "put":
            state.n, state.word = rows[-1].v, text(rows[-1].v)
        elif rows[-1].op == "delete":
            state.delete()
        return [{"n": state.n, "k": key}]


SEEN = MapShape("seen", pa.schema([("item", pa.int64())]), pa.schema([("twice", pa.int64()), ("x", pa.string())]))


def at(seconds: float) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


class TimersPerKey(KeyProcessor):
    """``set`` and ``unset`` timers at ``v`` seconds; ``clear`` all; ``every`` begins one that sets itself again."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        for row in rows:
            if row.op == "clear":
                state.delete_timer()
            elif row.op == "unset":
                state.delete_timer(at(row.v))
            else:
                state.set_timer(at(row.v))
            if row.op == "every":
                state.n = row.v

    def on_timer(self, key: Any, at: datetime, state: Any) -> Any:
        if state.n is not None:
            state.set_timer(at + timedelta(seconds=state.n))
        yield key, int(at.timestamp())


class TimersVectorised(Processor):
    """The same, but for one row a key."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        times = pc.multiply(rows["v"], 1_000_000).cast(pa.timestamp("us", "UTC"))
        rows = rows.append_column("at", times)
        cleared = rows.filter(pc.equal(rows["op"], "clear"))
        state.delete_timer(cleared)
        unset = rows.filter(pc.equal(rows["op"], "unset"))
        state.delete_timer(unset, unset["at"])
        every = rows.filter(pc.is_in(rows["op"], pa.array(["every", "set"])))
        state.set_timer(every, every["at"])
        every = rows.filter(pc.equal(rows["op"], "every"))
        state.put(pa.table({"k": every["k"], "n": every["v"], "word": pa.nulls(every.num_rows)}))
        return OUT.empty_table()

    def on_timers(self, due: pa.Table, state: Any) -> pa.Table:
        every = state.get(due)["n"]
        again = due.append_column("n", every).filter(pc.is_valid(every))
        state.set_timer(again, pc.add(again["at"], pc.multiply(again["n"], 1_000_000).cast(pa.duration("us"))))
        return pa.table({"k": due["k"], "n": pc.divide(due["at"].cast(pa.int64()), 1_000_000)})


class Merging(Vectorised):
    """Has a method that processors could define in earlier versions."""

    def merge(self, a: pa.Table, b: pa.Table) -> pa.Table:
        raise AssertionError("merge is never called")


class MergingPerKey(PerKey):
    """The same, key by key; it may have any signature."""

    def merge(self, *sides: Any) -> Any:
        raise AssertionError("merge is never called")
