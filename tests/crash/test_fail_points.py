"""An abort or kill -9 at every named point, then a restart: the output is Spark's, or output and state are those of an undisturbed run.

Starting Spark takes longer than all the rest, so points are tried in chains on one checkpoint: die at the first point,
restart, die at the second some versions later, and so on, each time with another number of instances.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headrace.chaos.processes import kill_session, parent_of
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import DRIVER_POINTS, TASK_POINTS
from headrace.testing import FAIL_POINTS, QueryTest, assert_same_rows
from tests.crash.conftest import Undisturbed
from tests.crash.harness import (
    KILLED,
    RUN_SECONDS_MAX,
    Left,
    Program,
    wait_for_pid,
    wait_until_gone,
    write_input,
)

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def sliding(rows: Any) -> Any:
    windows = rows.withWatermark("ts", "10 seconds").groupBy("k", F.window("ts", "40 seconds", "15 seconds"))
    return windows.agg(F.count("*").alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"))


def test_a_query_that_breaks_off_at_any_point_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Every point of the driver and of a task, in one process: what was written by then is all that the next life finds.

    All windows are closed in the end, so the results are Spark's only if the state was right all the time.
    """
    out, random = tmp_path / "out", Random(4)

    def query(rows: Any) -> dict[str, Any]:
        windows = sliding(rows)
        return {"kept": windows, "files": windows.writeStream.format("parquet").option("path", str(out))}

    with QueryTest(spark, tmp_path) as t:
        rows = t.source("k long, ts timestamp, v double")
        t.start(query, instances=2, depthMax=2, versionsToKeep=3)
        for number, point in enumerate(FAIL_POINTS):
            with t.batch():
                rows.add(*[(random.choice([None, *range(9)]), at(60 * number + random.random() * 70), random.random()) for _ in range(60)])
                if number > 1:
                    rows.add((1, at(0), 1.0), late=True)
            t.abort(point)
            t.restart(instances=1 + number % 3)
        rows.advance(at(10_000))
        t.run()
        t.assert_same_as_spark(sliding)
        assert len(t.rows()) > 200
        assert t.late_rows() == len(FAIL_POINTS) - 2
        assert_same_rows(spark.read.parquet(str(out)).collect(), t.rows(), what="files and what was kept")


@pytest.mark.extra
def test_workers_and_drivers_are_killed(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """A worker dies at every point of a task, each in a version of its own; then the driver, with a version committed but not delivered."""
    lives = ([*TASK_POINTS, "manifest-after"],)
    source = write_input(tmp_path / "input", files=len(TASK_POINTS) + 4, seed=1)
    program = Program("windowed", source, tmp_path / "crashed")
    version, died = 0, set()
    for life, points in enumerate(lives, start=1):
        here = [f"{point}@{version + at}" for at, point in enumerate(points, start=1)]
        version += len(points)
        code = program.run(1 + life, ",".join(here))
        assert code == KILLED, f"{here[-1]} was not reached: exit code {code}\n{program.said()}"
        died.update(here)
    program.finish(1)
    assert program.marks() == died
    assert not Left.of(program).difference(undisturbed("windowed", source, tmp_path / "undisturbed"))


@pytest.mark.extra
def test_driver_and_workers_are_killed_at_every_point(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """In each life a worker dies in one version, which costs a task attempt, and the driver in the next."""
    source = write_input(tmp_path / "input", files=2 * len(DRIVER_POINTS) + 2, seed=1)
    program = Program("windowed", source, tmp_path / "crashed")
    died = set()
    for life, (of_driver, of_task) in enumerate(zip_longest(DRIVER_POINTS, TASK_POINTS), start=1):
        points = [f"{of_task}@{2 * life - 1}"] if of_task else []
        points.append(f"{of_driver}@{2 * life}")
        code = program.run(1 + life % 3, ",".join(points))
        assert code == KILLED, f"{of_driver} was not reached: exit code {code}\n{program.said()}"
        died.update(points)
    program.finish(2)
    assert program.marks() == died
    assert not Left.of(program).difference(undisturbed("windowed", source, tmp_path / "undisturbed"))


@pytest.mark.extra
@pytest.mark.parametrize("kind", ["running", "graph"])
def test_workers_die_at_every_point(kind: str, tmp_path: Path, undisturbed: Undisturbed) -> None:
    """After some of them the driver dies too, and the query goes on with other instances."""
    source = write_input(tmp_path / "input", files=len(TASK_POINTS) + 2, seed=2)
    program = Program(kind, source, tmp_path / "crashed")
    points = [f"{point}@{version}" for version, point in enumerate(TASK_POINTS, start=1)]
    code = program.run(2, ",".join([*points[:3], "job-done@3"]))
    assert code == KILLED, f"exit code {code}\n{program.said()}"
    code = program.run(3, ",".join(points[3:]))
    assert code == 0, f"exit code {code}\n{program.said()}"
    assert program.marks() == {*points, "job-done@3"}
    assert not Left.of(program).difference(undisturbed(kind, source, tmp_path / "undisturbed"))


@pytest.mark.extra
def test_a_zombie_that_wakes_up_after_the_recovery_changes_nothing(tmp_path: Path) -> None:
    """A worker hangs before it writes its run; its query dies, is restarted and finishes; then the worker goes on."""
    source = write_input(tmp_path / "input", files=4, seed=3)
    program = Program("running", source, tmp_path / "crashed")
    process = program.start(2, "run-before@2=wait")
    mark = program.work / "marks" / "run-before@2"
    zombie = None
    try:
        zombie = wait_for_pid(mark, RUN_SECONDS_MAX)
        # The workers' parent first: it would take its children with it.
        os.kill(parent_of(zombie), signal.SIGKILL)
        kill_session(process, spare=(zombie,))
        program.finish(3)
        before = Left.of(program)
        runs = program.checkpoint / "headrace" / "runs"
        files = set(runs.iterdir())
        mark.unlink()
        assert not wait_until_gone(process.pid, 20)
    finally:
        kill_session(process)
    late = set(runs.iterdir()) - files
    assert late, "the zombie wrote its run, and perhaps compacted too"
    assert not Left.of(program).difference(before)
    checkpoint = Checkpoint.existing(str(program.checkpoint))
    checkpoint.claim()
    assert checkpoint.sweep() == len(late)
    assert set(runs.iterdir()) == files
    assert not Left.of(program).difference(before)
