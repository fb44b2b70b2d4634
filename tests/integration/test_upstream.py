"""With ``recovery("upstream")`` no state is kept safe: open windows are computed again from the first batch that they depend on.

A restart finds nothing but the journal and Spark's offsets. All results are compared with Spark's batch answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.errors import CheckpointMismatchError, UnsupportedError
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.verification import verify
from headrace.testing import QueryTest

pytestmark = pytest.mark.spark

ROWS = "k long, ts timestamp, v long"


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def some_rows(seed: int, begin_s: int, count: int = 40, keys: int = 9) -> list[tuple[int, datetime, int]]:
    random = Random(seed)
    return [(random.randrange(keys), at(begin_s + random.random() * 40), random.randrange(100)) for _ in range(count)]


def sliding(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "40 seconds", "15 seconds")).agg(F.sum("v").alias("s"))


def windows_of_windows(rows: Any) -> Any:
    minutes = rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "20 seconds")).agg(F.sum("v").alias("s"))
    return minutes.groupBy(F.window("window", "1 minute")).agg(F.max("s").alias("m"), F.count("*").alias("n"))


def once(rows: Any) -> Any:
    return rows.withWatermark("ts", "10 seconds").dropDuplicates(["k", "ts"]).select("k", "ts")


def joined_last(rows: Any) -> Any:
    timed = rows.withWatermark("ts", "1 second")
    return timed.join(timed, on="k", last=3)


def rebuilt(t: QueryTest) -> int:
    progress = t.query.lastProgress
    assert progress is not None
    return int(progress["headrace"]["versionsRebuilt"])


def journaled(t: QueryTest) -> list[int]:
    return [int(each) for each in Checkpoint(str(t.checkpoint)).journal.versions()]


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        (sliding, "append"),
        pytest.param(sliding, "update", marks=pytest.mark.extra),
        pytest.param(windows_of_windows, "append", marks=pytest.mark.extra),
        pytest.param(once, "append", marks=pytest.mark.extra),
    ],
)
def test_open_windows_are_computed_again_from_the_rows_that_they_depend_on(t: QueryTest, query: Callable[..., Any], mode: str) -> None:
    rows = t.source(ROWS)
    t.start(query, mode=mode, instances=2, recovery="upstream")
    for number in range(8):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    t.rescale(3)
    rows.add(*some_rows(8, 240))
    t.run()
    assert not Checkpoint(str(t.checkpoint)).manifests.versions(), "nothing is durable"
    rows.add(*some_rows(9, 270))
    t.abort("job-done")
    assert len(journaled(t)) < 7, "records of versions on which nothing depends are removed"
    t.restart(instances=1)
    assert 1 <= rebuilt(t) < 6, "only the last versions were computed again"
    rows.add(*some_rows(10, 300))
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    assert t.rows()
    assert not verify(Checkpoint(str(t.checkpoint)), []).broken


@pytest.mark.extra
@pytest.mark.parametrize("point", ["batch-begin", "flush-done", "manifest-before", "manifest-after", "deliver-after"])
def test_a_driver_that_dies_anywhere_changes_nothing(t: QueryTest, point: str) -> None:
    rows = t.source(ROWS)
    t.start(sliding, instances=2, recovery="upstream")
    for number in range(5):
        rows.add(*some_rows(number, 40 * number))
        t.abort(point)
        t.restart(instances=1 + number % 3)
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()


@pytest.mark.extra
def test_a_checkpoint_may_come_between(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(sliding, instances=2, recovery="upstream")
    for number in range(4):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    assert t.query.checkpoint() == 3
    for number in range(4, 6):
        rows.add(*some_rows(number, 30 * number))
        t.abort("job-done")
        t.restart()
        assert rebuilt(t) == number - 4, "from the checkpoint"
    for number in range(6, 12):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    rows.add(*some_rows(12, 360))
    t.abort("manifest-after")
    assert Checkpoint(str(t.checkpoint)).manifests.versions() == [3]
    t.restart()
    assert 1 <= rebuilt(t) <= 6, "not from the checkpoint, which is too old to matter"
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()
    # A graceful stop makes the last version durable.
    t.restart()
    rows.add(*some_rows(13, 20_000))
    t.run()
    assert rebuilt(t) == 0
    rows.advance(at(30_000))
    t.run()
    t.assert_same_as_spark()


@pytest.mark.extra
def test_the_approach_checkpoint_need_not_go_back_to_its_checkpoint_either(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(sliding, instances=2, checkpointSeconds=100_000)
    for number in range(12):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    rows.add(*some_rows(12, 360))
    t.abort("job-done")
    assert journaled(t) == list(range(12))
    t.restart()
    assert 1 <= rebuilt(t) < 6
    rows.advance(at(10_000))
    t.run()
    t.assert_same_as_spark()


@pytest.mark.extra
@pytest.mark.extra
def test_a_checkpoint_is_forced_before_spark_forgets_the_offsets(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = "spark.sql.streaming.minBatchesToRetain"
    before = spark.conf.get(name)
    spark.conf.set(name, "14")
    try:
        with QueryTest(spark, tmp_path) as t:
            rows = t.source(ROWS)
            t.start(sliding, instances=1, recovery="upstream")
            for number in range(10):
                rows.add((number % 3, at(100 + number % 9), number))
                t.run()
            durable = Checkpoint(str(t.checkpoint)).manifests.versions()
            assert durable, "all batches are in open windows, and Spark keeps the offsets of 14"
            rows.add((1, at(105), 10))
            t.abort("job-done")
            t.restart()
            assert rebuilt(t) <= 4
            rows.advance(at(10_000))
            t.run()
            t.assert_same_as_spark()
    finally:
        spark.conf.set(name, str(before))
    assert "raise spark.sql.streaming.minBatchesToRetain" in caplog.text


def test_a_missing_record_is_refused(t: QueryTest) -> None:
    rows = t.source(ROWS)
    t.start(sliding, instances=2, recovery="upstream")
    for number in range(8):
        rows.add(*some_rows(number, 30 * number))
    t.run()
    rows.add(*some_rows(8, 240))
    t.abort("job-done")
    kept = journaled(t)
    assert kept[0] > 0
    for number in (kept[0], kept[1]):
        path = t.checkpoint / "headrace" / "journal" / f"{number:012d}.json"
        path.rename(path.with_suffix(".away"))
        with pytest.raises(CheckpointMismatchError, match=f"none of version {number}"):
            t.restart()
        assert verify(Checkpoint(str(t.checkpoint)), []).broken
        path.with_suffix(".away").rename(path)
    t.restart()
    t.run()
    t.assert_same_as_spark()


def refused(query: Callable[[Any], Any], mode: str, spark: SparkSession, folder: Path) -> str:
    (folder / "in").mkdir(exist_ok=True)
    stream = hr.stream(spark.readStream.schema(ROWS).json(str(folder / "in")))
    with pytest.raises(UnsupportedError) as found:
        query(stream).writeStream.outputMode(mode).format("noop").option("checkpointLocation", str(folder / "c")).recovery(
            "upstream"
        ).start()
    return str(found.value)


@pytest.mark.parametrize(
    ("query", "mode", "text"),
    [
        (lambda rows: rows.groupBy("k").count(), "update", "no event time with a watermark"),
        (lambda rows: rows.groupBy("k", F.window("ts", "1 minute")).count(), "update", "no event time with a watermark"),
        (sliding, "complete", "its output mode is complete"),
        (lambda rows: rows.dropDuplicates(["k"]), "append", "no event time with a watermark"),
        (lambda rows: rows.withWatermark("ts", "1 second").dropDuplicates(["k"]), "append", "rows of any age"),
        (
            lambda rows: rows.withWatermark("ts", "1 second").groupBy("k", F.session_window("ts", "8 seconds")).count(),
            "append",
            "rows of any age",
        ),
        (lambda rows: rows.groupBy("k", hr.count_window(3, order="arrival")).count(), "update", "no event time with a watermark"),
        (joined_last, "append", "rows of any age"),
    ],
)
def test_state_without_a_bound_is_refused(query: Callable[[Any], Any], mode: str, text: str, spark: SparkSession, tmp_path: Path) -> None:
    assert text in refused(query, mode, spark, tmp_path)
