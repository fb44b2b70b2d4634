"""How queries start, stop and fail: no finished batch runs twice, nothing is left behind, and the reason is one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace as hr
from headrace.api.query import HeadraceQuery
from headrace.errors import BatchFailedError, CheckpointError, QueryError
from headrace.runtime.failures import Stopping, full_text
from tests.crash.batches import batches

pytestmark = pytest.mark.spark

KEYS = 3
PAGE = 600
"""Characters; what a user is shown must be less."""


class Case:
    """A count per key over files that are handed out one by one; a file is a batch."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.source, self.checkpoint = spark, folder / "in", folder / "checkpoint"
        self.source.mkdir()
        self.files = 0
        self.delivered: list[tuple[int, dict[int, int]]] = []
        self.then: Callable[[int], Any] = lambda version: None

    def offer(self, files: int = 1) -> None:
        for _ in range(files):
            (self.source / f"{self.files:04d}.json").write_text("".join(f'{{"k": {k}, "v": {self.files}}}\n' for k in range(KEYS)))
            self.files += 1

    def take(self, rows: DataFrame, version: int) -> None:
        """A sink that is not idempotent."""
        self.delivered.append((version, {row.k: row.n for row in rows.collect()}))
        self.then(version)

    def start(self, prepare: Callable[[DataFrame], DataFrame] = lambda rows: rows) -> HeadraceQuery:
        rows = self.spark.readStream.schema("k int, v int").option("maxFilesPerTrigger", 1).json(str(self.source))
        counted = hr.stream(prepare(rows)).groupBy("k").agg(F.count("*").alias("n"))
        writer = counted.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint))
        return writer.foreachBatch(self.take).start()

    def committed(self) -> int:
        return max(int(path.name) for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit())


@pytest.fixture
def case(spark: SparkSession, tmp_path: Path) -> Case:
    return Case(spark, tmp_path)


def test_stopping_waits_until_spark_has_noted_the_batch(case: Case) -> None:
    """Stopped in the middle of a batch, while more files wait; each batch reaches the sink once, over all restarts.

    A stop may also meet Spark between its two notes of the next batch; then that batch has two files (tests/crash/batches.py).
    """
    case.offer(8)
    for _ in range(3):
        in_batch = threading.Event()
        case.then = lambda version, reached=in_batch: reached.set()  # type: ignore[misc]
        query = case.start()
        assert in_batch.wait(120)
        query.stop()
        assert not query.isActive
        assert query.exception() is None
        assert case.committed() == case.delivered[-1][0]
    query = case.start()
    query.processAllAvailable()
    query.stop()
    read = [len(files) for files in batches(case.checkpoint)]
    assert sum(read) == 8
    assert case.delivered == [(version, dict.fromkeys(range(KEYS), total)) for version, total in enumerate(accumulate(read))]


def test_a_function_of_the_sink_may_stop_its_query(case: Case) -> None:
    case.offer(2)
    running: list[HeadraceQuery] = []
    started = threading.Event()

    def stop(version: int) -> None:
        started.wait(60)
        running[0].stop()

    case.then = stop
    running.append(case.start())
    started.set()
    running[0].awaitTermination()
    assert [version for version, _ in case.delivered] == [0]
    assert case.committed() == 0


def test_what_spark_reads_of_a_batch_that_was_broken_off_is_short() -> None:
    """Spark searches the text by a regular expression that overflows its stack on some thousand characters."""
    assert len(full_text(Stopping())) < 500


def test_a_start_that_fails_late_leaves_nothing_running(case: Case) -> None:
    query = case.start()
    query.stop()
    control = case.checkpoint / "headrace" / "control.json"
    control.mkdir()
    threads = {each.name for each in threading.enumerate()}
    with pytest.raises(CheckpointError, match="control endpoint"):
        case.start()
    assert not case.spark.streams.active
    assert {each.name for each in threading.enumerate()} <= threads | {"headrace-end-of-query"}
    control.rmdir()
    case.offer()
    query = case.start()
    query.processAllAvailable()
    query.stop()
    assert case.delivered[-1] == (0, dict.fromkeys(range(KEYS), 1))


def failure_of(query: HeadraceQuery, kind: type[Exception] = BatchFailedError) -> Exception:
    """What both ways of waiting raise, and ``exception()`` gives."""
    with pytest.raises(kind) as first:
        query.processAllAvailable()
    with pytest.raises(kind) as second:
        query.awaitTermination()
    assert first.value is second.value
    assert query.exception() is first.value
    assert not query.isActive
    said = str(first.value)
    assert len(said) < PAGE, said
    assert "\n" not in said
    assert "org.apache.spark" not in said
    assert "foreach batch sink" not in said
    return first.value


def test_a_failing_function_of_the_sink(case: Case) -> None:
    case.offer(2)

    def refuse(version: int) -> None:
        raise ValueError(f"no room for {version}")

    case.then = refuse
    error = failure_of(case.start())
    assert isinstance(error, BatchFailedError)
    assert isinstance(error.__cause__, ValueError)
    line = refuse.__code__.co_firstlineno + 1
    for part in ("batch 0", "foreachBatch", "ValueError: no room for 0", f"{__file__}, line {line}", "a restart runs it again"):
        assert part in str(error)
    assert "Traceback" in error.details
    case.then = lambda version: None
    query = case.start()
    query.processAllAvailable()
    query.stop()
    assert [version for version, _ in case.delivered] == [0, 0, 1]


def test_a_failing_udf(case: Case) -> None:
    case.offer()

    def odd(v):  # type: ignore[no-untyped-def]
        raise LookupError(f"no such value {v}")

    error = failure_of(case.start(lambda rows: rows.withColumn("k", F.udf(odd, "int")("v"))))
    assert isinstance(error, BatchFailedError)
    line = odd.__code__.co_firstlineno + 1
    for part in ("batch 0, operator", "LookupError: no such value 0", f"in odd, {__file__}, line {line}"):
        assert part in str(error)
    assert "Traceback" in error.details


def test_a_row_that_does_not_fit(case: Case) -> None:
    case.offer()
    error = failure_of(case.start(lambda rows: rows.withColumn("k", F.col("k") / F.lit(0))), QueryError)
    assert "DIVIDE_BY_ZERO" in str(error)
    assert "batch 0, operator" in str(error)


def test_a_file_that_is_damaged(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "parquet"
    folder.mkdir()
    (folder / "damaged.parquet").write_bytes(b"PAR1 and then nothing of use")
    rows = case.spark.readStream.schema("k int").parquet(str(folder))
    query = hr.stream(rows).groupBy("k").count().writeStream.outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
    error = failure_of(query.format("noop").start())
    assert "damaged.parquet" in str(error)
    assert "batch 0" in str(error)


@pytest.mark.extra
def test_sparks_log_of_commits_that_cannot_be_read(case: Case) -> None:
    """Spark fails before any batch."""
    case.offer()
    query = case.start()
    query.processAllAvailable()
    query.stop()
    (case.checkpoint / "commits" / "0").write_text("v9\n{}")
    (case.checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    error = failure_of(case.start())
    assert isinstance(error, BatchFailedError)
    assert "outside of its batches" in str(error)
    assert "v9" in str(error)
    assert "Exception" in error.details


def run_program(part: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.lifecycle", part, str(folder)]
    # A session of its own, as a terminal gives a program: an interrupt from the keyboard goes to all of it.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def test_an_interrupt_from_the_keyboard(tmp_path: Path) -> None:
    """The batch that runs comes to its end, the query stops, and the program sees KeyboardInterrupt and nothing of Java's."""
    said = ""
    with run_program("interrupt", tmp_path) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        for line in program.stdout:
            said += line
            if line == "in a batch\n":
                os.killpg(program.pid, signal.SIGINT)
        errors = program.stderr.read()
    assert program.returncode == 0, errors
    result = json.loads(said.splitlines()[-1])
    assert result == {"interrupted": True, "active": False, "exception": None, "delivered": [0], "committed": 0, "restarted": [0, 1]}
    noise = [line for line in errors.splitlines() if "Exception" in line or "ERROR" in line or line.lstrip().startswith("at ")]
    # Spark's own stop may interrupt its thread while that plans the next batch. Spark prints one line about it.
    assert not [line for line in noise if "ERROR TorrentBroadcast: Store broadcast" not in line], errors


@pytest.mark.extra
def test_sessions_that_are_stopped_and_queries_that_spark_stops(tmp_path: Path) -> None:
    with run_program("stops", tmp_path) as program:
        said, errors = program.communicate()
    assert program.returncode == 0, errors
    result = json.loads(said.splitlines()[-1])
    assert result["exceptions"] == [None] * 4
    assert result["rows"] == result["expected"], "no row lost or doubled in the state"
    assert "StackOverflowError" not in errors
