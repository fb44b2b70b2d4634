"""The guarantees rollback and gap, and the approach amnesia, when the driver is lost. Results are compared with plain Python.

The loss of executors is in tests/cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import CheckpointMismatchError, QueryError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.verification import verify
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark

NEVER = 100_000
"""Seconds between two checkpoints: none is taken unless a test asks for one."""


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def totals(rows: Any) -> Any:
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def _at(second: int) -> datetime:
    return datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)


def batch(number: int) -> list[tuple[int, int]]:
    return [(key, 100 * number + key) for key in range(20) for _ in range(1 + key % 3)]


def counted(*numbers: int) -> dict[int, tuple[int, int]]:
    """By key: count and sum over these batches, by plain Python."""
    count: Counter[int] = Counter()
    total: Counter[int] = Counter()
    for number in numbers:
        for key, value in batch(number):
            count[key] += 1
            total[key] += value
    return {key: (count[key], total[key]) for key in count}


def state_of(query: Any) -> dict[int, tuple[int, int]]:
    return {row.k: (row.n, row.s) for row in query.state().collect()}


def feed(t: QueryTest, rows: Any, numbers: Iterable[int]) -> None:
    for number in numbers:
        rows.add(*batch(number))
        t.run()


def progress(t: QueryTest) -> dict[str, Any]:
    found = t.query.lastProgress
    assert found is not None
    return found["headrace"]


def test_gap_goes_back_to_the_last_checkpoint_and_counts_what_is_missing(t: QueryTest) -> None:
    rows = t.source("k long, v long")
    t.start(totals, mode="update", instances=2, guarantee="gap", checkpointSeconds=NEVER)
    feed(t, rows, range(3))
    assert t.query.checkpoint() == 2
    feed(t, rows, range(3, 6))
    rows.add(*batch(6))
    t.abort("job-done")
    t.restart(instances=1)
    t.run()
    assert state_of(t.query) == counted(0, 1, 2, 6), "batches 3 to 5 are skipped; Spark runs batch 6 again"
    (gap,) = t.query.gaps()
    assert (gap.first, gap.last, gap.rows, gap.slots) == (3, 5, 3 * len(batch(0)), ((0, 4096),))
    assert progress(t)["gaps"] == [gap.to_json()]
    assert progress(t)["versionsRebuilt"] == 0
    feed(t, rows, [7])
    assert progress(t)["gaps"] == [], "a gap is reported once"
    t.stop()
    t.restart()
    feed(t, rows, [8])
    assert state_of(t.query) == counted(0, 1, 2, 6, 7, 8), "nothing is lost by a stop"
    assert len(t.query.gaps()) == 1


@pytest.mark.extra
def test_gap_without_any_checkpoint_begins_empty(t: QueryTest) -> None:
    rows = t.source("k long, v long")
    t.start(totals, mode="update", instances=2, guarantee="gap", checkpointSeconds=NEVER)
    feed(t, rows, range(2))
    rows.add(*batch(2))
    t.abort("batch-begin")
    t.restart()
    t.run()
    assert state_of(t.query) == counted(2)
    assert [(gap.first, gap.last, gap.rows) for gap in t.query.gaps()] == [(0, 1, 2 * len(batch(0)))]


def test_amnesia_begins_empty_but_keeps_the_watermark(t: QueryTest) -> None:
    rows = t.source("k long, v long, ts timestamp")

    def windows(rows: Any) -> Any:
        return rows.withWatermark("ts", "0 seconds").groupBy(F.window("ts", "10 seconds")).agg(F.sum("v").alias("s"))

    t.start(windows, recovery="amnesia")
    for second in (1, 12, 25):
        rows.add((0, second, _at(second)))
        t.run()
    rows.add((0, 26, _at(26)))
    t.abort("job-done")
    t.restart()
    rows.add((0, 2, _at(2)), (0, 41, _at(41)))
    t.run()
    found = {row.window.start.second: row.s for row in t.rows()}
    assert found == {0: 1, 10: 12, 20: 26}, "25 was forgotten; 2 is late, because the watermark is not"
    assert [(gap.first, gap.last) for gap in t.query.gaps()] == [(0, 2)]


def test_a_checkpoint_by_amnesia_is_sound_but_no_query_that_must_not_forget_goes_on_from_it(t: QueryTest) -> None:
    rows = t.source("k long, v long")
    t.start(totals, mode="update", recovery="amnesia")
    feed(t, rows, range(4))
    rows.add(*batch(4))
    t.abort("batch-begin")
    checkpoint = Checkpoint.existing(str(t.checkpoint))
    found = verify(checkpoint, checkpoint.manifests.versions())
    assert not found.broken, "records are missing, but nobody needs them"
    assert any("begins empty" in text for text in found.notable)
    with pytest.raises(CheckpointMismatchError, match=r"versions up to 3 by recovery\('amnesia'\)"):
        t.restart(recovery="checkpoint")
    t.restart()
    t.run()
    assert state_of(t.query) == counted(4)
    t.stop()
    t.restart(recovery="checkpoint")
    feed(t, rows, [5])
    assert state_of(t.query) == counted(4, 5), "stop() has made the state durable"


def test_rollback_delivers_the_last_batch_again_and_loses_nothing(t: QueryTest) -> None:
    rows = t.source("k long, v long")
    t.start(totals, mode="update", instances=2, guarantee="rollback", checkpointSeconds=NEVER)
    feed(t, rows, range(3))
    rows.add(*batch(3))
    t.abort("deliver-after")
    t.restart(instances=3)
    t.run()
    assert progress(t)["versionsRebuilt"] == 3
    assert progress(t)["replayed"] is False, "version 3 had left, but was not committed; it is computed and delivered again"
    feed(t, rows, [4])
    assert state_of(t.query) == counted(0, 1, 2, 3, 4)
    t.assert_same_as_spark()


@pytest.mark.extra
def test_rollback_with_durable_versions_commits_after_delivery(t: QueryTest) -> None:
    rows = t.source("k long, v long")
    t.start(totals, mode="update", guarantee="rollback", checkpointSeconds=0)
    feed(t, rows, range(2))
    rows.add(*batch(2))
    t.abort("deliver-after")
    t.restart()
    t.run()
    assert progress(t)["versionsRebuilt"] == 0
    assert state_of(t.query) == counted(0, 1, 2)
    t.assert_same_as_spark()


def test_the_writer_takes_only_the_words_there_are(spark: SparkSession) -> None:
    writer = hr.stream(spark.readStream.format("rate").load()).groupBy("value").count().writeStream
    assert writer.guarantee("Rollback").recovery("checkpoint") is writer
    with pytest.raises(QueryError, match="checkpoint or peer or active or upstream or amnesia"):
        writer.recovery("hope")
