"""Sweeping while the query runs removes files that no version names, and only those that no later version can name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.ids import OperatorId, StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.sweeping import remove_unnamed, sweep_committed
from headrace.state.manifest import Manifest, StagedFile, StoreState
from headrace.state.run import RunRef

COUNT = OperatorId("count")
MINE, OTHER = "3x0a0a0a0a", "4x1b1b1b1b"


def name(version: int, kind: str = "run.arrow", writer: str = MINE, attempt: int = 1) -> str:
    return f"v{version:012d}-count-i0-e{writer}-a{attempt}-{kind}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Versions 3 to 5: each names its own run and the one before, and a staged file."""
    made = Checkpoint(str(tmp_path))
    for folder in (made.manifests.directory, made.runs, made.staged, made.leases):
        folder.mkdir(parents=True)
    for version in (2, 3, 4, 5):
        (made.runs / name(version)).touch()
    for version in (3, 4, 5):
        (made.staged / name(version, "out.arrow")).touch()
        runs = tuple(RunRef(name(v), bytes=1, crc=0, rows=1, seq=v) for v in (version, version - 1))
        staged = (StagedFile(name(version, "out.arrow"), "staged", 1, 0, 1, COUNT),)
        made.manifests.commit(Manifest(version, MINE, {StoreId(COUNT): StoreState(runs)}, staged), sync=False)
    return made


def there(checkpoint: Checkpoint) -> set[str]:
    return {path.name for folder in (checkpoint.runs, checkpoint.staged) for path in folder.iterdir()}


def test_what_attempts_left_of_committed_versions_is_removed(checkpoint: Checkpoint) -> None:
    named = there(checkpoint)
    left = {name(4, attempt=2), name(5, "c1.arrow"), name(1), name(5, "run-left.arrow", attempt=7)}
    for file in left:
        (checkpoint.runs / file).touch()
    for file in (name(5, "out.arrow", attempt=2), name(5, "report.json"), name(4, "flush-report.tmp")):
        (checkpoint.staged / file).touch()
    assert sweep_committed(checkpoint, 5, MINE) == 7
    assert there(checkpoint) == named
    assert sweep_committed(checkpoint, 5, MINE) == 0


def test_what_may_still_be_named_stays(checkpoint: Checkpoint) -> None:
    """The next version, another run of the query, the state that a query starts with, and what Headrace did not write."""
    kept = {name(6), name(7, attempt=9), name(4, writer=OTHER), name(9, writer=OTHER), f"initial-count-e{MINE}-0-1.arrow", "notes.txt"}
    for file in kept:
        (checkpoint.runs / file).touch()
    before = there(checkpoint)
    assert sweep_committed(checkpoint, 5, MINE) == 0
    assert there(checkpoint) == before


def test_leased_versions_keep_their_files(checkpoint: Checkpoint) -> None:
    checkpoint.lease(3)
    checkpoint.claim()
    checkpoint.collect_garbage(1)
    checkpoint.release()
    assert checkpoint.manifests.versions() == [3, 5]
    needed = {file for version in (3, 5) for _, file in checkpoint.files_of(version)}
    sweep_committed(checkpoint, 5, MINE)
    assert there(checkpoint) == needed


def test_a_version_removes_only_what_it_wrote_itself_and_does_not_name(checkpoint: Checkpoint) -> None:
    for file in (name(5, "close-run.arrow"), name(4, "c3.arrow")):
        (checkpoint.runs / file).touch()
    files = [("runs", name(5, "close-run.arrow")), ("runs", name(4, "c3.arrow")), ("runs", name(5)), ("runs", name(3))]
    before = there(checkpoint)
    remove_unnamed(checkpoint, 5, MINE, files)
    assert there(checkpoint) == before - {name(5, "close-run.arrow")}


def test_names_that_a_running_query_gives_are_recognised(tmp_path: Path) -> None:
    """The sweep reads the epoch out of file names, so it must know the form that the fence gives it."""
    checkpoint = Checkpoint(str(tmp_path))
    for folder in (checkpoint.manifests.directory, checkpoint.runs, checkpoint.staged, checkpoint.leases):
        folder.mkdir(parents=True)
    checkpoint.claim()
    try:
        (checkpoint.runs / name(0, writer=checkpoint.fence.writer)).touch()
        assert sweep_committed(checkpoint, 0, checkpoint.fence.writer) == 1
    finally:
        checkpoint.release()
