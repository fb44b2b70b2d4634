"""Versions of a query's state: kept, read, leased, collected; and what a restart makes of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.api.query import LEASES, HeadraceQuery
from headrace.errors import CheckpointError, QueryError, VersionNotFoundError
from headrace.ids import StoreId
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.manifest import Manifest, StoreState
from headrace.state.run import RunRef
from tests.crash.driver import SCHEMA, start
from tests.crash.harness import Left, Program, difference, in_order, listed_files, write_input

OP = StoreId.parse("op")

pytestmark = pytest.mark.spark

FILES, KEEP = 9, 4


@dataclass
class Case:
    """A query over files that are handed out one by one."""

    program: Program
    all_files: Path

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint.existing(str(self.program.checkpoint))

    def offer(self, count: int) -> None:
        """Let the query see the first files, up to this many."""
        self.program.source.mkdir(exist_ok=True)
        for path in sorted(self.all_files.iterdir())[:count]:
            if not (self.program.source / path.name).exists():
                shutil.copy2(path, self.program.source)

    def run(self, spark: SparkSession, instances: int = 2, keep: int = KEEP) -> HeadraceQuery:
        p = self.program
        query = start(spark, p.kind, p.source, p.output, p.checkpoint, instances, **{"headrace.versionsToKeep": str(keep)})
        query.awaitTermination()
        return query

    def answer(self, spark: SparkSession, version: int) -> list[tuple[Any, ...]]:
        """Spark's own, over the files up to a version."""
        files = [str(path) for path in sorted(self.all_files.iterdir())[: version + 1]]
        rows = spark.read.schema(SCHEMA).parquet(*files)
        aggregates = [F.count("*").alias("n"), F.sum("v").alias("s"), F.min("v").alias("low"), F.max("v").alias("high")]
        return rows_of(rows.groupBy("k").agg(*aggregates))


def rows_of(frame: DataFrame) -> list[tuple[Any, ...]]:
    return in_order(frame.toPandas())


def case(tmp_path: Path, kind: str = "running", files: int = FILES) -> Case:
    everything = write_input(tmp_path / "all", files, seed=11)
    return Case(Program(kind, tmp_path / "input", tmp_path / "work"), everything)


@pytest.fixture(scope="module")
def finished(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Case, HeadraceQuery]:
    made = case(tmp_path_factory.mktemp("versions"))
    made.offer(FILES)
    return made, made.run(spark)


def test_the_last_versions_are_kept_and_nothing_else(finished: tuple[Case, HeadraceQuery]) -> None:
    checkpoint = finished[0].checkpoint
    kept = checkpoint.manifests.versions()
    assert kept == list(range(FILES - KEEP, FILES))
    needed = set().union(*(checkpoint.manifests.read(version).files() for version in kept))
    there = {(folder.name, path.name) for folder in (checkpoint.runs, checkpoint.staged) for path in folder.iterdir()}
    assert there == needed


def test_every_kept_version_is_the_state_of_its_time(spark: SparkSession, finished: tuple[Case, HeadraceQuery]) -> None:
    made, query = finished
    for version in made.checkpoint.manifests.versions():
        state = query.state(version=version).select("k", "n", "s", "low", "high")
        assert not difference(rows_of(state), made.answer(spark, version)), version
    assert rows_of(query.state()) == rows_of(query.state(version=FILES - 1))


@pytest.mark.parametrize("version", [0, FILES - KEEP - 1, FILES, 1000])
def test_a_version_that_is_not_there(finished: tuple[Case, HeadraceQuery], version: int) -> None:
    made, query = finished
    with pytest.raises(VersionNotFoundError) as caught:
        query.state(version=version)
    assert f"version {version}" in str(caught.value)
    assert f"versions {FILES - KEEP} to {FILES - 1}" in str(caught.value)
    assert "versionsToKeep" in str(caught.value)
    assert version not in made.checkpoint.leased(), "a refused reader leaves no lease"


def test_state_of_an_unknown_operator(finished: tuple[Case, HeadraceQuery]) -> None:
    with pytest.raises(QueryError, match="no-such-operator"):
        finished[1].state(operator="no-such-operator")


def test_a_state_frame_pins_its_version(spark: SparkSession, tmp_path: Path) -> None:
    made = case(tmp_path)
    made.offer(3)
    held = made.run(spark, keep=2).state(version=1)
    made.offer(7)
    made.run(spark, keep=2)
    assert made.checkpoint.manifests.versions() == [1, 5, 6], "leased, or among the last two"
    assert not difference(rows_of(held.select("k", "n", "s", "low", "high")), made.answer(spark, 1))
    query = made.run(spark, keep=2)
    for _ in range(LEASES):
        query.state()
    assert 1 not in made.checkpoint.leased(), "so many were asked for since that it no longer counts"
    made.offer(8)
    made.run(spark, keep=2)
    assert 1 not in made.checkpoint.manifests.versions()


def test_leases_of_dead_processes_do_not_count(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    checkpoint.leases.mkdir(parents=True)
    lease = checkpoint.lease(3)
    assert checkpoint.leased() == {3}
    said = json.loads(checkpoint.store.get(lease))
    ended = subprocess.Popen(["true"])
    ended.wait()
    (checkpoint.leases / "dead.json").write_text(json.dumps({**said, "version": 4, "pid": ended.pid}))
    (checkpoint.leases / "old.json").write_text(json.dumps({**said, "version": 5, "since": 0}))
    assert checkpoint.leased() == {3}
    assert sorted(checkpoint.leases.iterdir()) == [checkpoint.directory / lease]


def five_versions(tmp_path: Path) -> Checkpoint:
    """Each with a file of its own and one that it shares with the version before."""
    checkpoint = Checkpoint(str(tmp_path))
    for folder in (checkpoint.manifests.directory, checkpoint.runs, checkpoint.staged, checkpoint.leases):
        folder.mkdir(parents=True)
    for version in range(5):
        (checkpoint.runs / f"run{version}").write_bytes(b"x")
        runs = tuple(RunRef(f"run{v}", bytes=1, crc=0, rows=1, seq=v) for v in (version, version - 1) if v >= 0)
        checkpoint.manifests.commit(Manifest(version, "e", {OP: StoreState(runs)}), sync=True)
    checkpoint.claim()
    return checkpoint


def test_a_reader_comes_while_garbage_is_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease was not there when the collector first looked."""
    checkpoint = five_versions(tmp_path)
    looks = iter([set[int](), {1}])
    monkeypatch.setattr(checkpoint, "leased", lambda: next(looks))
    checkpoint.collect_garbage(2)
    assert checkpoint.manifests.versions() == [1, 3, 4]
    assert sorted(path.name for path in checkpoint.runs.iterdir()) == ["run0", "run1", "run2", "run3", "run4"]
    monkeypatch.undo()
    checkpoint.collect_garbage(2)
    assert checkpoint.manifests.versions() == [3, 4]
    assert sorted(path.name for path in checkpoint.runs.iterdir()) == ["run2", "run3", "run4"]


def test_a_crash_in_the_middle_of_garbage_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = five_versions(tmp_path)

    def dies(path: Path, missing_ok: bool = False) -> None:
        if path.parent.name == "runs":
            raise KeyboardInterrupt
        os.unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.collect_garbage(2)
    checkpoint.release()
    restarted = Checkpoint(str(tmp_path))
    restarted.claim()
    for version in restarted.manifests.versions():
        assert all((restarted.directory / folder / file).exists() for folder, file in restarted.manifests.read(version).files())
    restarted.sweep()
    restarted.collect_garbage(2)
    assert sorted(path.name for path in restarted.manifests.directory.iterdir()) == ["000000000003.json", "000000000004.json"]
    assert sorted(path.name for path in restarted.runs.iterdir()) == ["run2", "run3", "run4"]


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["running", "windowed", "dedup"])
def test_each_restart_may_have_another_number_of_instances(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    made = case(tmp_path, kind)
    for files, instances in ((3, 1), (5, 4), (7, 3), (FILES, 2)):
        made.offer(files)
        query = made.run(spark, instances)
        progress = query.lastProgress
        assert progress is not None
        assert len(progress["headrace"]["instances"]) == instances
    constant = Case(Program(kind, made.program.source, tmp_path / "constant"), made.all_files)
    constant.run(spark, 2)
    assert not Left.of(made.program).difference(Left.of(constant.program))


def uncommit(made: Case, version: int) -> None:
    """Spark forgets that it finished a batch, as after a crash just before it noted so."""
    for name in (str(version), f".{version}.crc"):
        (made.program.checkpoint / "commits" / name).unlink(missing_ok=True)


@pytest.mark.extra
def test_a_version_delivered_twice_is_once_in_a_file_sink(spark: SparkSession, tmp_path: Path) -> None:
    made = case(tmp_path, "windowed", files=5)
    made.offer(4)
    made.run(spark)
    before, files = Left.of(made.program), listed_files(made.program.output)
    uncommit(made, 3)
    query = made.run(spark, instances=3)
    progress = query.lastProgress
    assert progress is not None
    assert progress["headrace"]["replayed"]
    assert progress["batchId"] == 3
    assert not Left.of(made.program).difference(before)
    assert listed_files(made.program.output) == files
    assert spark.read.parquet(str(made.program.output)).count() == len(before.output)
    made.offer(5)
    made.run(spark)
    undisturbed = Case(Program("windowed", made.program.source, tmp_path / "undisturbed"), made.all_files)
    undisturbed.run(spark)
    assert not Left.of(made.program).difference(Left.of(undisturbed.program))


@pytest.mark.extra
def test_a_version_delivered_twice_has_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    made = case(tmp_path, files=3)
    made.offer(3)
    made.run(spark)
    last = made.program.output / "batch-000002.parquet"
    first_time = in_order(spark.read.parquet(str(last)).toPandas())
    last.unlink()
    uncommit(made, 2)
    made.run(spark, instances=4)
    assert in_order(spark.read.parquet(str(last)).toPandas()) == first_time


@pytest.mark.extra
def test_state_without_its_offsets_is_not_mixed_with_a_new_stream(spark: SparkSession, tmp_path: Path) -> None:
    """Somebody removed the folder with our state and kept Spark's: version 3 has nothing to build on."""
    made = case(tmp_path, files=4)
    made.offer(3)
    made.run(spark)
    shutil.rmtree(made.program.checkpoint / "headrace")
    made.offer(4)
    with pytest.raises(CheckpointError):
        made.run(spark)
