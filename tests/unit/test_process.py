"""Users' own operators without Spark: the kernel over runs in a folder, and the state against a dict."""

from __future__ import annotations

import itertools
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ProcessorError
from headrace.ids import SLOTS
from headrace.operators.description import describe_part, from_description
from headrace.operators.kernel import Applied, Moment, OutputMode, View
from headrace.operators.process import ORDER, TIME, Process
from headrace.operators.processor import Clock, KeyProcessor, MapShape, Processor, Shape
from headrace.state.compact import Compactor
from headrace.state.layout import HASH
from headrace.state.run import RunReader, RunRef, Step, run_seq, write_run

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
        applied = self._write(self.operator.apply(self._rows(rows), self.views(), moment), Step.PROCESS)
        emitted = applied.emitted
        self.late = applied.rows_late
        if watermark_ms is not None and watermark_ms > self.watermark_ms:
            due = any(s.is_due(r, self.watermark_ms, watermark_ms) for name, s in self.operator.stores.items() for r in self.refs[name])
            if due:
                emitted = emitted + self._write(self.operator.close(self.views(), moment, watermark_ms), Step.CLOSE).emitted
            self.watermark_ms = watermark_ms
        return [tuple(row.values()) for part in emitted for row in part.to_pylist()]

    def views(self) -> dict[str, View]:
        stores = self.operator.stores.items()
        return {name: View(RunReader(self.folder, store.layout), self.refs[name], WHOLE) for name, store in stores}

    def state(self, store: str = "") -> list[dict[str, Any]]:
        kernel = self.operator.stores[store]
        live = kernel.live_from(self.watermark_ms)
        return [row for part in self.views()[store].scan(kernel.layout, kernel.combine, sub_min=live) for row in part.to_pylist()]

    def compact(self, now_ms: int = 0) -> None:
        for name, store in self.operator.parts.items():
            compactor = Compactor(
                self.folder,
                store.layout,
                store.combine,
                RunReader(self.folder, store.layout),
                1,
                False,
                self._file,
                run_seq(self.version, Step.CLOSE),
                partial(store.unexpired, watermark_ms=self.watermark_ms, now_ms=now_ms),
            )
            self.refs[name], _ = compactor.compact(self.refs[name], WHOLE, 10**6, store.live_from(self.watermark_ms))

    def _write(self, applied: Applied, step: Step) -> Applied:
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


def shape(**more: Any) -> Shape:
    return replace(Shape(KEYS, ROWS, VALUES, OUT, name="Mine"), **more)


def instance(processor: Any, folder: Path, timed: bool = False, **more: Any) -> Instance:
    return Instance(Process(processor, shape(**more), timed), folder)


def text(at: Any) -> str:
    return f"word {at}"


class Vectorised(Processor):
    """Puts, deletes and sums, as rows tell it; the last row of a key counts."""

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


batches = st.lists(st.lists(st.tuples(keys, st.sampled_from(["put", "delete", "get"]), st.integers(0, 99)), max_size=8), max_size=6)


@given(batches, st.booleans(), st.sets(st.integers(0, 5)))
@settings(max_examples=60, deadline=None)
def test_the_state_of_a_processor_is_a_dict(tables: Any, vectorised: bool, compacted: set[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mine = instance(Vectorised() if vectorised else PerKey(), Path(folder))
        wanted: dict[Any, int] = {}
        for at, rows in enumerate(tables):
            emitted = mine.batch(rows)
            for key, op, v in {row[0]: row for row in rows}.values():
                if op == "put":
                    wanted[key] = v
                elif op == "delete":
                    wanted.pop(key, None)
            assert dict(emitted) == {key: wanted.get(key) for key, _, _ in rows}
            if at in compacted:
                mine.compact()
            state = mine.state()
            assert {row["k0"]: (row["p0"], row["p1"]) for row in state} == {k: (v, text(v)) for k, v in wanted.items()}
            assert len(state) == len(wanted)


class MapPerKey(KeyProcessor):
    def process(self, key: Any, rows: Any, state: Any) -> Any:
        for row in rows:
            if row.op == "put":
                state.seen[row.v] = (row.v * 2, "x")
            elif row.v in state.seen:
                del state.seen[row.v]
        yield key, len(state.seen)


class MapVectorised(Processor):
    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        seen = state.map("seen")
        last = rows.group_by(["k", "v"], use_threads=False).aggregate([("op", "last")])
        puts = last.filter(pc.equal(last["op_last"], "put"))
        seen.put(pa.table({"k": puts["k"], "item": puts["v"], "twice": pc.multiply(puts["v"], 2), "x": ["x"] * puts.num_rows}))
        others = last.filter(pc.not_equal(last["op_last"], "put"))
        seen.delete(pa.table({"k": others["k"], "item": others["v"]}))
        assert seen.get(pa.table({"k": puts["k"], "item": puts["v"]}))["twice"].to_pylist() == [v * 2 for v in puts["v"].to_pylist()]
        counts = seen.items(rows).group_by("k").aggregate([("item", "count")])
        missing = set(rows["k"].to_pylist()) - set(counts["k"].to_pylist())
        found = pa.table({"k": counts["k"], "n": counts["item_count"]})
        return pa.concat_tables(
            [found, pa.table({"k": pa.array(list(missing), pa.string()), "n": pa.array([0] * len(missing), pa.int64())})]
        )


SEEN = MapShape("seen", pa.schema([("item", pa.int64())]), pa.schema([("twice", pa.int64()), ("x", pa.string())]))


@given(st.lists(st.lists(st.tuples(keys, st.sampled_from(["put", "delete"]), st.integers(0, 4)), max_size=8), max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_map_of_a_processor_is_a_dict_for_each_key(tables: Any, vectorised: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mine = instance(MapVectorised() if vectorised else MapPerKey(), Path(folder), maps=(SEEN,))
        wanted: dict[Any, dict[int, int]] = {}
        for at, rows in enumerate(tables):
            emitted = mine.batch(rows)
            for key, op, v in rows:
                mine_ = wanted.setdefault(key, {})
                mine_.update({v: 2 * v}) if op == "put" else mine_.pop(v, None)
            assert dict(emitted) == {key: len(wanted[key]) for key, _, _ in rows}
            if at == 2:
                mine.compact()
            found = [(row["k0"], row["m0"], row["p0"]) for row in mine.state("seen")]
            assert sorted(found, key=repr) == sorted(((k, m, v) for k, ms in wanted.items() for m, v in ms.items()), key=repr)


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


@pytest.mark.parametrize("processor", [TimersPerKey(), TimersVectorised()])
def test_event_timers_fire_once_when_the_watermark_has_passed_them(tmp_path: Path, processor: Any) -> None:
    mine = instance(processor, tmp_path, timed=True, timers=Clock.EVENT)
    assert mine.batch([("a", "set", 1, 10), ("b", "set", 2, 20), ("c", "every", 3, 4)], watermark_ms=3_999) == []
    assert {(row["k0"], row["sub"] // 1_000_000) for row in mine.state("timers")} == {("a", 10), ("b", 20), ("c", 4)}
    assert sorted(mine.batch([("b", "set", 5, 12)], watermark_ms=10_000)) == [("a", 10), ("c", 4), ("c", 8)]
    # One is taken back, one is set in the past and fires at once.
    assert mine.batch([("b", "unset", 11, 20), ("a", "set", 11, 7)], watermark_ms=11_000) == [("a", 7)]
    mine.compact()
    assert sorted(mine.batch([("c", "clear", 12, 0)], watermark_ms=30_000)) == [("b", 12)]
    assert mine.batch([], watermark_ms=60_000) == []
    assert mine.state("timers") == []


@pytest.mark.parametrize("processor", [TimersPerKey(), TimersVectorised()])
def test_processing_timers_fire_with_the_first_batch_after_them(tmp_path: Path, processor: Any) -> None:
    mine = instance(processor, tmp_path, timers=Clock.PROCESSING)
    assert mine.batch([("a", "set", 10), ("b", "set", 20), ("c", "set", 40)], now_ms=1_000) == []
    assert mine.batch([("d", "set", 30)], now_ms=9_999) == []
    assert mine.batch([("d", "set", 50), ("b", "unset", 20)], now_ms=20_000) == [("a", 10)]
    assert mine.batch([], now_ms=30_000) == [("d", 30)]
    mine.compact()
    assert mine.batch([("c", "clear", 0)], now_ms=45_000) == []
    assert mine.batch([("e", "every", 59)], now_ms=60_000) == [("d", 50), ("e", 59)]
    assert [(row["k0"], row["sub"]) for row in mine.state("timers")] == [("e", 118_000_000)]


def test_a_timer_that_would_fire_for_ever_is_refused(tmp_path: Path) -> None:
    class Again(KeyProcessor):
        def process(self, key: Any, rows: Any, state: Any) -> None:
            state.set_timer(at(5))

        def on_timer(self, key: Any, at: datetime, state: Any) -> None:
            state.set_timer(at)

    with pytest.raises(ProcessorError, match="not later than the one that has just fired"):
        instance(Again(), tmp_path, timed=True, timers=Clock.EVENT).batch([("a", "", 1, 1)], watermark_ms=6_000)


def test_a_key_knows_its_timers(tmp_path: Path) -> None:
    class Shows(TimersPerKey):
        def process(self, key: Any, rows: Any, state: Any) -> Any:
            super().process(key, rows, state)
            return [(key, int(each.timestamp())) for each in state.timers()]

    mine = instance(Shows(), tmp_path, timed=True, timers=Clock.EVENT)
    assert mine.batch([("a", "set", 1, 10), ("a", "set", 1, 5)], watermark_ms=5_000) == [("a", 5), ("a", 10), ("a", 5)]
    assert mine.batch([("a", "set", 6, 7)], watermark_ms=6_000) == [("a", 7), ("a", 10)]


def test_late_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    mine = instance(PerKey(), tmp_path, timed=True)
    mine.batch([("a", "put", 10, 1)], watermark_ms=10_000)
    assert mine.batch([("a", "put", 10, 2), ("b", "put", 10.5, 3), ("c", "put", 3, 4)]) == [("b", 3)]
    assert mine.late == 2


def test_rows_come_by_event_time_and_then_by_the_hash_of_the_row(tmp_path: Path) -> None:
    class Order(KeyProcessor):
        def process(self, key: Any, rows: Any, state: Any) -> Any:
            return [(key, row.v) for row in rows]

    class Table(Processor):
        def process(self, rows: pa.Table, state: Any) -> pa.Table:
            return pa.table({"k": rows["k"], "n": rows["v"]})

    rows = [("a", "", 3, 1), ("b", "", 2, 2), ("a", "", 1, 3), ("a", "", 3, 4), ("b", "", 2, 5)]
    found = instance(Order(), tmp_path, timed=True).batch(rows)
    assert [v for k, v in found if k == "a"] == [3, 1, 4]
    assert [v for k, v in found if k == "b"] == [2, 5]
    assert [v for _, v in instance(Table(), tmp_path, timed=True).batch(rows)] == [3, 2, 5, 1, 4]


@pytest.mark.parametrize("processor", [Vectorised(), PerKey()])
def test_state_expires_by_the_clock_and_compaction_removes_it(tmp_path: Path, processor: Any) -> None:
    mine = instance(processor, tmp_path, ttl_us=10_000_000)
    mine.batch([("a", "put", 1), ("b", "put", 2)], now_ms=100_000)
    assert mine.batch([("a", "put", 3)], now_ms=105_000) == [("a", 3)]
    assert mine.batch([("a", "get", 0), ("b", "get", 0)], now_ms=110_000) in ([("a", 3), ("b", None)], [("b", None), ("a", 3)])
    mine.batch([("c", "put", 1)], now_ms=112_000)
    mine.compact(now_ms=112_000)
    assert {row["k0"] for row in mine.state()} == {"a", "c"}
    mine.batch([("d", "put", 1)], now_ms=200_000)
    mine.compact(now_ms=200_000)
    assert {row["k0"] for row in mine.state()} == {"d"}


def test_state_expires_by_event_time_from_when_its_key_was_seen(tmp_path: Path) -> None:
    mine = instance(PerKey(), tmp_path, timed=True, ttl_us=10_000_000, ttl_by=Clock.EVENT, maps=())
    mine.batch([("a", "put", 1_000, 1), ("b", "put", 1_005, 2)], watermark_ms=1_005_000)
    assert dict(mine.batch([("a", "get", 1_006, 0), ("b", "get", 1_006, 0)], watermark_ms=1_014_000)) == {"a": 1, "b": 2}
    assert dict(mine.batch([("b", "get", 1_015, 0)], watermark_ms=1_024_999)) == {"b": 2}
    assert dict(mine.batch([("a", "get", 1_025, 0), ("b", "get", 1_026, 0)], watermark_ms=1_025_000)) == {"a": None, "b": 2}


def test_entries_of_a_map_expire_each_by_itself(tmp_path: Path) -> None:
    mine = instance(MapPerKey(), tmp_path, ttl_us=10_000_000, maps=(SEEN,))
    mine.batch([("a", "put", 1)], now_ms=100_000)
    assert mine.batch([("a", "put", 2)], now_ms=105_000) == [("a", 2)]
    assert mine.batch([("a", "put", 3)], now_ms=111_000) == [("a", 2)]


class Merging(Vectorised):
    def merge(self, a: pa.Table, b: pa.Table) -> pa.Table:
        return pa.table({"n": pc.add(a["n"], b["n"]), "word": pc.binary_join_element_wise(a["word"], b["word"], "+")})


class MergingPerKey(PerKey):
    def merge(self, a: Any, b: Any) -> Any:
        return {"word": f"{a.word}+{b.word}", "n": a.n + b.n}


@pytest.mark.parametrize("processor", [Merging(), MergingPerKey()])
@pytest.mark.parametrize("ttl_us", [None, 10**9])
def test_two_partial_states_of_a_key_are_merged(tmp_path: Path, processor: Any, ttl_us: int | None) -> None:
    sides = []
    for side in ([("a", "put", 1), ("b", "put", 2)], [("b", "put", 3), ("c", "put", 4), (None, "put", 5)]):
        folder = tmp_path / str(len(sides))
        folder.mkdir()
        mine = instance(processor, folder, ttl_us=ttl_us)
        mine.batch(side, now_ms=1)
        sides.append(mine.views()[""].runs()[0].rows)
    merged = mine.operator.merge(*sides)
    assert sorted((row["k0"] or "", row["p0"], row["p1"]) for row in merged.to_pylist()) == [
        ("", 5, "word 5"),
        ("a", 1, "word 1"),
        ("b", 5, "word 2+word 3"),
        ("c", 4, "word 4"),
    ]
    assert np.all(np.diff(merged.column(HASH).to_numpy().astype(np.float64)) >= 0)


@pytest.mark.parametrize("timers", [Clock.EVENT, Clock.PROCESSING])
def test_stores_can_be_described_and_made_again(timers: Clock) -> None:
    parts = Process(TimersPerKey(), shape(maps=(SEEN,), timers=timers, ttl_us=5, ttl_by=Clock.EVENT), True).parts
    assert list(parts) == ["", "seen", "timers"]
    for part in parts.values():
        assert from_description(json.loads(json.dumps(describe_part(part, keys=["k"], sub=None, values=[])))) == part


def fails(processor: Any, folder: Path, **more: Any) -> str:
    with pytest.raises(ProcessorError) as caught:
        instance(processor, folder, where="process at app.py:7", **more).batch([("a", "put", 1)])
    return str(caught.value)


def vectorised(process: Callable[[pa.Table, Any], Any]) -> Processor:
    return type("Mine", (Processor,), {"process": lambda self, rows, state: process(rows, state)})()


def per_key(process: Callable[[Any, Any, Any], Any]) -> KeyProcessor:
    return type("Mine", (KeyProcessor,), {"process": lambda self, key, rows, state: process(key, rows, state)})()


def _set(state: Any, name: str, value: Any) -> None:
    setattr(state, name, value)


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (
            vectorised(lambda rows, state: rows),
            "what process gives; wanted the columns k string, n int64; found k string, op string",
        ),
        (vectorised(lambda rows, state: None), "wanted a pyarrow Table with the columns k string, n int64; found NoneType"),
        (vectorised(lambda rows, state: pa.table({"k": rows["k"], "n": rows["op"]})), "wanted column 'n' of type int64; found string"),
        (vectorised(lambda rows, state: state.put(rows)), "state.put; wanted the columns n int64, word string; found k string"),
        (vectorised(lambda rows, state: state.get(pa.array(["z"]))), "a key that this call is not about; wanted keys of the rows"),
        (vectorised(lambda rows, state: state.get(rows.drop(["k"]))), "keys; wanted the columns k string; found op string"),
        (vectorised(lambda rows, state: state.map("seen")), "wanted one of the maps (none are declared); found 'seen'"),
        (vectorised(lambda rows, state: state.set_timer(rows, at(1))), "declare them: hr.State(..., timers='event')"),
        (vectorised(lambda rows, state: rows["v"][5]), "Mine.process raised IndexError"),
        (per_key(lambda key, rows, state: ("a", 1)), "wanted a tuple or a dict of k, n; found 'a'; process gives back a list of rows"),
        (per_key(lambda key, rows, state: [("a", "b")]), "wanted int64 in column 'n'"),
        (per_key(lambda key, rows, state: [{"k": "a"}]), "found {'k': 'a'}"),
        (per_key(lambda key, rows, state: _set(state, "n", "x")), "a value of the state; wanted int64 in column 'n'"),
        (per_key(lambda key, rows, state: _set(state, "m", 1)), "AttributeError"),
        (per_key(lambda key, rows, state: state.set_timer(at(1))), "declare them"),
        (per_key(lambda key, rows, state: 1 / 0), "Mine.process raised ZeroDivisionError: division by zero (for key 'a')"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, processor: Any, said: str) -> None:
    message = fails(processor, tmp_path)
    assert message.startswith("process at app.py:7: Mine")
    assert said in message


def test_an_exception_shows_the_lines_of_the_user() -> None:
    def deep(v: int) -> int:
        return v // 0

    message = fails(per_key(lambda key, rows, state: [(key, deep(rows[0].v))]), Path())
    assert "return v // 0" in message
    assert "headrace/operators" not in message


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    twice = vectorised(lambda rows, state: state.put(pa.table({"k": ["a", "a"], "n": [1, 2], "word": ["", ""]})))
    assert "wanted each key once" in fails(twice, tmp_path)
    again = vectorised(
        lambda rows, state: state.map("seen").put(pa.table({"k": ["a"] * 2, "item": [1, 1], "twice": [1, 2], "x": ["", ""]}))
    )
    assert "wanted each key once" in fails(again, tmp_path, maps=(SEEN,))


def test_a_trial_on_no_rows_finds_wrong_columns() -> None:
    with pytest.raises(ProcessorError, match="wanted the columns k string, n int64"):
        Process(vectorised(lambda rows, state: rows), shape(), False).trial()
    Process(TimersVectorised(), shape(timers=Clock.EVENT), True).trial()
    Process(Merging(), shape(), False).trial()
