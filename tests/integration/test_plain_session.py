"""Sessions that Headrace did not make, with Spark's defaults: adaptive execution, above all.

Where a streaming plan has an exchange, Spark then runs it in stages and changes it on the way. Event times must be read from whatever
came out of it. Here are the plans that this does something to; all other tests run on a plain session by ``make test-plain``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.runtime import interpreter, session, start
from headrace.spark import event_times
from tests.integration.both import Feed, assert_equal, plain, settings

pytestmark = pytest.mark.spark

SCHEMA = "k string, ts timestamp, v int"
EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
Prefix = Callable[[DataFrame], DataFrame]


def table(*rows: tuple[str, float, int]) -> pa.Table:
    columns = [[r[0] for r in rows], [EPOCH + timedelta(seconds=r[1]) for r in rows], [r[2] for r in rows]]
    types = (pa.string(), pa.timestamp("us", tz="UTC"), pa.int32())
    return pa.table({name: pa.array(values, kind) for name, values, kind in zip(("k", "ts", "v"), columns, types, strict=True)})


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Feed:
    tables = [
        table(("a", 1, 1), ("b", 12, 2), ("a", 20, 3)),
        # No row of this passes a filter v > 0: behind it a stage is empty, but time goes on.
        table(("c", 60, -1), ("a", 70, -2)),
        table(("a", 65, 5), ("b", 2, 6)),
        table(("a", 200, 7)),
    ]
    return Feed.of(tmp_path_factory.mktemp("plain"), SCHEMA, tables)


@pytest.fixture(scope="module", autouse=True)
def plainly(spark: SparkSession) -> Iterator[None]:
    with plain(spark):
        yield


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """Another ``python3``, which has neither Headrace nor PySpark."""
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')  # type: ignore[attr-defined]
    other.chmod(0o755)
    lacking = subprocess.run([other, "-c", "import headrace"], capture_output=True, text=True, cwd=tmp_path)
    assert "No module named 'headrace'" in lacking.stderr, "run the tests in a virtual environment"
    return other


def counted(stream: Any) -> Any:
    return stream.groupBy("k", F.window("ts", "10 seconds")).agg(F.count("*").alias("n"), F.sum("v").alias("s"))


def marked(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("ts", "5 seconds")


def names(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([("a", "Anna"), ("b", "Bert"), ("c", "Carl")], "k string, name string")


def joined_by_broadcast(spark: SparkSession) -> Prefix:
    return lambda rows: marked(rows).join(F.broadcast(names(spark)), "k")


def joined_by_sorting(spark: SparkSession) -> Prefix:
    return lambda rows: marked(rows).join(names(spark).hint("merge"), "k")


def joined_with_a_cached_table(spark: SparkSession) -> Prefix:
    """In three stages, one of them of a table in memory."""
    kept = names(spark).repartition(2).cache()
    return lambda rows: marked(rows).join(kept.hint("shuffle_hash"), "k").repartition(2, "v")


def joined_with_nothing(spark: SparkSession) -> Prefix:
    return lambda rows: marked(rows).join(names(spark).filter("length(name) > 9").hint("merge"), "k", "left")


def emptied_behind_the_mark(spark: SparkSession) -> Prefix:
    """A stage without rows. Spark does not do a filter before the watermark if its outcome may change."""
    return lambda rows: marked(rows).filter("v > 0 or rand() > 2").repartition(2)


def with_a_subquery(spark: SparkSession) -> Prefix:
    names(spark).createOrReplaceTempView("people")
    return lambda rows: marked(rows).filter(F.expr("v < (select count(*) from people) + 100"))


JOINED = [pytest.param(make, marks=pytest.mark.extra) for make in (joined_with_a_cached_table, joined_by_broadcast, joined_by_sorting)]
MORE = [pytest.param(make, marks=pytest.mark.extra) for make in (joined_with_nothing, with_a_subquery)]


@pytest.mark.parametrize("make", [emptied_behind_the_mark, *JOINED, *MORE])
def test_windows_close_whatever_the_streaming_plan_holds(
    make: Callable[[SparkSession], Prefix], spark: SparkSession, feed: Feed, tmp_path: Path
) -> None:
    found = assert_equal(spark, [replace(feed, prefix=make(spark))], counted, "append", tmp_path)
    assert len(found.rows) > 1


@pytest.mark.parametrize("make", JOINED)
def test_event_times_are_found_in_a_plan_that_runs_in_stages(
    make: Callable[[SparkSession], Prefix], spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headrace starts its queries without adaptive execution; where it is on all the same, nothing may be overlooked."""
    monkeypatch.setattr(start, "starting", lambda _: nullcontext())
    monkeypatch.delitem(session.OWN_SETTINGS, session.ADAPTIVE)
    found = assert_equal(spark, [replace(feed, prefix=make(spark))], counted, "append", tmp_path)
    assert len(found.rows) > 1


@pytest.mark.extra
def test_sources_without_rows_keep_their_place(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    """What one source has reached must never be taken for another's, also where a batch has rows of one of them only."""
    late = [table(("z", 30, 1)), table(("z", 75, 2)), table(("z", 120, 3)), table(("z", 300, 4))]
    slow = Feed.of(tmp_path, SCHEMA, late)
    # Nothing at first, then two files together.
    slow.files = [[], slow.files[0] + slow.files[1], [], slow.files[2], slow.files[3]]
    feeds = [replace(each, prefix=lambda rows: marked(rows).repartition(2)) for each in (feed, slow)]
    found = assert_equal(spark, feeds, lambda a, b: counted(a.union(b)), "append", tmp_path)
    assert len(found.rows) > 3


def test_a_branch_that_the_optimiser_removes_counts_as_one_without_rows(spark: SparkSession, feed: Feed, tmp_path: Path) -> None:
    feeds = [replace(feed, prefix=marked), replace(feed, prefix=lambda rows: marked(rows).filter("1 = 0"))]
    pruned = {"spark__sql__optimizer__pruneFiltersCanPruneStreamingSubplan": "true"}
    with settings(spark, spark__sql__streaming__multipleWatermarkPolicy="max", **pruned):
        found = assert_equal(spark, feeds, lambda a, b: counted(a.union(b)), "append", tmp_path)
    assert len(found.rows) > 1


def test_a_watermark_that_cannot_be_read_is_an_error(
    spark: SparkSession, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was where plans in stages were not looked into."""
    monkeypatch.setattr(event_times, "_is_event_time", lambda node: False)
    (tmp_path / "in").mkdir()
    shutil.copy(feed.files[0][0], tmp_path / "in")
    writer = counted(hr.stream(marked(feed.stream(spark, tmp_path / "in")))).writeStream.format("memory").queryName("unreadable")
    query = writer.option("checkpointLocation", str(tmp_path / "ckpt")).start()
    with pytest.raises(hr.HeadraceError, match="1 withWatermark nodes of the query; found 0 of them"):
        query.processAllAvailable()


PROGRAM = """
import sys
from pyspark.sql import SparkSession, functions as F
import headrace as hr

folder = sys.argv[1]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.readStream.schema("k string, ts timestamp, v int").parquet(folder + "/in").withWatermark("ts", "5 seconds").repartition(2, "k")
counts = hr.stream(rows).groupBy("k", F.window("ts", "10 seconds")).count()
query = counts.writeStream.format("memory").queryName("counts").trigger(availableNow=True).start()
query.awaitTermination()
print(sorted((r.k, r["count"]) for r in spark.table("counts").collect()))
"""


@pytest.mark.extra
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_plain_program_runs_whatever_python3_comes_first_on_the_path(feed: Feed, tmp_path: Path, other_python: Path) -> None:
    (tmp_path / "in").mkdir()
    for path in (feed.files[0][0], feed.files[3][0]):
        shutil.copy(path, tmp_path / "in")
    ours = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "OMP_NUM_THREADS", *session.THREADS)}
    env = {**ours, "PATH": f"{other_python.parent}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-W", "error::UserWarning", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "[('a', 1), ('a', 1), ('b', 1)]"


def test_workers_without_headrace_are_refused_before_the_query_starts(
    spark: SparkSession, feed: Feed, tmp_path: Path, other_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other_python))
    monkeypatch.chdir(tmp_path)
    writer = counted(hr.stream(marked(feed.stream(spark, tmp_path / "in")))).writeStream.format("memory").queryName("refused")
    with pytest.raises(hr.HeadraceError) as refused:
        writer.start()
    assert str(other_python) in str(refused.value)
    assert "No module named 'headrace'" in str(refused.value)
    assert "PYSPARK_PYTHON" in refused.value.hint


@pytest.mark.parametrize(("exists", "reason"), [(True, "No module named 'headrace'"), (False, "No such file")])
def test_workers_of_a_cluster_are_asked_by_a_job(
    exists: bool,
    reason: str,
    spark: SparkSession,
    feed: Feed,
    tmp_path: Path,
    other_python: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The job runs in workers of this machine; all else is as on a cluster. The first that a user sees is our error."""
    python = other_python if exists else tmp_path / "nowhere" / "python3"
    monkeypatch.setattr(interpreter, "_is_here", lambda _: False)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    writer = counted(hr.stream(marked(feed.stream(spark, tmp_path / "in")))).writeStream.format("memory").queryName("refused")
    with pytest.raises(hr.HeadraceError, match="Spark's workers run a Python that cannot run this query") as refused:
        writer.start()
    assert reason in refused.value.found, refused.value.found
    assert "Traceback" not in str(refused.value)
    assert "Exception" not in capfd.readouterr().err


def test_workers_of_a_cluster_that_have_headrace_are_taken(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "_is_here", lambda _: False)
    monkeypatch.setattr(interpreter, "_known", set[tuple[str, str]]())
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)
    interpreter.check_workers(spark.sparkContext)
    assert interpreter._known == {(spark.sparkContext.applicationId, sys.executable)}
