"""Users' own operators without Spark: state and maps against a dict, expiry, merging."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.operators.description import ColumnNames, describe_store, store_from
from headrace.operators.process import Process
from headrace.operators.processor import KeyProcessor, Processor
from headrace.operators.shape import TimerClock
from tests.examples import examples
from tests.unit.processors import (
    SEEN,
    Merging,
    MergingPerKey,
    PerKey,
    TimersPerKey,
    Vectorised,
    instance,
    keys,
    shape,
    text,
)

batches = st.lists(st.lists(st.tuples(keys, st.sampled_from(["put", "delete", "get"]), st.integers(0, 99)), max_size=8), max_size=6)


@given(batches, st.booleans(), st.sets(st.integers(0, 5)))
@settings(max_examples=examples(60), deadline=None)
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


@given(st.lists(st.lists(st.tuples(keys, st.sampled_from(["put", "delete"]), st.integers(0, 4)), max_size=8), max_size=6), st.booleans())
@settings(max_examples=examples(60), deadline=None)
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
    mine = instance(PerKey(), tmp_path, timed=True, ttl_us=10_000_000, ttl_by=TimerClock.EVENT, maps=())
    mine.batch([("a", "put", 1_000, 1), ("b", "put", 1_005, 2)], watermark_ms=1_005_000)
    assert dict(mine.batch([("a", "get", 1_006, 0), ("b", "get", 1_006, 0)], watermark_ms=1_014_000)) == {"a": 1, "b": 2}
    assert dict(mine.batch([("b", "get", 1_015, 0)], watermark_ms=1_024_999)) == {"b": 2}
    assert dict(mine.batch([("a", "get", 1_025, 0), ("b", "get", 1_026, 0)], watermark_ms=1_025_000)) == {"a": None, "b": 2}


def test_entries_of_a_map_expire_each_by_itself(tmp_path: Path) -> None:
    mine = instance(MapPerKey(), tmp_path, ttl_us=10_000_000, maps=(SEEN,))
    mine.batch([("a", "put", 1)], now_ms=100_000)
    assert mine.batch([("a", "put", 2)], now_ms=105_000) == [("a", 2)]
    assert mine.batch([("a", "put", 3)], now_ms=111_000) == [("a", 2)]


@pytest.mark.parametrize("processor", [Merging(), MergingPerKey()])
def test_a_merge_method_of_earlier_versions_does_no_harm(tmp_path: Path, processor: Any) -> None:
    Process(processor, shape(), False).trial()
    mine = instance(processor, tmp_path)
    mine.batch([("a", "put", 1)], now_ms=1)
    assert mine.batch([("a", "get", 0)], now_ms=2) == [("a", 1)]


@pytest.mark.parametrize("timers", [TimerClock.EVENT, TimerClock.PROCESSING])
def test_stores_can_be_described_and_made_again(timers: TimerClock) -> None:
    stores = Process(TimersPerKey(), shape(maps=(SEEN,), timers=timers, ttl_us=5, ttl_by=TimerClock.EVENT), True).stores
    assert list(stores) == ["", "seen", "timers"]
    for store in stores.values():
        assert store_from(json.loads(json.dumps(describe_store(store, ColumnNames(("k",)))))) == store


class AsTheyCome(Processor):
    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        return pa.table({"k": rows["k"], "n": rows["v"]})


class AsTheyComePerKey(KeyProcessor):
    def process(self, key: Any, rows: Any, state: Any) -> Any:
        return [(key, row.v) for row in rows]


@given(st.lists(st.tuples(keys, st.sampled_from(["", "x", None]), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1))), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_rows_come_key_by_key_in_the_order_asked_for(rows: list[tuple[Any, ...]], by_text_first: bool) -> None:
    order = ("op", "v") if by_text_first else ("v", "op")
    with tempfile.TemporaryDirectory() as folder:
        found = instance(AsTheyCome(), Path(folder), order=order).batch(rows)
        assert found == instance(AsTheyComePerKey(), Path(folder), order=order).batch(rows)
    grouped = [(key, [v for _, v in group]) for key, group in itertools.groupby(found, key=lambda row: row[0])]
    assert len(grouped) == len({key for key, *_ in rows}), "each key's rows together"
    for key, values in grouped:
        mine = [(op is not None, op or "", v) for k, op, v in rows if k == key]
        assert values == [v for *_, v in sorted(mine, key=None if by_text_first else lambda row: (row[2], *row[:2]))]
