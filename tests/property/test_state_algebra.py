"""Any sequence of upserts, deletes, compactions and slicings of state equals a dict."""

from __future__ import annotations

import itertools
import json
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import InvariantError
from headrace.ids import SLOTS, Version
from headrace.operators import store as operators
from headrace.operators.kernel import View
from headrace.operators.partials import Sum
from headrace.state import lookup
from headrace.state.compact import Compactor
from headrace.state.layout import DELETED, HASH, SUB, Layout, Policy
from headrace.state.merge import merge_rows
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.segments import sort_into_segments
from headrace.state.sequence import VersionStep, run_seq
from headrace.state.slots import SlotRanges, clip, join

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
texts = st.sampled_from([None, "", "a", "b", "ab", "é"])
whole = st.one_of(st.none(), st.integers(-3, 3))
KEYS: dict[str, tuple[tuple[pa.DataType, ...], st.SearchStrategy[Any]]] = {
    "strings": ((pa.string(),), st.tuples(texts)),
    "numbers": ((pa.int64(),), st.tuples(whole)),
    "structs": ((POINT,), st.tuples(st.one_of(st.none(), st.fixed_dictionaries({"x": whole, "y": texts})))),
    "pairs": ((pa.int32(), pa.string()), st.tuples(whole, texts)),
    "nothing": ((pa.int8(),), st.just((0,))),
}

Key = tuple[Any, ...]
SUM = (Sum(pa.int64()),)


def frozen(key: Key) -> str:
    return json.dumps(key, sort_keys=True)


@dataclass
class Store:
    """State as the engine keeps it: references to runs, seen by instances through their slots."""

    directory: Path
    layout: Layout
    bits: int
    refs: list[RunRef] = field(default_factory=list)
    version: int = 0
    routing: tuple[SlotRanges, ...] = (((0, SLOTS),),)
    files: Iterator[int] = field(default_factory=itertools.count)

    @property
    def kept(self) -> operators.Store:
        return operators.Store(self.layout, SUM)

    @property
    def reader(self) -> RunReader:
        return RunReader(self.directory, self.layout)

    def rows(
        self, keys: list[Key], values: list[int | None], subs: list[int] | None = None, deleted: list[bool] | None = None
    ) -> pa.RecordBatch:
        h = [zlib.crc32(frozen(k).encode()) % 2**self.bits << 64 - self.bits for k in keys]
        columns = {HASH: pa.array(h, pa.uint64())}
        for at, (name, kind) in enumerate(self.layout.keys):
            columns[name] = pa.array([k[at] for k in keys], kind)
        if subs is not None:
            columns[SUB] = pa.array(subs, pa.int64())
        columns["p0"] = pa.array(values, pa.int64())
        if deleted is not None:
            columns[DELETED] = pa.array(deleted)
        return pa.RecordBatch.from_pydict(columns)

    def write(self, rows: pa.RecordBatch) -> None:
        """Each instance writes a run of its own rows, as a batch does."""
        ordered, _ = sort_into_segments(rows, self.layout)
        self.version += 1
        for ranges in self.routing:
            for lo, hi in ranges:
                part = ordered.filter(pa.array([lo <= int(x) >> 52 < hi for x in ordered.column(HASH).to_pylist()], pa.bool_()))
                if part.num_rows:
                    seq = run_seq(Version(self.version), VersionStep.PROCESS)
                    self.refs.append(write_run(self.directory, self._file(), part, self.layout, seq=seq, lo=lo, hi=hi, sync=False))

    def compact(self, depth_max: int, budget: int, expired_below: int | None = None) -> None:
        kept: list[RunRef] = []
        for ranges in self.routing:
            compactor = Compactor(self.directory, self.layout, self.kept.combine, self.reader, depth_max, False, self._file)
            refs, _ = compactor.compact(clip(self.refs, ranges, self.reader), ranges, budget, expired_below)
            kept.extend(refs)
        self.refs = join(kept)

    def view(self, ranges: SlotRanges) -> View:
        return View(self.reader, clip(self.refs, ranges, self.reader), ranges)

    def scanned(self) -> list[dict[str, Any]]:
        return [row for ranges in self.routing for part in self.view(ranges).scan(self.kept) for row in part.to_pylist()]

    def _file(self) -> str:
        return f"{next(self.files)}.arrow"


@st.composite
def routings(draw: st.DrawFn) -> tuple[SlotRanges, ...]:
    """Slots cut anywhere and dealt to up to three instances, so that an instance may own several ranges."""
    edges = sorted({0, SLOTS, *draw(st.sets(st.integers(1, SLOTS - 1), max_size=4))})
    owned: list[list[tuple[int, int]]] = [[], [], []]
    for piece in itertools.pairwise(edges):
        owned[draw(st.integers(0, 2))].append(piece)
    return tuple(tuple(ranges) for ranges in owned if ranges)


def steps(keys: st.SearchStrategy[Key]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    some = st.lists(keys, max_size=6, unique_by=frozen)
    upsert = st.tuples(st.just("upsert"), some)
    delete = st.tuples(st.just("delete"), some)
    both = st.tuples(st.just("mixed"), some)
    compact = st.tuples(st.just("compact"), st.tuples(st.integers(1, 3), st.integers(1, 30)))
    route = st.tuples(st.just("route"), routings())
    return st.lists(st.one_of(upsert, upsert, delete, both, compact, route), max_size=14)


@pytest.mark.parametrize("kind", list(KEYS))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_state_equals_a_dict(kind: str, data: st.DataObject) -> None:
    types, keys = KEYS[kind]
    layout = Layout(tuple((f"k{i}", t) for i, t in enumerate(types)), (("p0", pa.int64()),))
    wanted: dict[str, tuple[Key, int]] = {}
    known: dict[str, Key] = {}
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory), layout, data.draw(st.sampled_from([1, 2, 60]), label="bits"))
        for at, (step, argument) in enumerate(data.draw(steps(keys))):
            if step == "route":
                store.routing = argument
            elif step == "compact":
                store.compact(*argument)
            elif argument:
                # In a mixed step every other key is deleted; deletes of keys that were never there must do no harm.
                deleted = [step == "delete" or (step == "mixed" and i % 2 == 1) for i in range(len(argument))]
                marks = None if step == "upsert" else deleted
                store.write(store.rows(argument, [None if d else at for d in deleted], deleted=marks))
                for key, gone in zip(argument, deleted, strict=True):
                    known[frozen(key)] = key
                    wanted.pop(frozen(key), None)
                    if not gone:
                        wanted[frozen(key)] = (key, at)
            check(store, wanted, list(known.values()))


def check(store: Store, wanted: dict[str, tuple[Key, int]], known: list[Key]) -> None:
    """By scanning and by looking up: the state is the dict."""
    names = store.layout.key_names
    found = {frozen(tuple(row[n] for n in names)): row["p0"] for row in store.scanned()}
    assert found == {name: value for name, (_, value) in wanted.items()}
    if not known:
        return
    needles, starts = sort_into_segments(store.rows(known, [0] * len(known)), store.layout)
    assert len(starts) == len(known)
    looked_up: dict[str, Any] = {}
    for ranges in store.routing:
        mine = needles.filter(pa.array([any(lo <= int(x) >> 52 < hi for lo, hi in ranges) for x in needles.column(HASH).to_pylist()]))
        which, rows = lookup.newest(store.view(ranges).runs(), mine.select([HASH, *names]), store.layout)
        assert which.tolist() == sorted(set(which.tolist()))
        asked = [frozen(tuple(row[n] for n in names)) for row in mine.to_pylist()]
        looked_up.update(zip([asked[i] for i in which], rows.column("p0").to_pylist(), strict=True))
    assert looked_up == found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_parts_of_panes_add_up(data: st.DataObject) -> None:
    """Where state is a sum of parts, merging parts in any order and dropping what has expired gives the sums."""
    layout = Layout((("k0", pa.string()),), (("p0", pa.int64()),), has_sub=True, policy=Policy.COMBINE)
    row = st.tuples(st.tuples(texts), st.integers(0, 4), st.integers(-5, 5))
    write = st.tuples(st.just("write"), st.lists(row, max_size=6, unique_by=lambda r: (r[0], r[1])))
    compact = st.tuples(st.just("compact"), st.tuples(st.integers(1, 3), st.integers(1, 30)))
    expire = st.tuples(st.just("expire"), st.integers(0, 4))
    route = st.tuples(st.just("route"), routings())
    wanted: dict[tuple[Any, int], int] = {}
    live_from = 0
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory), layout, data.draw(st.sampled_from([1, 60]), label="bits"))
        for step, argument in data.draw(st.lists(st.one_of(write, write, compact, expire, route), max_size=14)):
            if step == "route":
                store.routing = argument
            elif step == "compact":
                store.compact(*argument, expired_below=live_from)
            elif step == "expire":
                live_from = max(live_from, argument)
                wanted = {k: v for k, v in wanted.items() if k[1] >= live_from}
            else:
                rows = [r for r in argument if r[1] >= live_from]
                if rows:
                    store.write(store.rows([k for k, _, _ in rows], [v for _, _, v in rows], subs=[s for _, s, _ in rows]))
                for (key,), sub, value in rows:
                    wanted[key, sub] = wanted.get((key, sub), 0) + value
            found = {(r["k0"], r[SUB]): r["p0"] for r in store.scanned() if r[SUB] >= live_from}
            assert found == wanted


@settings(max_examples=50, deadline=None)
@given(st.integers(0, SLOTS), st.integers(0, SLOTS), routings())
def test_a_run_cut_and_joined_is_the_run(a: int, b: int, routing: tuple[SlotRanges, ...]) -> None:
    lo, hi = min(a, b), max(a, b)
    if lo == hi:
        return
    ref = RunRef("f", 1, 1, rows=4096 * (hi - lo), seq=1, lo=lo, hi=hi)
    parts = [part for ranges in routing for part in clip([ref], ranges)]
    assert sum(p.hi - p.lo for p in parts) == hi - lo
    assert [replace(r, rows=0) for r in join(parts)] == [replace(ref, rows=0)]


def test_parts_of_a_sum_cannot_be_deleted() -> None:
    """A tombstone ends what is older; a part of a sum is not the whole, so it would have to be both."""
    layout = Layout((("k0", pa.string()),), (("p0", pa.int64()),), has_sub=True, policy=Policy.COMBINE)
    store = Store(Path(), layout, 60)
    rows = store.rows([("a",)], [1], subs=[0], deleted=[True])
    with pytest.raises(InvariantError, match="tombstone"):
        merge_rows([rows, rows], layout, store.kept.combine)


def test_a_merge_that_does_not_reach_the_oldest_run_keeps_tombstones() -> None:
    layout = Layout((("k0", pa.string()),), (("p0", pa.int64()),))
    store = Store(Path(), layout, 60)
    newer = store.rows([("a",)], [None], deleted=[True])
    older = store.rows([("a",)], [1])
    assert merge_rows([newer, older], layout, store.kept.combine, keep_deleted=True).column(DELETED).to_pylist() == [True]
    assert merge_rows([newer, older], layout, store.kept.combine).num_rows == 0
    assert merge_rows([newer], layout, store.kept.combine).schema == layout.schema
    assert np.all(merge_rows([older], layout, store.kept.combine).column("p0").to_numpy() == 1)
