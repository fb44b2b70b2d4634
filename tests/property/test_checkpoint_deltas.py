"""What checkpoints leave in the durable store is the state of the version that they captured, whatever happened before."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.availability.ordering import STORE, shipping_order
from headrace.control.availability.scheduling import FIRST, ScheduleConfig
from headrace.control.availability.units import HaUnit
from headrace.ids import NO_VERSION, SLOTS, RunSeq, StoreId, Version
from headrace.operators.kernel import View
from headrace.operators.partials import Sum
from headrace.operators.store import Store
from headrace.runtime.lending import Files
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.portions import EarlyShipments, Portion, composed, portions_of_store
from headrace.runtime.safety.shipping import Ship, Shipped
from headrace.state.compact import Compactor
from headrace.state.delta import DEPTH_MAX, depth_of, wear
from headrace.state.durable import FolderStore
from headrace.state.layout import DELETED, HASH, Layout, Policy
from headrace.state.manifest import Manifest, StoreState
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.segments import sort_into_segments
from headrace.state.sequence import VersionStep, run_seq
from headrace.state.slots import SlotRanges, clip, join
from headrace.state.working import Working
from tests.property.test_state_algebra import routings

ID = StoreId.parse("op")


@dataclass
class Life:
    """A store at home and in the durable store, and a dict that says what it should hold."""

    folder: Path
    policy: Policy
    routing: tuple[SlotRanges, ...] = (((0, SLOTS),),)
    version: int = -1
    home: list[RunRef] = field(default_factory=list)
    model: dict[int, int] = field(default_factory=dict)
    durable: Manifest | None = None
    frozen: dict[int, int] = field(default_factory=dict)
    early: EarlyShipments = field(default_factory=EarlyShipments)
    names: Iterator[int] = field(default_factory=itertools.count)
    shipped_rows: int = 0

    def __post_init__(self) -> None:
        (self.folder / "durable" / "runs").mkdir(parents=True)
        partials = (Sum(pa.int64()),) if self.policy is Policy.COMBINE else ()
        self.store = Store(Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.int64()),), policy=self.policy), partials)
        self.files = Files(FolderStore(self.folder / "durable" / "runs"), str(self.folder / "home"))
        self.working = self.files.here()
        self.copies = Copies()

    @property
    def reader(self) -> RunReader:
        return RunReader(self.files.runs, self.store.layout, self.working, writes_home=True)

    def write(self, keys: list[int], deleted: bool) -> None:
        """A version: every instance writes a run of its rows, at home."""
        self.version += 1
        if deleted and self.policy is Policy.COMBINE:
            return
        for key in keys:
            if deleted:
                self.model.pop(key, None)
            else:
                self.model[key] = self.version if self.policy is Policy.REPLACE else self.model.get(key, 0) + self.version
        columns = {HASH: pa.array([key << 56 for key in keys], pa.uint64()), "k0": pa.array(keys, pa.int64())}
        columns["p0"] = pa.array([self.version] * len(keys), pa.int64())
        if deleted:
            columns[DELETED] = pa.array([True] * len(keys))
        rows, _ = sort_into_segments(pa.RecordBatch.from_pydict(columns), self.store.layout)
        for ranges in self.routing:
            for lo, hi in ranges:
                part = rows.filter(pa.array([lo <= int(h) >> 52 < hi for h in rows.column(HASH).to_pylist()], pa.bool_()))
                if part.num_rows:
                    seq = run_seq(Version(self.version), VersionStep.PROCESS)
                    ref = write_run(self.reader.writes_to, self._file(), part, self.store.layout, seq=seq, lo=lo, hi=hi, sync=False)
                    self.home.append(ref)

    def _file(self) -> str:
        file = f"v{max(self.version, 0):012d}-op-i0-e1x00000000-a{next(self.names)}-run.arrow"
        self.copies.add(file, "driver")
        return file

    def compact(self, depth_max: int, budget: int) -> None:
        boundaries = {NO_VERSION if self.durable is None else self.durable.version, *self.early.versions()}
        kept: list[RunRef] = []
        for ranges in self.routing:
            layout = self.store.layout
            compactor = Compactor(
                self.reader.writes_to, layout, self.store.combine, self.reader, depth_max, False, self._file, tuple(boundaries)
            )
            kept += compactor.compact(clip(self.home, ranges, self.reader), ranges, budget, None)[0]
        self.home = join(kept)

    def checkpoint(self, arrives: list[bool]) -> None:
        """Capture, and ship. It is broken off if some unit does not arrive."""
        if self.version < 0:
            return
        captured = Manifest(Version(self.version), "1x00000000", {ID: StoreState(tuple(self.home))})
        portions = self._portions(captured)
        shipped, complete = Shipped(), True
        for portion, fine in zip(portions, itertools.cycle(arrives)):
            name = f"v{self.version:012d}-op-i{portion.instance}-e1x00000000-a{next(self.names)}-delta"
            merged = portion.merged(name)
            if not fine:
                complete = False
                continue
            for arrived, refs, _ in Ship(self.files, ()).ship(portion.raw(self.copies) if merged is None else [merged]):
                shipped.add(arrived, refs, 0)
            shipped.refs[portion.unit] = portion.arrived(shipped.refs, name)
            self.early.note(portion, captured.version, shipped.refs[portion.unit])
        if complete:
            stores = composed(captured, self.durable, [(each, shipped.refs[each.unit]) for each in portions])
            self.durable = Manifest(captured.version, captured.writer, stores)
            self.copies.shipped(self.durable)
            self.frozen, self.early = dict(self.model), EarlyShipments()

    def _portions(self, captured: Manifest) -> list[Portion]:
        home = captured.stores[ID].runs
        if self.durable is None:
            return [Portion("whole", ID, 0, self.store, ((0, SLOTS),), None, home)]
        return portions_of_store(ID, self.store, self.routing, home, self.durable.stores[ID].runs, self.durable.version, self.early)

    def scanned(self, refs: list[RunRef], working: Working | None) -> dict[int, int]:
        reader = RunReader(self.files.runs, self.store.layout, working)
        view = View(reader, clip(refs, ((0, SLOTS),), reader), ((0, SLOTS),))
        rows = [row for part in view.scan(self.store) for row in part.to_pylist()]
        assert len({row["k0"] for row in rows}) == len(rows)
        return {row["k0"]: row["p0"] for row in rows}


def steps() -> st.SearchStrategy[list[tuple[str, Any]]]:
    keys = st.lists(st.integers(0, 15).map(lambda key: 15 * key), min_size=1, max_size=8, unique=True)
    upsert, delete = st.tuples(st.just("upsert"), keys), st.tuples(st.just("delete"), keys)
    compact = st.tuples(st.just("compact"), st.tuples(st.integers(1, 2), st.sampled_from([5, 1000, 1000])))
    route = st.tuples(st.just("route"), routings())
    checkpoint = st.tuples(st.just("checkpoint"), st.one_of(st.just([True]), st.lists(st.booleans(), min_size=1, max_size=3)))
    step = st.one_of(upsert, upsert, delete, compact, compact, route, checkpoint, checkpoint)
    return st.lists(step, min_size=15, max_size=25)


@pytest.mark.parametrize("policy", [Policy.REPLACE, Policy.COMBINE])
@settings(max_examples=40, deadline=None)
@given(steps())
def test_the_durable_version_is_the_captured_one(policy: Policy, done: list[tuple[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), policy)
        for what, how in [*done, ("upsert", [1, 39]), ("checkpoint", [True])]:
            match what:
                case "compact":
                    life.compact(*how)
                case "route":
                    life.routing = how
                case "checkpoint":
                    life.checkpoint(how)
                case _:
                    life.write(how, what == "delete")
            assert life.scanned(life.home, life.working) == life.model
            if life.durable is not None:
                refs = list(life.durable.stores[ID].runs)
                assert life.scanned(refs, None) == life.frozen
                assert all((Path(life.files.runs) / ref.file).exists() for ref in refs)
        assert life.frozen == life.model, "the last checkpoint arrived"


def test_a_key_that_was_updated_often_is_shipped_once(tmp_path: Path) -> None:
    life = Life(tmp_path, Policy.REPLACE)
    life.write(list(range(200)), deleted=False)
    life.checkpoint([True])
    for _ in range(6):
        life.write([5, 7], deleted=False)
    life.checkpoint([True])
    assert life.durable is not None
    refs = life.durable.stores[ID].runs
    assert [ref.rows for ref in refs] == [2, 200], "a delta of two rows on the base"
    life.compact(1, 10**6)
    life.checkpoint([True])
    assert life.durable.stores[ID].runs == refs, "what compaction made of the base at home is not shipped"


def test_the_base_is_renewed_when_it_is_deep(tmp_path: Path) -> None:
    life = Life(tmp_path, Policy.REPLACE)
    life.write(list(range(100)), deleted=False)
    deepest = 0
    for at in range(60):
        life.checkpoint([True])
        assert life.durable is not None
        deepest = max(deepest, depth_of(life.durable.stores[ID].runs))
        life.write([at], deleted=False)
        life.compact(3, 10**6)
    assert deepest == DEPTH_MAX, "a single instance need not wait for its turn"
    assert wear([], [RunRef("a", 1, 0, 1, RunSeq(0))]) == 0


amounts = st.tuples(st.floats(0, 10), st.floats(0.01, 10))


@settings(max_examples=100, deadline=None)
@given(st.lists(amounts, min_size=1, max_size=5), st.lists(st.sampled_from(["a", "b"]), min_size=5, max_size=5))
def test_min_max_loses_least_wherever_a_checkpoint_breaks_off(loads: list[tuple[float, float]], servers: list[str]) -> None:
    """No other order has less processing that is not captured, on average over the time of the shipping."""
    units = [HaUnit(f"u{at}", servers[at], STORE, redo, capture) for at, (redo, capture) in enumerate(loads)]
    by_name = {unit.name: unit for unit in units}

    def exposed(names: tuple[str, ...]) -> float:
        clock, found = 0.0, 0.0
        for name in names:
            clock += by_name[name].capture_s
            found += by_name[name].redo_s * clock
        return found

    order, _ = shipping_order(units, ScheduleConfig(paste_factor=0.0))
    assert sorted(name for names in order.values() for name in names) == sorted(by_name)
    for server, names in order.items():
        assert all(by_name[name].primary == server for name in names)
        assert exposed(names) <= min(map(exposed, itertools.permutations(names))) + 1e-6


@given(st.lists(amounts, min_size=1, max_size=6), st.integers(1, 12))
def test_round_robin_begins_with_another_unit_each_time(loads: list[tuple[float, float]], times: int) -> None:
    units = [HaUnit(f"u{at}", "a", STORE, redo + 0.1, capture) for at, (redo, capture) in enumerate(loads)]
    turn = FIRST
    for at in range(times):
        order, turn = shipping_order(units, ScheduleConfig("round-robin", paste_factor=0.0), turn)
        first = at % len(units)
        assert [int(name[1:]) for name in order["a"]] == [*range(first, len(units)), *range(first)]
    whole, _ = shipping_order([HaUnit("u", "a", STORE, age_s=30), HaUnit("v", "a", STORE)], ScheduleConfig("whole"))
    assert whole == {"a": ("u", "v")}
