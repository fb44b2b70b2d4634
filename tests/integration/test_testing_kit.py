"""The testing kit on real queries: it feeds, aborts and compares as it says, and its assertions fail when they must.

That an abort at every fail point followed by a restart gives Spark's answer is tested in ``tests/crash/test_fail_points.py``.
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
from headrace.errors import BatchFailedError, CheckpointMismatchError, QueryError
from headrace.testing import QueryTest, Source, assert_same_rows

pytestmark = pytest.mark.spark

CALLS = "src string, ts timestamp, seconds long"


@pytest.fixture
def t(spark: SparkSession, tmp_path: Path) -> Iterator[QueryTest]:
    with QueryTest(spark, tmp_path) as made:
        yield made


def totals(calls: Any) -> Any:
    return calls.groupBy("src").agg(F.sum("seconds").alias("total"))


def by_minute(calls: Any) -> Any:
    timed = calls.withWatermark("ts", "10 seconds")
    return timed.groupBy("src", F.window("ts", "1 minute")).agg(F.sum("seconds").alias("total"), F.avg("seconds").alias("mean"))


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def some_calls(seed: int, begin_s: int, count: int = 20) -> list[tuple[str, datetime, int]]:
    random = Random(seed)
    return [(f"caller {random.randrange(9)}", at(begin_s + random.random() * 40), random.randrange(100)) for _ in range(count)]


def wrong_in_three_ways(calls: Any) -> dict[str, Any]:
    """Where it runs as a stream, three of the sinks get something wrong."""
    kept = calls.select("src", "seconds")
    if not isinstance(calls, hr.Stream):
        return {"lost": kept, "doubled": kept, "changed": kept, "right": totals(calls)}
    is_bob = F.col("src") == "bob"
    times = F.when(is_bob, F.array(F.lit(1), F.lit(2))).otherwise(F.array(F.lit(1)))
    return {
        "lost": kept.filter(~is_bob),
        "doubled": kept.withColumn("time", F.explode(times)).drop("time"),
        "changed": kept.withColumn("seconds", F.col("seconds") + F.when(is_bob, 1).otherwise(0)),
        "right": totals(calls),
    }


def test_a_lost_a_doubled_and_a_changed_row_fail_and_are_named(t: QueryTest) -> None:
    calls = t.source(CALLS)
    t.start(wrong_in_three_ways, {"right": "complete"})
    calls.add(("ada", at(0), 60), ("bob", at(1), 10))
    calls.add(("ada", at(2), 30))
    t.run()
    t.assert_same_as_spark(sink="right")
    for sink, line in {
        "lost": "missing     src='bob', seconds=10",
        "doubled": "doubled     src='bob', seconds=10: 2 times, wanted 1",
        "changed": "wrong       src='bob', seconds=11: wanted seconds=10",
    }.items():
        with pytest.raises(AssertionError) as caught:
            t.assert_same_as_spark(sink=sink)
        head, *lines = str(caught.value).splitlines()
        assert head.startswith(f"{sink} after batch 1 and Spark's batch answer differ (")
        assert lines == [f"  {line}"]
    # Against rows that are written down, in any order.
    t.assert_rows([("bob", 10), ("ada", 90)], "right")
    t.assert_rows(t.spark.createDataFrame([("ada", 90), ("bob", 10)], "src string, total long"), "right")
    with pytest.raises(AssertionError, match="total=90: wanted total=91"):
        t.assert_rows([("bob", 10), {"src": "ada", "total": 91}], "right")
    with pytest.raises(AssertionError, match=r"columns are struct<src:string,total:bigint>, those of .* struct<src:string,total:int>"):
        t.assert_rows(t.spark.createDataFrame([("ada", 90)], "src string, total int"), "right")


def test_a_late_row_is_dropped_counted_and_noticed_unless_it_was_said_to_be_late(t: QueryTest) -> None:
    calls = t.source(CALLS)
    t.start(by_minute)
    assert t.watermark() is None
    calls.add(("ada", "2026-01-01 00:00:05", 60), ("ada", "2026-01-01 00:00:50", 30), ("bob", "2026-01-01 00:00:59", 10))
    t.run()
    assert t.rows() == [], "the window is open"
    assert t.watermark() == at(49)
    calls.advance("2026-01-01 00:01:30")
    t.run()
    assert t.watermark() == at(80)
    minute = ("2026-01-01 00:00:00", "2026-01-01 00:01:00")
    t.assert_rows([("ada", minute, 90, 45.0), ("bob", minute, 10, 10.0)])
    t.assert_same_as_spark()
    assert t.late_rows() == 0
    calls.add(("ada", at(30), 7), late=True)
    t.run()
    assert t.late_rows() == 1
    t.assert_same_as_spark()
    # Aborted after the commit, the version is only delivered again; what it dropped is known all the same.
    with t.batch():
        calls.add(("ada", at(31), 5))
        calls.add(("cy", at(90), 5))
    t.abort("manifest-after")
    t.restart()
    assert t.late_rows() == 2
    with pytest.raises(AssertionError, match=r"src='ada', window=.* total=90, mean=45.0: wanted total=95, mean=31.6"):
        t.assert_same_as_spark()


def test_a_batch_that_is_delivered_again_must_have_the_same_rows(t: QueryTest) -> None:
    numbers = t.source("n long")
    tries: list[int] = []
    t.start(lambda numbers: numbers.select("n").withColumn("try", F.lit(len(tries))), "append")
    numbers.add(1, 2)
    t.abort("deliver-after")
    tries.append(1)
    with pytest.raises(BatchFailedError, match="batch 0 of 'result' was delivered again, and its rows differ"):
        t.restart()
    tries.clear()
    t.restart()
    t.assert_rows([(1, 0), (2, 0)])


def test_aborts_in_a_row_and_batches_that_wait(t: QueryTest) -> None:
    calls = t.source(CALLS)
    t.start(totals, "update")
    calls.add(("ada", at(0), 1))
    calls.add(("ada", at(1), 10), ("bob", at(1), 10))
    t.abort("job-done")
    t.abort("batch-begin")
    t.abort("manifest-after")
    with pytest.raises(QueryError, match=r"batch 0 to come to 'manifest-before'; found that it never did; a version that was committed"):
        t.abort("manifest-before")
    assert t.rows() == [("ada", 1)]
    t.run()
    assert t.rows() == [("ada", 11), ("bob", 10)]
    assert t.rows(batch=-1) == t.rows(batch=1)
    assert t.state() == t.rows()


def test_rows_of_several_sources_share_a_batch_every_time(t: QueryTest) -> None:
    left, right = t.source("k string, v long", "left"), t.source("k string, v long", "right")
    t.start(lambda left, right: left.union(right).groupBy("k").agg(F.sum("v").alias("v")), "update")
    for at_ in range(5):
        with t.batch():
            left.add(("both", at_))
            right.add(("both", 100))
            right.add(("both", 1000))
    right.add()
    t.run()
    assert [t.rows(batch=at_)[0].v for at_ in range(5)] == [1100 * (at_ + 1) + sum(range(at_ + 1)) for at_ in range(5)]
    assert t.rows(batch=5) == [], "a batch without rows"
    t.assert_same_as_spark()


@pytest.mark.extra
def test_rescaled_moved_and_restarted_with_another_number(t: QueryTest) -> None:
    calls = t.source(CALLS)
    t.start(totals, "complete", instances=2)
    for number, change in enumerate([lambda: t.rescale(3), lambda: t.move(range(2000), to=2), lambda: t.restart(instances=1)]):
        calls.add(*some_calls(number, 0))
        t.run()
        change()
    assert t.query.routing()["aggregate"].instances == 1
    calls.add(*some_calls(9, 0))
    t.run()
    assert len(t.query.lastProgress["headrace"]["instances"]) == 1
    t.assert_same_as_spark()


@pytest.mark.extra
def test_a_sink_of_the_user_s_own_beside_one_that_is_kept(t: QueryTest, tmp_path: Path) -> None:
    def query(calls: Any) -> dict[str, Any]:
        firsts = calls.dropDuplicates(["src"])
        return {"files": firsts.writeStream.format("parquet").option("path", str(tmp_path / "out")), "kept": firsts.select("src")}

    calls = t.source(CALLS)
    t.start(query)
    calls.add(("ada", at(0), 1), ("bob", at(0), 1))
    t.abort("deliver-after")
    t.restart()
    calls.add(("ada", at(5), 2), ("cy", at(5), 2))
    t.run()
    written = t.spark.read.parquet(str(tmp_path / "out")).select("src").collect()
    assert_same_rows(written, [("ada",), ("bob",), ("cy",)])
    t.assert_rows(["ada", "bob", "cy"])
    with pytest.raises(QueryError, match=r"rows at test_testing_kit.py:\d+: wanted the name of a sink: kept; found 'files'"):
        t.rows("files")


def test_a_restart_with_another_program(t: QueryTest) -> None:
    calls = t.source(CALLS)
    t.start(lambda calls: totals(calls).named("totals"), "update")
    calls.add(("ada", at(0), 60), ("bob", at(0), 5))
    t.run()
    with pytest.raises(CheckpointMismatchError):
        t.restart(lambda calls: totals(calls.filter("seconds > 9")))
    t.restart(lambda calls: totals(calls.filter("seconds > 9")).named("totals"))
    calls.add(("ada", at(1), 10), ("bob", at(1), 6))
    t.run()
    assert t.rows() == [("ada", 70), ("bob", 5)]


def test_a_query_that_fails_goes_on_with_that_batch(t: QueryTest) -> None:
    numbers = t.source("n int")
    t.start(lambda numbers: numbers.select((F.lit(60) / F.col("n")).alias("x")), "append")
    numbers.add(0)
    numbers.add(5)
    with pytest.raises(QueryError, match="DIVIDE_BY_ZERO"):
        t.run()
    with pytest.raises(QueryError, match=r"run at .*: wanted a query that runs; found one that ended: .*; call restart\(\) first"):
        t.run()
    t.restart(lambda numbers: numbers.select(F.try_divide(F.lit(60), "n").alias("x")))
    t.run()
    t.assert_rows([None, 12])


Mistake = Callable[[QueryTest, Source], Any]


def nested_batches(t: QueryTest, calls: Source) -> None:
    with t.batch(), t.batch():
        calls.add(("ada", at(0), 1))


def unread(t: QueryTest, calls: Source) -> None:
    t.source("a int", "other").add(1)
    t.run()


def unprocessed(t: QueryTest, calls: Source) -> None:
    calls.add()
    t.assert_same_as_spark()


def not_of_spark(t: QueryTest, calls: Source) -> None:
    t.run()
    t.assert_same_as_spark(lambda calls, _: calls.split(a="true"))


BEFORE: list[tuple[Mistake, str]] = [
    (lambda t, _: t.run(), r"run at test_testing_kit.py:\d+: wanted a query; found none; call start\(query\)"),
    (lambda t, _: t.rows(), "rows at .*: wanted a query; found none"),
    (lambda t, _: t.start(lambda calls: 7), "returns a stream or a writer, or a dict of them; found int"),
    (lambda t, _: t.start(totals, "update", keys=["dst"]), "keys among src, total; found dst"),
    (lambda t, _: t.source("a int", "calls"), "one for each source; found 'calls' a second time"),
    (lambda t, _: t.source("a int", "../x"), "a name of letters and digits, .* found '../x'"),
    (lambda t, calls: calls.add(("ada", 1)), "source 'calls', add at .*: wanted rows of 3 values: src, ts, seconds; found 2"),
    (lambda t, calls: calls.add(t.spark.range(1)), "columns struct<src:string,ts:timestamp,seconds:bigint>"),
    (lambda t, _: t.source("a int").advance("2026-01-01"), "wanted column=..., .*; found none"),
]
AFTER: list[tuple[Mistake, str]] = [
    (lambda t, _: t.start(totals), r"one start; found a query that was started before; call restart\(\)"),
    (lambda t, _: t.abort("half-way"), "a fail point: batch-begin, .*; found 'half-way'"),
    (lambda t, _: t.abort("batch-begin"), "rows for the batch that is to break off; found none; add some first"),
    (lambda t, _: t.rows(batch=7), r"a batch that was delivered: \[\]; found 7"),
    (lambda t, _: t.rows("totals"), "the name of a sink: result; found 'totals'"),
    (nested_batches, "one batch at a time"),
    (unread, "found one that does not read other"),
    (unprocessed, r"batches to process: 1; call run\(\) first"),
    (not_of_spark, "a query that Spark's DataFrames can run"),
]


def test_mistakes_are_told_at_the_user_s_line_and_the_test_goes_on(t: QueryTest) -> None:
    calls = t.source(CALLS, "calls")
    for mistake, message in BEFORE:
        with pytest.raises(QueryError, match=message):
            mistake(t, calls)
    t.start(lambda calls, *_: calls.select("src"), "append")
    for mistake, message in AFTER:
        with pytest.raises(QueryError, match=message):
            mistake(t, calls)
    calls.add(("ada", at(0), 1))
    t.run()
    assert t.rows() == [("ada",)]


@pytest.mark.extra
def test_results_of_unknown_keys_are_not_guessed(t: QueryTest) -> None:
    calls = t.source(CALLS)
    renamed = lambda calls: totals(calls).select(F.upper("src").alias("who"), "total")  # noqa: E731
    t.start(renamed, "update")
    calls.add(("ada", at(0), 1))
    calls.add(("ada", at(0), 2))
    t.run()
    with pytest.raises(QueryError, match=r"the columns that identify a result; found none; start it with keys="):
        t.rows()
    t.restart(keys=["who"])
    assert t.rows() == [("ADA", 3)]
    t.assert_same_as_spark()


def test_files_without_a_folder_are_removed(spark: SparkSession) -> None:
    with QueryTest(spark) as t:
        t.source("a int").add(1)
        assert t._folder.exists()
    assert not t._folder.exists()


def test_a_session_that_is_open_is_not_in_sparks_answer(t: QueryTest) -> None:
    """Spark pushes a filter on the end of a session below the merging of sessions, and would give the first call of bob's as a session."""

    def sessions(calls: Any) -> Any:
        timed = calls.withWatermark("ts", "0 seconds")
        return timed.groupBy("src", F.session_window("ts", "10 seconds")).agg(F.count("*").alias("n"))

    calls = t.source(CALLS)
    t.start(sessions)
    calls.add(("ada", at(1), 1), ("bob", at(2), 1), ("bob", at(9), 1), ("cy", at(15), 1))
    t.run()
    assert [(row.src, row.n) for row in t.rows()] == [("ada", 1)]
    t.assert_same_as_spark()
