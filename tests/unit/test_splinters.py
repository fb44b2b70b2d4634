"""State whose owners change for a long time: its files stay few, and no row is lost or reappears."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.ids import SLOTS
from headrace.operators.kernel import View
from headrace.operators.store import Store
from headrace.state.compact import SPLINTERS_MAX, Compactor, mend
from headrace.state.layout import HASH, Layout, Policy
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.sequence import VersionStep, run_seq
from headrace.state.slots import Stack, clip, join

LAYOUT = Layout((("k", pa.int64()),), (("v", pa.int64()),), policy=Policy.REPLACE)
KEYS = 500
DEPTH = 4
HASHES = np.arange(KEYS, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def newest(columns: list[pa.Array], starts: np.ndarray) -> list[pa.Array]:
    """Rows of one key come newest first."""
    return [column.take(pa.array(starts)) for column in columns]


def rows_of(values: dict[int, int]) -> pa.RecordBatch:
    keys = np.array(sorted(values, key=lambda k: HASHES[k]), dtype=np.int64)
    columns = {HASH: HASHES[keys], "k": keys, "v": np.array([values[int(k)] for k in keys])}
    return pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in LAYOUT.schema.names], schema=LAYOUT.schema)


@pytest.mark.parametrize("instances", [2, 3])
def test_owners_that_change_every_other_batch_leave_few_files(tmp_path: Path, instances: int) -> None:
    """A rescale by work cuts the slots at slightly other places each time."""
    random = np.random.default_rng(instances)
    reader, names = RunReader(tmp_path, LAYOUT), itertools.count()
    refs: list[RunRef] = []
    state: dict[int, int] = {}
    counts = []
    edges = [0, *(SLOTS * at // instances for at in range(1, instances)), SLOTS]
    for version in range(120):
        if version % 2 == 0:
            moved = random.integers(-40, 40, instances - 1)
            edges = [0, *(SLOTS * at // instances + int(by) for at, by in enumerate(moved, 1)), SLOTS]
        changed = {int(k): version for k in random.integers(0, KEYS, 200)}
        state |= changed
        after: list[RunRef] = []
        for range_ in itertools.pairwise(edges):
            batch = rows_of(changed)
            slots = (HASHES[np.asarray(batch.column("k"))] >> np.uint64(52)).astype(np.int64)
            mine = batch.filter(pa.array((slots >= range_[0]) & (slots < range_[1])))
            seq = run_seq(version, VersionStep.PROCESS)
            new = write_run(tmp_path, f"r{next(names)}.arrow", mine, LAYOUT, seq=seq, lo=range_[0], hi=range_[1], sync=False)
            compactor = Compactor(tmp_path, LAYOUT, newest, reader, DEPTH, False, lambda: f"r{next(names)}.arrow")
            after += compactor.compact([new, *clip(refs, (range_,), reader)], (range_,), 20_000, None)[0]
        refs = join(after)
        counts.append(len({ref.file for ref in refs}))
    view = View(reader, refs, ((0, SLOTS),))
    found = {k: v for part in view.scan(Store(LAYOUT)) for k, v in zip(*(part.column(c).to_pylist() for c in ("k", "v")), strict=True)}
    assert found == state
    assert max(counts[40:]) <= instances * (DEPTH + SPLINTERS_MAX), counts


def stack(lo: float, hi: float, rows: int, seq: int = 1, has_older: bool = False) -> Stack:
    return Stack(lo, hi, (RunRef(f"{lo}", rows, 0, rows, seq, lo=lo, hi=hi),), has_older)


def test_a_region_is_mended_if_it_has_many_small_stretches() -> None:
    piled = [stack(at, at + 1, 5) for at in range(5)] + [stack(5, 100, 500)]
    merge = mend(piled, SLOTS, 1000, 10)
    assert merge is not None
    assert (merge.lo, merge.hi, len(merge.refs), merge.reaches_oldest) == (0, 100, 6, True)


@pytest.mark.parametrize(
    "piled",
    [
        [stack(at, at + 1, 5) for at in range(4)],
        # As large as they should be.
        [stack(at, at + 1, 50) for at in range(6)],
        # Not neighbours: another instance owns what lies between.
        [stack(2 * at, 2 * at + 1, 5) for at in range(6)],
        # More than the budget.
        [stack(at, at + 1, 5) for at in range(5)] + [stack(5, 100, 5000)],
        # Older rows below would come back if these were taken for all.
        [stack(at, at + 1, 5, has_older=at == 3) for at in range(6)],
    ],
)
def test_what_is_not_mended(piled: list[Stack]) -> None:
    assert mend(piled, SLOTS, 1000, 10) is None


def test_regions_are_mended_one_by_one() -> None:
    piled = [stack(at, at + 1, 5) for at in range(16)]
    merge = mend(piled, 8, 1000, 10)
    assert merge is not None
    assert (merge.lo, merge.hi) == (0, 8)
