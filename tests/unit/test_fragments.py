"""Floe's fragments of a state, by the versions that wrote them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from headrace.ids import SLOTS, Version
from headrace.state.compact import choose_merge
from headrace.state.fragments import same_fragment
from headrace.state.layout import Layout, Policy
from headrace.state.run import RunRef, write_run
from headrace.state.sequence import VersionStep, run_seq, run_version
from headrace.state.slots import Stack

LAYOUT = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.int64()),), policy=Policy.COMBINE)


def rows(keys: list[int], values: list[int]) -> pa.RecordBatch:
    h = pa.array([k << 54 for k in keys], pa.uint64())
    return pa.RecordBatch.from_arrays([h, pa.array(keys, pa.int64()), pa.array(values, pa.int64())], schema=LAYOUT.schema)


def written(folder: Path, version: int, batch: pa.RecordBatch, step: VersionStep = VersionStep.PROCESS) -> RunRef:
    seq = run_seq(Version(version), step)
    return write_run(folder, f"v{version}-{step}.arrow", batch, LAYOUT, seq=seq, lo=0, hi=SLOTS, sync=False)


def versions(refs: Iterable[RunRef]) -> list[int]:
    return [run_version(ref.seq) for ref in refs]


def test_all_runs_of_a_version_are_on_one_side(tmp_path: Path) -> None:
    """Also those that its flush wrote: their sequence numbers are about three times the version."""
    of_seven = [written(tmp_path, 7, rows([1], [1]), step) for step in VersionStep]
    of_eight = written(tmp_path, 8, rows([1], [1]))
    assert same_fragment([of_eight, *reversed(of_seven)], [Version(7)]) == [[of_eight], of_seven[::-1]]


def test_compaction_keeps_to_one_side_of_the_checkpoint(tmp_path: Path) -> None:
    newest_first = [written(tmp_path, version, rows([1], [1])) for version in (3, 2, 1, 0)]
    assert [versions(part) for part in same_fragment(newest_first, [Version(1)])] == [[3, 2], [1, 0]]
    assert [versions(part) for part in same_fragment(newest_first, [Version(0), Version(2)])] == [[3], [2, 1], [0]]
    assert [versions(part) for part in same_fragment(newest_first, [])] == [[3, 2, 1, 0]]


def test_a_merge_over_slots_with_and_without_older_runs_keeps_tombstones(tmp_path: Path) -> None:
    """Otherwise a key that was deleted since the last checkpoint would come back from the runs before it."""
    active = [written(tmp_path, version, rows([1, 900], [1, 1])) for version in (3, 2)]
    piled = [Stack(0, 8, tuple(active)), Stack(8, 16, tuple(active), has_older=True)]
    merge = choose_merge(piled, depth_max=1, rows_max=100)
    assert merge is not None
    assert (merge.lo, merge.hi, merge.reaches_oldest) == (0, 16, False)
    alone = choose_merge(piled[:1], depth_max=1, rows_max=100)
    assert alone is not None
    assert alone.reaches_oldest
