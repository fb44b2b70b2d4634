"""One writer: a driver that was paused while another took over cannot commit, deliver or remove anything, with or without locks."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.chaos.processes import kill_session, session_members
from headrace.errors import CheckpointError, FencedError
from headrace.ids import StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import VARIABLE
from headrace.runtime.fencing import NO_LOCKS
from headrace.state.manifest import Manifest, StoreState
from tests.crash.driver import start
from tests.crash.harness import RUN_SECONDS_MAX, Program, read_output, wait_for_pid, write_input

OP = StoreId.parse("op")


def fresh(path: Path) -> Checkpoint:
    checkpoint = Checkpoint(str(path))
    for folder in (checkpoint.manifests.directory, checkpoint.runs, checkpoint.staged, checkpoint.leases):
        folder.mkdir(parents=True, exist_ok=True)
    return checkpoint


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.parametrize(
    ("point", "before"),
    [
        ("job-done", "committing version 2"),
        pytest.param("manifest-after", "delivering version 2", marks=pytest.mark.extra),
        pytest.param("deliver-after", "removing old versions", marks=pytest.mark.extra),
    ],
)
def test_a_driver_that_slept_while_another_went_on_is_fenced_off(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, before: str
) -> None:
    """On a disk without locks. The other one, in this process, goes on until the version that the first was at is removed as old."""
    source = write_input(tmp_path / "input", files=7, seed=11)
    program = Program("running", source, tmp_path / "work")
    first = program.start(2, f"{NO_LOCKS},{point}@2=wait")
    mark = program.work / "marks" / f"{point}@2"
    try:
        wait_for_pid(mark, RUN_SECONDS_MAX)
        members = session_members(first.pid)
        for pid in members:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setenv(VARIABLE, NO_LOCKS)
        start(spark, program.kind, source, program.output, program.checkpoint, 3).awaitTermination()
        kept = Checkpoint.existing(str(program.checkpoint)).manifests.versions()
        assert min(kept) > 2
        files = snapshot(program)
        mark.unlink()
        for pid in members:
            os.kill(pid, signal.SIGCONT)
        assert first.wait(RUN_SECONDS_MAX) != 0
    finally:
        kill_session(first)
    said = (program.work / "program.log").read_text(errors="replace")
    assert "another query has taken over this checkpoint" in said
    assert f"before {before}" in said, said
    assert snapshot(program) == files, "the first one has neither written nor removed anything that counts"
    assert totals(program) == reference(source)


@pytest.mark.crash
@pytest.mark.spark
@pytest.mark.extra
@pytest.mark.parametrize("locks", [False, True])
def test_a_checkpointer_that_slept_while_another_query_went_on_writes_and_removes_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    """It has shipped the runs of version 1, and sleeps before the manifest; its batch sleeps too. With locks, the lock file is lost."""
    source = write_input(tmp_path / "input", files=7, seed=12)
    program = Program("running", source, tmp_path / "work")
    points = [*([] if locks else [NO_LOCKS]), "checkpoint-shipped@1=wait", "batch-begin@2=wait"]
    first = program.start(2, ",".join(points), checkpointSeconds=0.05, logLevel="warning")
    marks = [program.work / "marks" / name for name in ("checkpoint-shipped@1", "batch-begin@2")]
    try:
        for mark in marks:
            wait_for_pid(mark, RUN_SECONDS_MAX)
        members = session_members(first.pid)
        for pid in members:
            os.kill(pid, signal.SIGSTOP)
        if locks:
            (program.checkpoint / "headrace" / "owner").unlink()
        else:
            monkeypatch.setenv(VARIABLE, NO_LOCKS)
        options = {"headrace.checkpointSeconds": "0.05"}
        start(spark, program.kind, source, program.output, program.checkpoint, 3, **options).awaitTermination()
        folders = ("manifests", "journal", "runs", "tokens")
        files = snapshot(program, *folders)
        for mark in marks:
            mark.unlink()
        for pid in members:
            os.kill(pid, signal.SIGCONT)
        assert first.wait(RUN_SECONDS_MAX) != 0
    finally:
        kill_session(first)
    said = (program.work / "program.log").read_text(errors="replace")
    assert "before making version 1 durable" in said, "the checkpointer was fenced off"
    assert "before committing version 2" in said, "and the batch"
    assert snapshot(program, *folders) == files, "the first one has neither written nor removed anything that counts"
    assert totals(program) == reference(source)
    # What the second left is whole: a third goes on from it.
    start(spark, program.kind, source, program.output, program.checkpoint, 2, **options).awaitTermination()
    assert totals(program) == reference(source)


def snapshot(program: Program, *more: str) -> dict[str, bytes]:
    """Versions, the output, and other folders of the checkpoint."""
    folders = (*(program.checkpoint / "headrace" / name for name in ("manifests", *more)), program.output)
    return {str(path): path.read_bytes() for folder in folders for path in folder.iterdir() if not path.name.startswith(".")}


def totals(program: Program) -> dict[object, int]:
    """What the sink has in the end: the last count of every key."""
    rows = sorted(read_output(program.kind, program.output), key=lambda row: int(row[-1]))
    return {row[0]: int(row[1]) for row in rows}


def reference(source: Path) -> dict[object, int]:
    rows = pd.concat(pq.read_table(path).to_pandas() for path in source.iterdir())
    counts = rows.groupby("k", dropna=False).size()
    return {None if pd.isna(key) else key: int(count) for key, count in counts.items()}


def test_the_second_of_two_on_a_disk_without_locks_takes_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, NO_LOCKS)
    first, second = fresh(tmp_path), fresh(tmp_path)
    first.claim()
    first.manifests.commit(Manifest(0, first.fence.writer, {OP: StoreState()}), sync=False)
    second.claim()
    second.fence.check("anything")
    uncommitted = second.runs / f"v{0:012d}-op-i0-e{second.fence.writer}-a0-run.arrow"
    uncommitted.write_bytes(b"x")
    half = second.manifests.directory / f".{1:012d}-{second.fence.writer}.tmp"
    half.write_bytes(b"x")
    for attempt in (
        lambda: first.commit(Manifest(1, first.fence.writer, {OP: StoreState()}), sync=False),
        lambda: first.collect_garbage(1),
        lambda: first.note_routing({}),
        first.sweep,
    ):
        with pytest.raises(FencedError, match=r"token 2 \(process .*this query has 1"):
            attempt()
    assert first.manifests.versions() == [0]
    # Even one that has passed the check and sleeps then removes nothing of its successor's.
    monkeypatch.setattr(first.fence, "check", lambda doing: None)
    first.sweep()
    assert uncommitted.exists()
    assert half.exists()


def test_what_may_still_be_committed_is_not_swept(tmp_path: Path) -> None:
    """A driver that was replaced while it linked its manifest: until the version is another's, its files must stay."""
    checkpoint = fresh(tmp_path)
    checkpoint.claim()
    checkpoint.manifests.commit(Manifest(0, "e", {OP: StoreState()}), sync=False)
    left = [checkpoint.runs / f"v{version:012d}-op-i0-e0x00000000-a0-run.arrow" for version in (0, 1)]
    for path in left:
        path.write_bytes(b"x")
    assert checkpoint.sweep() == 1
    assert [path.exists() for path in left] == [False, True]
    checkpoint.manifests.commit(Manifest(1, "e", {OP: StoreState()}), sync=False)
    checkpoint.collect_garbage(5)
    assert [path.exists() for path in left] == [False, False]


def test_a_version_that_was_removed_as_old_cannot_be_made_again(tmp_path: Path) -> None:
    """Even by a driver that slept between its last look at the tokens and the link."""
    store = fresh(tmp_path).manifests
    for version in (5, 6):
        store.commit(Manifest(version, "e", {OP: StoreState()}), sync=False)
    with pytest.raises(CheckpointError, match="gone on to later versions"):
        store.commit(Manifest(2, "f", {OP: StoreState()}), sync=False)
    assert sorted(path.name for path in store.directory.iterdir()) == ["000000000005.json", "000000000006.json"]


def test_a_driver_whose_owner_file_was_removed_is_replaced(tmp_path: Path) -> None:
    first, second = fresh(tmp_path), fresh(tmp_path)
    first.claim()
    with pytest.raises(CheckpointError, match="the only query"):
        second.claim()
    first.fence.check("anything")
    (first.directory / "owner").unlink()
    second.claim()
    with pytest.raises(FencedError):
        first.fence.check("anything")
    second.fence.check("anything")
    for path in (second.directory / "tokens").iterdir():
        path.unlink()
    with pytest.raises(FencedError, match="no token of this query, which had token 2"):
        second.fence.check("anything")


def test_of_many_that_start_at_once_one_is_the_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, NO_LOCKS)
    drivers = [fresh(tmp_path) for _ in range(12)]
    together = threading.Barrier(len(drivers))

    def claim(driver: Checkpoint) -> None:
        together.wait()
        driver.claim()

    threads = [threading.Thread(target=claim, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writers = []
    for driver in drivers:
        try:
            driver.fence.check("anything")
        except FencedError:
            continue
        writers.append(driver.fence.token)
    assert len(writers) == 1
    assert writers[0] == max(driver.fence.token or 0 for driver in drivers)
    assert len({driver.fence.writer for driver in drivers}) == len(drivers)
