"""State that is computed again from sigma on, beginning empty, is the state that all batches give.

Chains of real kernels over real runs. After each version the state is computed again from the first batch on which it depends. Then both
get the rest of the batches, and must give the same results and hold the same rows.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ids import SLOTS, OperatorId, StoreId, Version, WriterId
from headrace.operators.dedup import DropDuplicates
from headrace.operators.join import StreamJoin
from headrace.operators.kernel import Applied, Moment, Operator, OutputMode, View
from headrace.operators.lifetime import NEVER
from headrace.operators.pairing import Pairing
from headrace.operators.partials import Sum
from headrace.operators.windowed import WindowedAggregate
from headrace.operators.windows import TimeWindow
from headrace.runtime.safety.sigma import Memory, Sigma
from headrace.state.layout import Layout, Policy
from headrace.state.manifest import Manifest, StoreState
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.sequence import VersionStep, run_seq
from tests.examples import examples

MS = 1000
KEYS = (("k0", pa.int64()),)

Row = tuple[int, int, int]
"""Key, time in microseconds, value."""
History = list[tuple[list[Row], int]]
"""Batches of rows, and the watermark in milliseconds after each."""


def windows(size_ms: int, advance_ms: int) -> WindowedAggregate:
    layout = Layout(KEYS, (("p0", pa.int64()),), has_sub=True, policy=Policy.COMBINE)
    return WindowedAggregate(layout, (Sum(pa.int64()),), TimeWindow(size_ms * MS, advance_ms * MS))


def duplicates() -> DropDuplicates:
    payload = pa.schema([("c0", pa.int64()), ("c1", pa.int64()), ("c2", pa.int64())])
    return DropDuplicates(Layout((*KEYS, ("k1", pa.int64())), (), has_sub=True), payload)


def join(within_ms: int, outer: bool) -> StreamJoin:
    layout = Layout(KEYS, (("p0", pa.int64()),), has_sub=True, policy=Policy.KEEP)
    return StreamJoin.within(Pairing((layout, layout), (("v0",), ("v0",)), False), within_ms * MS, (outer, outer))


def arrow(operator: Operator, rows: list[Row]) -> pa.RecordBatch:
    """Rows in the columns of an operator's input."""
    key, time, value = (np.array(each, dtype=np.int64) for each in (list(zip(*rows, strict=True)) or [(), (), ()]))
    sub = time
    if isinstance(operator, WindowedAggregate):
        window = operator.window
        within = (time - window.offset_us) % window.advance_us
        sub = time - within + np.where((window.remainder_us > 0) & (within >= window.remainder_us), window.remainder_us, 0)
    made = {
        "h": key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        "side": (value % 2).astype(np.int8),
        "k0": key,
        "k1": time,
        "sub": sub,
        "p0": value,
        "v0": value,
        "c0": key,
        "c1": time,
        "c2": value,
    }
    return pa.RecordBatch.from_arrays([pa.array(made[f.name], f.type) for f in operator.input_schema], schema=operator.input_schema)


def results(operator: Operator, rows: list[dict[str, Any]]) -> list[Row]:
    """What an operator gave, as rows for the next one. The time of a window is the last moment in it."""
    if isinstance(operator, WindowedAggregate):
        return [(row["k0"], row["w"] + operator.window.size_us - 1, row["p0"]) for row in rows]
    if isinstance(operator, DropDuplicates):
        return [(row["c0"], row["c1"], row["c2"]) for row in rows]
    times = [(row["k0"], row["lt"] if row["lt"] is not None else row["rt"], row) for row in rows]
    return [(key, time, (row["l0"] or 0) * 1000 + (row["r0"] or 0)) for key, time, row in times]


@dataclass
class Chain:
    """Operators, each reading the one before, with their state in runs."""

    operators: Sequence[Operator]
    folder: Path
    watermark_ms: int = 0
    version: int = 0
    refs: dict[StoreId, list[RunRef]] = field(default_factory=dict)
    names: Iterator[int] = field(default_factory=itertools.count)

    def memories(self) -> tuple[Memory, ...]:
        found = []
        for at, operator in enumerate(self.operators):
            lifetimes, back_us = tuple(store.lifetime for store in operator.stores.values()), operator.looks_back_us(OutputMode.APPEND)
            assert back_us is not None
            readers = (OperatorId(str(at + 1)),) if at + 1 < len(self.operators) else ()
            found.append(Memory(OperatorId(str(at)), lifetimes, back_us, self.hold_ms(at), readers))
        return tuple(found)

    def hold_ms(self, at: int) -> int:
        return sum((each.keep_us[0] or 0) // MS for each in self.operators[:at] if isinstance(each, StreamJoin))

    def batch(self, rows: list[Row], until_ms: int) -> Counter[Row]:
        """Run a batch, then let the watermark move on. Returns the results of the last operator."""
        given, found = rows, Counter[Row]()
        for at, operator in enumerate(self.operators):
            applied = operator.apply(arrow(operator, given), self.views(at), self.moment(at))
            given = self.taken(at, applied, VersionStep.PROCESS)
        found.update(given)
        if until_ms > self.watermark_ms:
            given = []
            for at, operator in enumerate(self.operators):
                applied = operator.apply(arrow(operator, given), self.views(at), self.moment(at))
                given = self.taken(at, applied, VersionStep.FLUSH)
                held_ms = max(0, until_ms - self.hold_ms(at))
                given += self.taken(at, operator.close(self.views(at), self.moment(at), held_ms), VersionStep.FLUSH)
            found.update(given)
            self.watermark_ms = until_ms
        self.forget()
        self.version += 1
        return found

    def views(self, at: int) -> dict[str, View]:
        stores = self.operators[at].stores
        return {
            name: View(RunReader(self.folder, store.layout), list(self.refs.get(StoreId(OperatorId(str(at)), name), [])), ((0, SLOTS),))
            for name, store in stores.items()
        }

    def moment(self, at: int) -> Moment:
        return Moment(OutputMode.APPEND, max(0, self.watermark_ms - self.hold_ms(at)))

    def taken(self, at: int, applied: Applied, step: VersionStep) -> list[Row]:
        emitted = [row for part in applied.results() for row in part.to_pylist()]
        for name, rows in applied.changed.items():
            layout, number = self.operators[at].stores[name].layout, next(self.names)
            seq = run_seq(Version(self.version), step)
            ref = write_run(self.folder, f"{number}.arrow", rows, layout, seq=seq, lo=0, hi=SLOTS, sync=False)
            self.refs.setdefault(StoreId(OperatorId(str(at)), name), []).insert(0, ref)
        return results(self.operators[at], emitted)

    def forget(self) -> None:
        """Drop runs with nothing that lives, as the engine does."""
        for name, refs in self.refs.items():
            live_from = self.live_from(name)
            self.refs[name] = [ref for ref in refs if ref.sub_max is None or ref.sub_max >= live_from]

    def live_from(self, name: StoreId) -> int:
        at = int(name.operator)
        found = self.operators[at].stores[name.name].lifetime.live_from(max(0, self.watermark_ms - self.hold_ms(at)))
        assert found is not None
        return found

    def state(self) -> dict[StoreId, Counter[tuple[Any, ...]]]:
        """The rows that live, merged over runs."""
        found = {}
        for at, operator in enumerate(self.operators):
            for name, view in self.views(at).items():
                store = StoreId(OperatorId(str(at)), name)
                parts = view.scan(operator.stores[name], sub_min=self.live_from(store))
                found[store] = Counter(tuple(row.values()) for part in parts for row in part.to_pylist())
        return found

    def manifest(self) -> Manifest:
        """The manifest of the last version."""
        stores = {name: StoreState(tuple(refs), self.watermark_ms) for name, refs in self.refs.items()}
        return Manifest(Version(self.version - 1), WriterId("w"), stores, watermark_ms=self.watermark_ms)


CHAINS: list[list[Operator]] = [
    [windows(20, 20)],
    [windows(23, 5)],
    [windows(0, 1)],
    [duplicates()],
    [join(7, outer=False)],
    [join(7, outer=True)],
    [duplicates(), windows(20, 10)],
    [join(6, outer=True), windows(12, 12)],
    [windows(10, 5), windows(30, 10)],
    [duplicates(), join(5, outer=False), windows(10, 10)],
]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Event times go forward, at times far ahead or behind. The watermark follows, at times long after: another source was idle."""
    found: History = []
    watermark_ms, base_ms = 0, 100
    for _ in range(draw(st.integers(4, 12))):
        base_ms += draw(st.sampled_from([0, 3, 8, 20, 60]))
        time = st.integers(max(1, base_ms - 30), base_ms + 30)
        rows = draw(st.lists(st.tuples(st.integers(0, 2), time, st.integers(0, 9)), max_size=8))
        newest_ms = max((each for _, each, _ in rows), default=0)
        if draw(st.booleans()):
            watermark_ms = max(watermark_ms, min(newest_ms, base_ms) - draw(st.integers(0, 15)))
        found.append(([(key, each * MS + value, value) for key, each, value in rows], watermark_ms))
    return found


def check(operators: list[Operator], history: History, sigmas: list[int], lost: Sequence[int]) -> None:
    """Play a history. Then play it again from the sigma of versions that were lost, and compare what comes then."""
    with tempfile.TemporaryDirectory() as folder:
        whole, noted = Chain(operators, Path(folder)), dict[Version, Version]()
        sigma = Sigma(whole.memories(), lambda version: noted[version])
        states, given, before = [], [], None
        for rows, watermark_ms in history:
            given.append(whole.batch(rows, watermark_ms))
            states.append(whole.state())
            manifest = whole.manifest()
            noted[manifest.version] = sigma.note(manifest, before)
            before = manifest
        sigmas.extend(noted.values())
        assert list(noted.values()) == sorted(noted.values()), "sigma never goes back"
        for version in sorted({Version(each % len(history)) for each in lost}):
            since = noted[version]
            inner = Path(folder) / f"again-{version}"
            inner.mkdir()
            again = Chain(operators, inner, watermark_ms=history[since - 1][1] if since else 0, version=since)
            for rows, watermark_ms in history[since : version + 1]:
                again.batch(rows, watermark_ms)
            if since <= version:
                assert again.state() == states[version], f"the state of version {version}, from batch {since} on"
            else:
                assert not any(states[version].values()), "nothing lives"
            for later in range(version + 1, len(history)):
                assert again.batch(*history[later]) == given[later], f"results of {later} after version {version} was computed again"


@pytest.mark.parametrize("operators", CHAINS, ids=lambda each: "+".join(type(op).__name__ for op in each))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories(), lost=st.lists(st.integers(0, 11), min_size=1, max_size=2))
def test_state_from_sigma_on_is_the_whole_state(operators: list[Operator], history: History, lost: list[int]) -> None:
    check(operators, history, [], lost)


@pytest.mark.parametrize("operators", CHAINS, ids=lambda each: "+".join(type(op).__name__ for op in each))
def test_sigma_follows_the_watermark(operators: list[Operator]) -> None:
    steady: History = [([(at % 3, (100 + 10 * at) * MS, at % 10), (1, (95 + 10 * at) * MS, 4)], 95 + 10 * at) for at in range(30)]
    sigmas: list[int] = []
    check(operators, steady, sigmas, [20])
    assert all(version - since <= 8 for version, since in enumerate(sigmas)), "it stays within what operators can remember"


def test_a_row_without_event_time_is_never_forgotten() -> None:
    times_us = [NEVER if at == 3 else (100 + 10 * at) * MS for at in range(12)]
    history: History = [([(1, time_us, 0)], 95 + 10 * at) for at, time_us in enumerate(times_us)]
    sigmas: list[int] = []
    check([duplicates()], history, sigmas, [4, 11])
    assert sigmas[-1] == 3, "the batch with that row"


def test_results_of_a_join_are_older_than_the_watermark() -> None:
    first: list[Row] = [(1, 97 * MS, 2), (1, 98 * MS, 3)]
    history: History = [(first, 0), ([(2, 130 * MS, 2)], 110), ([], 500)]
    sigmas: list[int] = []
    check([join(6, outer=False), windows(12, 12)], history, sigmas, [1])
    assert sigmas == [0, 0, 3], "the pair is in a window that is still open, because the watermark is held back behind a join"
