"""With ``headrace.checkpointSeconds`` new state stays at home, and versions that were lost are computed again from the source.

A restart finds only what was made durable: the rest of the state was in a folder of the process before, which is gone. All results are
compared with Spark's batch answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import CheckpointMismatchError, CorruptStateError, SourceError, StorageError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import Crash, break_off
from headrace.runtime.verification import verify
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark

ROWS = "k long, ts timestamp, v long"
NEVER = 100_000
"""Seconds between two checkpoints: none is taken unless a test asks for one."""


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def some_rows(seed: int, begin_s: int, count: int = 40) -> list[tuple[int, datetime, int]]:
    random = Random(seed)
    return [(random.randrange(9), at(begin_s + random.random() * 40), random.randrange(100)) for _ in range(count)]


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def sliding(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "40 seconds", "15 seconds")).agg(F.sum("v").alias("s"))


def sessions(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds").groupBy("k", F.session_window("ts", "8 seconds")).agg(F.count("*").alias("n"))


def windows_of_windows(rows: Any) -> Any:
    minutes = rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "20 seconds")).agg(F.sum("v").alias("s"))
    return minutes.groupBy(F.window("window", "1 minute")).agg(F.max("s").alias("m"), F.count("*").alias("n"))


def once(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"]).select("k", "ts")


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        (totals, "update"),
        (sliding, "append"),
        pytest.param(sessions, "append", marks=pytest.mark.extra),
        pytest.param(windows_of_windows, "append", marks=pytest.mark.extra),
        pytest.param(once, "append", marks=pytest.mark.extra),
    ],
)
def test_versions_that_no_checkpoint_has_are_computed_again(t: QueryTest, query: Callable[..., Any], mode: str) -> None:
    rows = t.source(ROWS)
    t.start(query, mode=mode, instances=2, checkpointSeconds=NEVER)
    for number in range(3):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    assert t.query.checkpoint() == 2
    t.rescale(3)
    for number in range(3, 6):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    rows.add(*some_rows(6, 180))
    t.abort("job-done")
    t.restart(instances=1)
    t.run()
    progress = t.query.lastProgress
    assert progress is not None
    rebuilt = progress["headrace"]["versionsRebuilt"]
    if query in (sliding, once):
        assert 1 <= rebuilt < 3, "only batches on which open windows depend"
    else:
        assert rebuilt == 3, "versions 3 to 5; Spark itself runs batch 6 again"
    rows.add(*some_rows(7, 210))
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    assert t.rows()


def test_a_batch_that_was_delivered_is_computed_again_as_its_record_says(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(sliding, instances=2, checkpointSeconds=NEVER)
    for number in range(4):
        rows.add(*some_rows(number, 60 * number))
        t.abort("manifest-after" if number % 2 else "deliver-after")
        t.restart(instances=1 + number)
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    journal = Checkpoint(str(t.checkpoint)).journal
    clocks = [record.now_ms for version in journal.versions() if (record := journal.read(version)) is not None]
    assert len(clocks) == 5
    assert clocks == sorted(clocks)


@pytest.mark.extra
def test_the_interval_may_change_with_every_start(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, checkpointSeconds=NEVER)
    for number, seconds in enumerate([0, NEVER, 0, 0, NEVER, NEVER, 0]):
        rows.add(*some_rows(number, 60 * number))
        t.run()
        rows.add(*some_rows(number + 100, 60 * number + 30))
        t.abort("job-done" if number % 2 else "manifest-after")
        t.restart(checkpointSeconds=seconds)
    t.run()
    t.assert_same_as_spark()
    assert not verify(Checkpoint(str(t.checkpoint)), Checkpoint(str(t.checkpoint)).manifests.versions()).broken


CHECKPOINT_POINTS = ["checkpoint-begin", "checkpoint-round0", "checkpoint-shipped", "checkpoint-committed"]


@pytest.mark.parametrize(
    "point", [point if point == "checkpoint-shipped" else pytest.param(point, marks=pytest.mark.extra) for point in CHECKPOINT_POINTS]
)
def test_a_checkpoint_that_breaks_off_changes_nothing(t: QueryTest, point: str) -> None:
    """Once in the first checkpoint, and once in one that ships a delta on top of another."""
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, checkpointSeconds=NEVER)
    for number in range(3):
        rows.add(*some_rows(number, 60 * number))
    t.run()
    with break_off(point, 2), pytest.raises(Crash):
        t.query.checkpoint()
    rows.add(*some_rows(3, 180))
    t.abort("job-done")
    t.restart(instances=3)
    t.run()
    t.assert_same_as_spark()
    assert t.query.checkpoint() == 3
    for number in (4, 5):
        rows.add(*some_rows(number, 60 * number))
    t.run()
    with break_off(point, 5), pytest.raises(Crash):
        t.query.checkpoint()
    rows.add(*some_rows(6, 360))
    t.run()
    assert t.query.checkpoint() == 6, "what the one before has shipped counts, and the rest is shipped now"
    state = {row.k: row.n for row in t.query.state().collect()}
    assert sum(state.values()) == 280
    rows.add(*some_rows(7, 420))
    t.abort("job-done")
    t.restart(instances=1)
    t.run()
    t.assert_same_as_spark()
    assert not verify(Checkpoint(str(t.checkpoint)), Checkpoint(str(t.checkpoint)).manifests.versions()).broken


@pytest.mark.extra
@pytest.mark.parametrize(("query", "mode"), [(totals, "update"), (sliding, "append"), (sessions, "append")])
def test_a_restart_finds_what_deltas_have_left(t: QueryTest, query: Callable[..., Any], mode: str) -> None:
    """Many checkpoints, some of them broken off, with rescales and compaction in between; then only the durable store is left."""
    rows = t.source(ROWS)
    t.start(query, mode=mode, instances=2, checkpointSeconds=NEVER, depthMax=1)
    for number in range(8):
        rows.add(*some_rows(number, 60 * number))
        t.run()
        rows.add(*some_rows(number + 100, 60 * number + 30))
        t.run()
        if number % 3 == 1:
            with break_off("checkpoint-shipped", 2 * number + 1), pytest.raises(Crash):
                t.query.checkpoint()
            t.rescale(1 + number % 4)
        else:
            assert t.query.checkpoint() == 2 * number + 1
    rows.add(*some_rows(9, 480))
    t.abort("job-done")
    t.restart(instances=3)
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    assert t.rows()
    found = Checkpoint(str(t.checkpoint))
    assert not verify(found, found.manifests.versions()).broken


def test_batches_go_on_while_state_cannot_be_shipped(t: QueryTest) -> None:
    """The folder of runs is away, and a file is in its place. When it is back, the next checkpoint ships everything."""
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, checkpointSeconds=0.05)
    rows.add(*some_rows(0, 0))
    t.run()
    before = t.query.checkpoint()
    runs = Checkpoint(str(t.checkpoint)).runs
    runs.rename(runs.with_name("away"))
    runs.write_bytes(b"")
    for number in range(1, 5):
        rows.add(*some_rows(number, 60 * number))
        t.run()
    with pytest.raises(StorageError):
        t.query.checkpoint()
    found = Checkpoint(str(t.checkpoint))
    assert found.manifests.versions()[-1] == before, "no version counts whose runs are not there"
    assert found.journal.versions()[-1] == 4, "batches went on"
    runs.unlink()
    runs.with_name("away").rename(runs)
    assert t.query.checkpoint() == 4
    assert sum(row.n for row in t.query.state().collect()) == 200
    t.assert_same_as_spark()


@pytest.mark.extra
@pytest.mark.parametrize("order", ["round-robin", "whole"])
def test_every_order_of_shipping_gives_the_same_state(t: QueryTest, order: str) -> None:
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=3, checkpointSeconds=NEVER, checkpointOrder=order)
    for number in range(4):
        rows.add(*some_rows(number, 60 * number))
        t.run()
        assert t.query.checkpoint() == number
    assert sum(row.n for row in t.query.state().collect()) == 160
    progress = t.query.lastProgress
    assert progress is not None
    assert progress["headrace"]["checkpoint"]["units"] == 3


def test_checkpoints_come_by_themselves_and_old_ones_go(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, checkpointSeconds=0.05, versionsToKeep=2)
    for number in range(6):
        rows.add(*some_rows(number, 60 * number))
        t.run()
        before = t.query.checkpoint()
        assert before == number
    found = Checkpoint(str(t.checkpoint))
    assert found.manifests.versions() == [4, 5]
    assert found.journal.versions() == [5]
    named = {ref.file for v in (4, 5) for state in found.manifests.read(v).stores.values() for ref in state.runs}
    assert {path.name for path in found.runs.iterdir()} == named
    assert not verify(found, found.manifests.versions()).broken
    t.assert_same_as_spark()


def journaled(t: QueryTest) -> Path:
    """A query of four versions, none of them durable, that was broken off. Returns the folder of the journal."""
    rows = t.source(ROWS)
    t.start(totals, mode="update", instances=2, checkpointSeconds=NEVER)
    for number in range(4):
        rows.add(*some_rows(number, 60 * number))
    t.run()
    rows.add(*some_rows(4, 240))
    t.abort("job-done")
    return t.checkpoint / "headrace" / "journal"


def test_a_missing_record_is_refused(t: QueryTest) -> None:
    (journaled(t) / "000000000002.json").unlink()
    with pytest.raises(CheckpointMismatchError, match="none of version 2"):
        t.restart()


def test_exchanged_damaged_and_mixed_records_are_refused(t: QueryTest) -> None:
    folder = journaled(t)
    one, two = folder / "000000000001.json", folder / "000000000002.json"
    good = two.read_bytes()
    for content, text in (
        (one.read_bytes(), "the record of version 1 under the number 2"),
        (good.replace(b'"now_ms":', b'"now_ms": '), "another checksum"),
        (good[: len(good) // 2], "no record"),
    ):
        two.write_bytes(content)
        with pytest.raises(CorruptStateError, match=text):
            t.restart()
        assert verify(Checkpoint(str(t.checkpoint)), []).broken
    two.write_bytes(good)
    t.restart()
    t.run()
    t.assert_same_as_spark()


def test_a_source_that_gives_other_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def add(name: str, count: int) -> None:
        (tmp_path / "row").write_text("\n".join(json.dumps({"k": k}) for k in range(count)))
        os.rename(tmp_path / "row", source / name)

    def start() -> Any:
        rows = hr.stream(spark.readStream.schema("k long").option("maxFilesPerTrigger", 1).json(str(source)))
        writer = rows.groupBy("k").count().writeStream.outputMode("update").format("memory").queryName("counts")
        return writer.option("checkpointLocation", str(tmp_path / "c")).option("headrace.checkpointSeconds", NEVER).start()

    query = start()
    add("1.json", 5)
    query.processAllAvailable()
    add("2.json", 5)
    query.processAllAvailable()
    # Spark's own stop takes no last checkpoint.
    query._spark.stop()
    query.awaitTermination()
    add("2.json", 4)
    add("3.json", 5)
    query = start()
    with pytest.raises(CheckpointMismatchError, match="reads the same rows again"):
        query.processAllAvailable()


def test_sources_that_clean_up_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    read = spark.readStream.schema("k long").option("cleanSource", "delete").json(str(tmp_path / "in"))
    writer = hr.stream(read).groupBy("k").count().writeStream.outputMode("update").format("noop").option("headrace.checkpointSeconds", 10)
    with pytest.raises(SourceError, match="cleanSource"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start()


def test_a_stop_leaves_nothing_to_compute_again(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(totals, mode="update", checkpointSeconds=NEVER)
    rows.add(*some_rows(1, 0))
    t.run()
    t.restart()
    rows.add(*some_rows(2, 60))
    t.run()
    progress = t.query.lastProgress
    assert progress is not None
    assert progress["headrace"]["versionsRebuilt"] == 0
    t.assert_same_as_spark()
