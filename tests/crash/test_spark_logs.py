"""Spark's logs and Headrace's versions belong together: whatever is lost, reset, replaced or mixed is refused, never computed with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.errors import CheckpointError, CheckpointMismatchError, CorruptStateError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.spark_log import SparkLog
from headrace.runtime.verification import verify
from headrace.state.durable import FolderStore
from headrace.state.manifest import to_bytes
from tests.crash.driver import start
from tests.crash.harness import Left, Program, write_input

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Program]:
    """A query that has done three batches, a fourth file waits; and an earlier run of the same query on other rows in the same folder."""
    work = tmp_path_factory.mktemp("logs")
    programs = []
    for name, seed in (("other", 6), ("one", 5)):
        shutil.rmtree(work / "input", ignore_errors=True)
        source = write_input(work / "input", files=4, seed=seed)
        for path in source.glob("*.parquet"):
            # Spark knows a file by its name and the time when it was written.
            written_s = path.stat().st_mtime + seed
            os.utime(path, (written_s, written_s))
        fourth = (source / "00003.parquet").rename(work / "fourth.parquet")
        program = Program("running", source, work / name)
        start(spark, program.kind, source, program.output, program.checkpoint, 2).awaitTermination()
        fourth.rename(source / "00003.parquet")
        programs.append(program)
    return programs[1], programs[0]


def copy_of(program: Program, work: Path) -> Program:
    shutil.copytree(program.work, work, dirs_exist_ok=True)
    return Program(program.kind, program.source, work)


def replace(path: Path, data: bytes) -> None:
    """Without Hadoop's own checksum, as a tool that knows nothing of it would leave the file."""
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.write_bytes(data)


def manifest(checkpoint: Path, version: int) -> Path:
    return checkpoint / "headrace" / "manifests" / f"{version:012d}.json"


def offsets_lost(mine: Path, other: Path) -> None:
    (mine / "offsets" / "2").unlink()
    (mine / "offsets" / ".2.crc").unlink()


def offsets_replaced(mine: Path, other: Path) -> None:
    replace(mine / "offsets" / "2", (mine / "offsets" / "1").read_bytes())


def offsets_of_named_sources(mine: Path, other: Path) -> None:
    replace(mine / "offsets" / "2", b'v2\n{}\n0:{"logOffset":2}')


def offsets_cut_short(mine: Path, other: Path) -> None:
    replace(mine / "offsets" / "2", b"v1\n{}")


def reset(mine: Path, other: Path) -> None:
    """Everything that Spark wrote is gone."""
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(mine / name)
    (mine / "metadata").unlink()


def reset_but_the_id(mine: Path, other: Path) -> None:
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(mine / name)


def state_of_another_run(mine: Path, other: Path) -> None:
    shutil.rmtree(mine / "headrace")
    shutil.copytree(other / "headrace", mine / "headrace")


def logs_of_another_run(mine: Path, other: Path) -> None:
    """With the id of this one, and the same offsets: only the files that these stand for differ."""
    for name in ("offsets", "commits", "sources"):
        shutil.rmtree(mine / name)
        shutil.copytree(other / name, mine / name)


def state_of_an_older_backup(mine: Path, other: Path) -> None:
    manifest(mine, 2).unlink()


def no_state(mine: Path, other: Path) -> None:
    for version in range(3):
        manifest(mine, version).unlink()


def files_replaced(mine: Path, other: Path) -> None:
    path = mine / "sources" / "0" / "2"
    replace(path, path.read_bytes().replace(b"00002.parquet", b"00003.parquet"))


def overwritten_by_its_predecessor(mine: Path, other: Path) -> None:
    shutil.copy(manifest(mine, 1), manifest(mine, 2))


def exchanged(mine: Path, other: Path) -> None:
    first, second = manifest(mine, 1).read_bytes(), manifest(mine, 2).read_bytes()
    manifest(mine, 1).write_bytes(second)
    manifest(mine, 2).write_bytes(first)


def predecessor_of_another_run(mine: Path, other: Path) -> None:
    shutil.copy(manifest(other, 1), manifest(mine, 1))


CASES: list[tuple[Callable[[Path, Path], None], str]] = [
    (offsets_lost, "log up to batch 2"),
    (offsets_replaced, 'ended at .*logOffset":2.*found .*logOffset":1'),
    (offsets_of_named_sources, "formatVersion to 1"),
    (offsets_cut_short, "a line for each source"),
    (reset, "no file 'metadata'"),
    (reset_but_the_id, "Spark's log of batches none"),
    (state_of_another_run, "Spark's logs of the query"),
    (logs_of_another_run, "other content in entries"),
    (state_of_an_older_backup, "the state of version 2"),
    (no_state, "found no version"),
    (files_replaced, "other content in entries 2 to 2"),
    (overwritten_by_its_predecessor, "the manifest of version 1 under the number 2"),
    (exchanged, "the manifest of version [12] under the number [12]"),
    (predecessor_of_another_run, "on top of another"),
]


@pytest.mark.parametrize(("damage", "said"), CASES, ids=[case[0].__name__ for case in CASES])
def test_logs_that_do_not_belong_together_are_refused_at_the_start(
    spark: SparkSession, finished: tuple[Program, Program], tmp_path: Path, damage: Callable[[Path, Path], None], said: str
) -> None:
    program = copy_of(finished[0], tmp_path)
    damage(program.checkpoint, finished[1].checkpoint)
    files = {path: path.read_bytes() for path in program.output.rglob("*.parquet")}
    with pytest.raises((CheckpointMismatchError, CorruptStateError), match=said) as caught:
        start(spark, program.kind, program.source, program.output, program.checkpoint, 2).awaitTermination()
    assert "backup" in caught.value.hint or "formatVersion" in caught.value.hint, "what to do is said"
    assert {path: path.read_bytes() for path in program.output.rglob("*.parquet")} == files, "nothing was delivered"
    checkpoint = Checkpoint.existing(str(program.checkpoint))
    found = verify(checkpoint, checkpoint.manifests.versions())
    assert any(str(caught.value) == line for line in found.broken), found


def test_what_belongs_together_goes_on_and_replays_exactly(spark: SparkSession, finished: tuple[Program, Program], tmp_path: Path) -> None:
    """Also after a crash between commit and delivery, where the batch is replayed."""
    program = copy_of(finished[0], tmp_path)
    left = Left.of(program)
    for name in ("commits/2", "commits/.2.crc"):
        (program.checkpoint / name).unlink()
    (program.output / "batch-000002.parquet").unlink()
    start(spark, program.kind, program.source, program.output, program.checkpoint, 2).awaitTermination()
    after = Left.of(program)
    assert after.version == 3
    assert [row for row in after.output if row[-1] < 3] == left.output
    checkpoint = Checkpoint.existing(str(program.checkpoint))
    kept = checkpoint.manifests.versions()
    assert not verify(checkpoint, kept).broken
    assert [checkpoint.manifests.read(v).token for v in kept] == [1, 1, 2], "each start takes the next token"


def test_a_log_that_is_replaced_while_the_query_runs_ends_it(spark: SparkSession, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", files=2, seed=7)
    later = (source / "00001.parquet").rename(tmp_path / "later.parquet")
    program = Program("running", source, tmp_path / "work")
    query = start(spark, "running", source, program.output, program.checkpoint, 1, trigger={"processingTime": "50 milliseconds"})
    try:
        query.processAllAvailable()
        entry = program.checkpoint / "sources" / "0" / "0"
        replace(entry, entry.read_bytes().replace(b"00000", b"00009"))
        later.rename(source / "00001.parquet")
        with pytest.raises(CheckpointError, match="other content in entries 0 to 0"):
            query.awaitTermination(60)
    finally:
        query.stop()
    assert not (program.output / "batch-000001.parquet").exists()


def test_entries_are_read_alike_from_a_compacted_log(spark: SparkSession, tmp_path: Path) -> None:
    """Spark writes every tenth entry as one file with all before it; only the last lines are its own."""
    folder = tmp_path / "sources" / "0"
    folder.mkdir(parents=True)
    lines = [json.dumps({"path": f"file:///in/{n}.parquet", "timestamp": n, "batchId": n}, separators=(",", ":")) for n in range(3000)]
    log = SparkLog(FolderStore(tmp_path), str(tmp_path))
    (folder / "2999").write_text("\n".join(["v1", lines[-1]]))
    (plain,) = log.entries_since(None)
    (folder / "2999").unlink()
    (folder / "2999.compact").write_text("\n".join(["v1", *lines]))
    (compacted,) = log.entries_since(None)
    assert compacted == plain
    assert (plain.first, plain.last) == (2999, 2999)


def test_a_manifest_that_names_files_elsewhere_is_refused(finished: tuple[Program, Program], tmp_path: Path) -> None:
    """Garbage collection would remove what it names."""
    program = copy_of(finished[0], tmp_path)
    store = Checkpoint.existing(str(program.checkpoint)).manifests
    newest = store.read(2)
    victim = tmp_path / "precious"
    victim.write_text("x")
    (staged, *_) = newest.staged
    for folder, file in (("../..", "precious"), ("runs", "../../precious"), ("..", "precious"), (str(tmp_path), "precious")):
        object.__setattr__(staged, "folder", folder)
        object.__setattr__(staged, "file", file)
        store.path(2).write_bytes(to_bytes(newest))
        with pytest.raises(CorruptStateError, match="outside of the checkpoint"):
            store.read(2)
    newest = Checkpoint.existing(str(finished[0].checkpoint)).manifests.read(2)
    (state,) = newest.stores.values()
    object.__setattr__(state.runs[0], "file", "../../precious")
    store.path(2).write_bytes(to_bytes(newest))
    with pytest.raises(CorruptStateError, match="leads elsewhere"):
        store.read(2)
    assert victim.exists()
