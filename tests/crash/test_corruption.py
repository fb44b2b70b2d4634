"""Damaged files are found and named, and never guessed. Files that no manifest names never count. One query per checkpoint."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.api.query import HeadraceQuery
from headrace.errors import CheckpointError, CorruptStateError
from headrace.ids import StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.durable import FolderStore
from headrace.state.layout import Layout
from headrace.state.manifest import Counters, Manifest, ManifestStore, StoreState, from_bytes, to_bytes
from headrace.state.run import RunReader, write_run
from tests.crash.driver import start
from tests.crash.harness import Left, Program, write_input

OP = StoreId.parse("op")

Damage = Callable[[Path], None]


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    replace(path, bytes(data))


def truncate(path: Path) -> None:
    replace(path, path.read_bytes()[:-8])


def empty(path: Path) -> None:
    replace(path, b"")


def remove(path: Path) -> None:
    path.unlink()


def replace(path: Path, data: bytes) -> None:
    """As a new file: a process that has the old one mapped keeps it."""
    path.unlink()
    path.write_bytes(data)


DAMAGES = [flip, *(pytest.param(damage, marks=pytest.mark.extra) for damage in (truncate, empty)), remove]


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Program]:
    """Queries that have run three batches; a fourth file waits for their restart."""
    work = tmp_path_factory.mktemp("finished")
    source = write_input(work / "input", files=4, seed=5)
    fourth = (source / "00003.parquet").rename(work / "fourth.parquet")
    programs = {kind: Program(kind, source, work / kind) for kind in ("windowed", "running")}
    for kind, program in programs.items():
        start(spark, kind, source, program.output, program.checkpoint, 2).awaitTermination()
    fourth.rename(source / "00003.parquet")
    return programs


@pytest.fixture(scope="module")
def expected(spark: SparkSession, finished: dict[str, Program]) -> dict[str, Left]:
    """What the queries leave when nothing is damaged."""
    left = {}
    for kind, program in finished.items():
        mine = copy_of(program, program.work.parent / f"expected-{kind}")
        restart(spark, mine).awaitTermination()
        left[kind] = Left.of(mine)
    return left


def copy_of(program: Program, work: Path) -> Program:
    """A copy under another path, where no process has a file open."""
    shutil.copytree(program.work, work, dirs_exist_ok=True)
    return Program(program.kind, program.source, work)


def restart(spark: SparkSession, program: Program, instances: int = 2) -> HeadraceQuery:
    return start(spark, program.kind, program.source, program.output, program.checkpoint, instances)


def newest(program: Program) -> Manifest:
    manifest = Checkpoint.existing(str(program.checkpoint)).latest()
    assert manifest is not None
    return manifest


def state_files(program: Program) -> list[str]:
    """All files but those of the owner: every start takes a token."""
    files = (program.checkpoint / "headrace").rglob("*")
    return sorted(path.name for path in files if path.name != "owner" and path.parent.name != "tokens")


def forget_delivery(program: Program, version: int) -> None:
    """As if the driver had died between the commit of a version and its delivery."""
    folders = [program.checkpoint / "commits"]
    if program.kind == "windowed":
        folders.append(program.output / "_spark_metadata")
    for folder in folders:
        (folder / str(version)).unlink()
        (folder / f".{version}.crc").unlink(missing_ok=True)


@pytest.mark.spark
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_run_stops_the_restart(
    spark: SparkSession, finished: dict[str, Program], expected: dict[str, Left], tmp_path: Path, damage: Damage
) -> None:
    program = copy_of(finished["running"], tmp_path)
    (state,) = newest(program).stores.values()
    run = program.checkpoint / "headrace" / "runs" / state.runs[-1].file
    intact = run.read_bytes()
    damage(run)
    query = restart(spark, program)
    with pytest.raises(CorruptStateError) as caught:
        query.awaitTermination()
    assert caught.value.path == str(run)
    assert str(run) in str(caught.value)
    assert query.exception() is caught.value
    assert not query.isActive
    assert newest(program).version == 2
    assert not (program.output / "batch-000003.parquet").exists()

    run.unlink(missing_ok=True)
    run.write_bytes(intact)
    restart(spark, program).awaitTermination()
    assert not Left.of(program).difference(expected["running"])


@pytest.mark.spark
@pytest.mark.parametrize("damage", [flip, pytest.param(remove, marks=pytest.mark.extra)])
@pytest.mark.parametrize("read_by", [pytest.param("driver", marks=pytest.mark.extra), "tasks"])
def test_a_damaged_staged_file_stops_the_delivery(
    spark: SparkSession,
    finished: dict[str, Program],
    expected: dict[str, Left],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Damage,
    read_by: str,
) -> None:
    if read_by == "tasks":
        monkeypatch.setattr("headrace.runtime.staged.LOCAL_ROWS", 0)
    program = copy_of(finished["windowed"], tmp_path)
    forget_delivery(program, 2)
    staged = next(s for s in newest(program).staged if s.rows)
    path = program.checkpoint / "headrace" / staged.folder / staged.file
    intact = path.read_bytes()
    damage(path)
    query = restart(spark, program)
    with pytest.raises(CorruptStateError) as caught:
        query.awaitTermination()
    assert caught.value.path == str(path)
    assert query.exception() is caught.value

    path.unlink(missing_ok=True)
    path.write_bytes(intact)
    restart(spark, program).awaitTermination()
    assert not Left.of(program).difference(expected["windowed"])


@pytest.mark.spark
@pytest.mark.parametrize("damage", [flip, truncate, empty])
@pytest.mark.parametrize("version", [1, 2])
def test_a_damaged_manifest_stops_the_start(
    spark: SparkSession, finished: dict[str, Program], tmp_path: Path, damage: Damage, version: int
) -> None:
    program = copy_of(finished["running"], tmp_path)
    path = Checkpoint(str(program.checkpoint)).manifests.path(version)
    damage(path)
    before = state_files(program)
    with pytest.raises(CorruptStateError) as caught:
        restart(spark, program)
    assert caught.value.path == str(path)
    assert state_files(program) == before


@pytest.mark.spark
def test_a_missing_newest_manifest_is_not_guessed_around(spark: SparkSession, finished: dict[str, Program], tmp_path: Path) -> None:
    program = copy_of(finished["running"], tmp_path)
    Checkpoint(str(program.checkpoint)).manifests.path(2).unlink()
    with pytest.raises(CheckpointError, match="version 2"):
        restart(spark, program)


@pytest.mark.spark
@pytest.mark.parametrize("damage", [flip, truncate, empty])
def test_a_damaged_description_stops_the_start(spark: SparkSession, finished: dict[str, Program], tmp_path: Path, damage: Damage) -> None:
    program = copy_of(finished["running"], tmp_path)
    damage(program.checkpoint / "headrace" / "query.json")
    with pytest.raises(CorruptStateError, match=r"query\.json"):
        restart(spark, program)


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["running", "windowed"])
def test_late_files_of_zombies_never_count_and_are_swept(
    spark: SparkSession, finished: dict[str, Program], expected: dict[str, Left], tmp_path: Path, kind: str
) -> None:
    program = copy_of(finished[kind], tmp_path)
    folder = program.checkpoint / "headrace"
    late = []
    for name in ("runs", "staged"):
        # Whole and well-formed, of another run of the query or of another attempt: only their names are not in a manifest.
        for file in sorted((folder / name).iterdir())[:2]:
            parts = file.stem.split("-")
            zombie = file.with_name("-".join([*parts[:3], "e0badbad0", "a999977", *parts[5:]]) + ".arrow")
            retry = file.with_name("-".join([*parts[:4], "a999978", *parts[5:]]) + ".arrow")
            for copied in (zombie, retry):
                shutil.copy(file, copied)
                late.append(copied)
    stale = folder / "manifests" / ".000000000003-0badbad0.tmp"
    stale.write_bytes(to_bytes(Manifest(3, "0badbad0", {})))
    assert newest(program).version == 2
    restart(spark, program, instances=3).awaitTermination()
    assert len(late) >= 4
    assert [path for path in (*late, stale) if path.exists()] == []
    assert not Left.of(program).difference(expected[kind])


@pytest.mark.spark
def test_a_second_query_on_a_checkpoint_is_refused(
    spark: SparkSession, finished: dict[str, Program], expected: dict[str, Left], tmp_path: Path
) -> None:
    program = copy_of(finished["running"], tmp_path)
    running = Checkpoint(str(program.checkpoint))
    running.claim()
    with pytest.raises(CheckpointError, match="the only query"):
        restart(spark, program)
    claim = "import sys; from headrace.runtime.checkpoint import Checkpoint; Checkpoint(sys.argv[1]).claim()"
    other = subprocess.run([sys.executable, "-c", claim, program.checkpoint], capture_output=True, text=True, timeout=60, check=False)
    assert "CheckpointError" in other.stderr
    running.release()
    restart(spark, program).awaitTermination()
    # The end of a query is enough; no clean-up is needed.
    restart(spark, program).awaitTermination()
    assert not Left.of(program).difference(expected["running"])


def test_the_checkpoint_is_free_when_its_owner_is_dead(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.directory.mkdir()
    claim = "import os, sys; from headrace.runtime.checkpoint import Checkpoint; Checkpoint(sys.argv[1]).claim(); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", claim, tmp_path], capture_output=True, timeout=60, check=False)
    assert killed.returncode == -9
    checkpoint.claim()
    with pytest.raises(CheckpointError, match=f"process {os.getpid()}"):
        Checkpoint(str(tmp_path)).claim()
    checkpoint.release()


def test_two_drivers_cannot_commit_one_version(tmp_path: Path) -> None:
    """Also where the disk has no locks."""
    store = ManifestStore(FolderStore(tmp_path))
    first, second = (Manifest(7, writer, {OP: StoreState()}) for writer in ("aaaa", "bbbb"))
    store.commit(first, sync=False)
    with pytest.raises(CheckpointError, match="the only query"):
        store.commit(second, sync=False)
    assert store.read(7) == first
    assert [p.name for p in store.directory.iterdir()] == ["000000000007.json"]


def test_every_flipped_bit_of_a_manifest_is_found() -> None:
    manifest = Manifest(7, "aaaa", {OP: StoreState(closed_ms=5)}, watermark_ms=5, watermark_nodes_ms=(None, 5), counters=Counters(rows=3))
    data = to_bytes(manifest)
    assert from_bytes(data, "here") == manifest
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptStateError, match="here"):
            from_bytes(bytes(flipped), "here")


def test_every_flipped_byte_and_every_cut_of_a_run_is_found(tmp_path: Path) -> None:
    layout = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.float64()),))
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.uint64()), pa.array([1, 2]), pa.array([0.5, 1.5])], schema=layout.schema)
    ref = write_run(tmp_path, "run.arrow", rows, layout, seq=1, lo=0, hi=4096, sync=False)
    path = tmp_path / ref.file
    data = path.read_bytes()
    for at in range(0, len(data), 101):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], data + data[at : at + 1]):
            replace(path, damaged)
            with pytest.raises(CorruptStateError, match=str(path)):
                RunReader(tmp_path, layout).open(ref)
    replace(path, data)
    assert RunReader(tmp_path, layout).open(ref).rows.num_rows == 2


def test_a_run_of_another_operator_is_refused(tmp_path: Path) -> None:
    layout = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.float64()),))
    other = Layout(keys=(("k0", pa.int64()),), values=(("p0", pa.int64()),))
    ref = write_run(tmp_path, "run.arrow", layout.empty(), layout, seq=1, lo=0, hi=4096, sync=False)
    with pytest.raises(CorruptStateError, match="layout"):
        RunReader(tmp_path, other).open(ref)
