"""Kernels of joins and products, batch by batch over real runs, compared with brute force over all pairs."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.ids import SLOTS
from headrace.operators import expressions as E
from headrace.operators import product
from headrace.operators.description import ColumnNames, store_from
from headrace.operators.join import StreamJoin
from headrace.operators.kernel import Applied, Moment, Operator, OutputMode, View
from headrace.operators.last import LastJoin
from headrace.operators.matching import Needles, candidates, expand
from headrace.operators.pairing import Pairing
from headrace.operators.product import WindowedProduct, time_blocks
from headrace.state.compact import Compactor
from headrace.state.layout import Layout, Policy
from headrace.state.run import RunReader, write_run
from headrace.state.sequence import VersionStep, run_seq
from tests.examples import examples

MS = 1000
LAYOUT = Layout((("k0", pa.int64()),), (("p0", pa.int64()),), has_sub=True, policy=Policy.KEEP)
LESS = E.Compare("lt", E.Column("left", "p0"), E.Column("right", "p0"))

Row = tuple[int, int, int, int]
"""Side, key, time in milliseconds, value."""


@dataclass
class Instance:
    """One instance with its runs in a folder, compacted after every batch."""

    operator: Operator
    folder: Path
    hash_bits: int = 64
    watermark_ms: int = 0
    version: int = 0
    views: dict[str, View] = field(default_factory=dict)
    names: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        for name, store in self.operator.stores.items():
            self.views[name] = View(RunReader(self.folder, store.layout), [], ((0, SLOTS),))

    def batch(self, rows: list[Row], until_ms: int) -> list[dict[str, Any]]:
        moment = Moment(OutputMode.APPEND, self.watermark_ms)
        applied = self.operator.apply(self._arrow(rows), self.views, moment)
        self._write(applied, VersionStep.PROCESS)
        emitted = list(applied.results())
        if until_ms > self.watermark_ms:
            stores = self.operator.stores
            refs = [(stores[name], ref) for name, view in self.views.items() for ref in view.refs]
            if any(store.lifetime.is_due(ref, self.watermark_ms, until_ms) for store, ref in refs):
                closed = self.operator.close(self.views, moment, until_ms)
                self._write(closed, VersionStep.FLUSH)
                emitted += closed.results()
            self.watermark_ms = until_ms
        self._compact()
        self.version += 1
        for part in emitted:
            assert part.schema == self.operator.output_schema
        return [row for part in emitted for row in part.to_pylist()]

    def _arrow(self, rows: list[Row]) -> pa.RecordBatch:
        made = {
            "h": np.array([_hash(key, self.hash_bits) for _, key, _, _ in rows], dtype=np.uint64),
            "k0": np.array([key for _, key, _, _ in rows], dtype=np.int64),
            "sub": np.array([time * MS for _, _, time, _ in rows], dtype=np.int64),
            "side": np.array([side for side, _, _, _ in rows], dtype=np.int8),
            "v0": np.array([value for _, _, _, value in rows], dtype=np.int64),
            "tie": np.array([value for _, _, _, value in rows], dtype=np.int64),
        }
        schema = self.operator.input_schema
        return pa.RecordBatch.from_arrays([pa.array(made[f.name], f.type) for f in schema], schema=schema)

    def _write(self, applied: Applied, step: VersionStep) -> None:
        for name, rows in applied.changed.items():
            layout = self.operator.stores[name].layout
            seq = run_seq(self.version, step)
            ref = write_run(self.folder, f"{next(self.names)}.arrow", rows, layout, seq=seq, lo=0, hi=SLOTS, sync=False)
            self.views[name] = replace(self.views[name], refs=[ref, *self.views[name].refs])

    def _compact(self) -> None:
        for name, view in self.views.items():
            store = self.operator.stores[name]
            live_from = store.lifetime.live_from(self.watermark_ms)
            compactor = Compactor(self.folder, store.layout, store.combine, view.reader, 2, False, lambda: f"{next(self.names)}.arrow")
            refs, _ = compactor.compact(view.refs, view.ranges, 10**6, live_from)
            kept = [ref for ref in refs if live_from is None or ref.sub_max is None or ref.sub_max >= live_from]
            self.views[name] = replace(view, refs=kept)


def _hash(key: int, bits: int) -> int:
    mixed = (key * 0x9E3779B97F4A7C15 + 12345) % 2**64
    return mixed >> (64 - bits) << (64 - bits)


def pairing(condition: E.Expr | None = None, one_input: bool = False, keyed: bool = True) -> Pairing:
    layout = LAYOUT if keyed else replace(LAYOUT, keys=())
    return Pairing((layout, layout), (("v0",), ("v0",)), one_input, condition)


def seen(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Times and values of each pair."""
    return Counter(tuple(row[name] for name in ("lt", "l0", "rt", "r0")) for row in rows)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Row], int]]:
    """Batches of rows, and the watermark after each; values tell rows apart. Some rows are late."""
    numbers = itertools.count()
    found, watermark = [], 0
    for at in range(draw(st.integers(1, 5))):
        rows = st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(max(1, at * 8 - 14), at * 8 + 16), st.just(0))
        watermark = max(watermark, draw(st.integers(at * 8 - 10, at * 8 + 8)))
        found.append(([(s, k, t, next(numbers)) for s, k, t, _ in draw(st.lists(rows, max_size=14))], watermark))
    return [*found, ([], 10_000)]


def in_time(history: list[tuple[list[Row], int]]) -> list[Row]:
    watermarks = [0, *(watermark for _, watermark in history)]
    return [row for (rows, _), watermark in zip(history, watermarks, strict=False) for row in rows if row[2] > watermark]


def play(operator: Operator, history: list[tuple[list[Row], int]], hash_bits: int = 64) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        instance = Instance(operator, Path(folder), hash_bits)
        return [row for rows, watermark in history for row in instance.batch(rows, watermark)]


def matches(left: Row, right: Row, within: int, keyed: bool, condition: bool) -> bool:
    return (not keyed or left[1] == right[1]) and abs(left[2] - right[2]) <= within and (not condition or left[3] < right[3])


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(0, 9), st.booleans(), st.tuples(st.booleans(), st.booleans()), st.booleans(), st.sampled_from([0, 1, 64]))
def test_a_join_finds_every_pair_once_and_rows_without_partners_once(
    history: list[tuple[list[Row], int]], within: int, one_input: bool, outer: tuple[bool, bool], condition: bool, hash_bits: int
) -> None:
    rows = in_time(history)
    left = rows if one_input else [row for row in rows if row[0] == 0]
    right = rows if one_input else [row for row in rows if row[0] == 1]
    pairs = [(a, b) for a in left for b in right if matches(a, b, within, True, condition)]
    wanted = Counter((a[2] * MS, a[3], b[2] * MS, b[3]) for a, b in pairs)
    if outer[0]:
        wanted.update((a[2] * MS, a[3], None, None) for a in left if not any(a is x for x, _ in pairs))
    if outer[1]:
        wanted.update((None, None, b[2] * MS, b[3]) for b in right if not any(b is x for _, x in pairs))
    operator = StreamJoin.within(pairing(LESS if condition else None, one_input), within * MS, outer)
    assert seen(play(operator, history, hash_bits)) == wanted


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(0, 9), st.booleans())
def test_a_product_finds_every_pair_once(history: list[tuple[list[Row], int]], within: int, condition: bool) -> None:
    rows = in_time(history)
    pairs = [(a, b) for a in rows for b in rows if (a[0], b[0]) == (0, 1) and matches(a, b, within, False, condition)]
    operator = WindowedProduct(pairing(LESS if condition else None, keyed=False), within * MS)
    # One cell: the compiler decides where rows go.
    assert seen(play(operator, history, hash_bits=0)) == Counter((a[2] * MS, a[3], b[2] * MS, b[3]) for a, b in pairs)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories(), st.integers(1, 4), st.booleans(), st.booleans(), st.sampled_from([0, 1, 64]))
def test_a_row_meets_the_last_rows_before_it(
    history: list[tuple[list[Row], int]], size: int, one_input: bool, condition: bool, hash_bits: int
) -> None:
    rows = in_time(history)
    both = [(side, *row[1:]) for row in rows for side in (0, 1)] if one_input else rows
    order = sorted(both, key=lambda row: (row[2], row[0], row[3]))
    wanted: Counter[tuple[Any, ...]] = Counter()
    for at, row in enumerate(order):
        before = [other for other in order[:at] if other[0] != row[0] and other[1] == row[1]][-size:]
        for other in before:
            a, b = (row, other) if row[0] == 0 else (other, row)
            if not condition or a[3] < b[3]:
                wanted[a[2] * MS, a[3], b[2] * MS, b[3]] += 1
    operator = LastJoin(pairing(LESS if condition else None, one_input), size)
    assert seen(play(operator, history, hash_bits)) == wanted


def test_large_products_are_cut_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "BLOCK_PAIRS_MIN", 10_000)
    rng = np.random.default_rng(3)
    rows: list[Row] = [(int(s), 0, int(t), int(v)) for s, t, v in zip(*rng.integers(1, [2, 900, 99999], (3000, 3)).T, strict=True)]
    rows = [(at % 2, k, t, v) for at, (_, k, t, v) in enumerate(rows)]
    near = E.Compare(
        "lt",
        E.Abs(E.Arithmetic("subtract", E.Column("left", "p0"), E.Column("right", "p0"))),
        E.Literal(700, "int64"),
    )
    history = [(rows[:2000], 0), (rows[2000:], 0)]
    found = play(WindowedProduct(pairing(near, keyed=False), 40 * MS), history, hash_bits=0)
    left, right = (np.array([row[2:] for row in rows if row[0] == side]) for side in (0, 1))
    close = np.abs(left[:, None, 0] - right[None, :, 0]) <= 40
    close &= np.abs(left[:, None, 1] - right[None, :, 1]) < 700
    at = np.nonzero(close)
    wanted = Counter((int(left[i, 0]) * MS, int(left[i, 1]), int(right[j, 0]) * MS, int(right[j, 1])) for i, j in zip(*at, strict=True))
    assert len(wanted) > 500
    assert seen(found) == wanted


def test_stores_of_joins_are_rebuilt_from_their_descriptions() -> None:
    for operator in (StreamJoin.within(pairing(), 5, outer=(True, False)), WindowedProduct(pairing(), 5), LastJoin(pairing(), 3)):
        about = json.loads(json.dumps(operator.describe(dict.fromkeys(operator.stores, ColumnNames(("k",), ("v",), "ts")))))
        assert {name: store_from(each) for name, each in about.items()} == operator.stores


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 100])
def test_stretches_are_expanded_in_chunks(chunk: int) -> None:
    begin, end = np.array([5, 0, 3, 9]), np.array([9, 0, 4, 12])
    parts = list(expand(begin, end, chunk))
    assert all(len(which) <= chunk for which, _ in parts)
    pairs = [(int(i), int(at)) for which, where in parts for i, at in zip(which, where, strict=True)]
    assert pairs == [(i, at) for i in range(4) for at in range(begin[i], end[i])]


def test_a_hot_key_beside_many_others_is_bisected() -> None:
    rng = np.random.default_rng(5)
    key = np.where(rng.random(5000) < 0.5, 0, rng.integers(0, 1000, 5000))
    rows = pa.RecordBatch.from_arrays(
        [pa.array(np.array([_hash(int(k), 64) for k in key], dtype=np.uint64)), pa.array(key), pa.array(rng.integers(0, 10**6, 5000)), key],
        schema=LAYOUT.schema,
    )
    order = np.lexsort((rows.column("sub").to_numpy(), rows.column("h").to_numpy()))
    rows = rows.take(pa.array(order))
    found = candidates(Needles.of(rows, LAYOUT), rows, LAYOUT, 1000, 1000)
    assert found.certain.all()
    key, time = rows.column("k0").to_numpy(), rows.column("sub").to_numpy()
    wanted = int(((key[:, None] == key[None, :]) & (np.abs(time[:, None] - time[None, :]) <= 1000)).sum())
    assert sum(len(which) for which, _ in found.pairs(chunk=997)) == wanted


def test_blocks_are_small_parts_of_the_bound() -> None:
    time = np.arange(0, 10_000, 2)
    found = list(time_blocks(time, within_us=1000, others=10**6))
    assert found[0][0] == 0
    assert found[-1][1] == len(time)
    assert all(b - a >= 60 and time[b - 1] - time[a] <= 150 for a, b in found)
