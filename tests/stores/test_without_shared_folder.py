"""Everything in S3 alone, Spark's own logs included: driver and executors share no folder of the checkpoint.

An executor is killed, the driver is killed and restarted, and the results equal Spark's batch answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.store.server import hadoop_settings
from headrace.chaos.processes import kill_session, session_members
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import ONCE, VARIABLE
from headrace.runtime.fencing import NO_LOCKS
from headrace.runtime.verification import verify
from tests.crash.driver import SCHEMA
from tests.crash.harness import KILLED, ROOT, wait_for_pid, write_input
from tests.stores.conftest import settings_of
from tests.stores.jars import classpath

SECONDS_MAX = 280

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.extra]


def begun(work: Path, arguments: list[str], fail_points: str = "") -> subprocess.Popen[bytes]:
    """Start the program."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {VARIABLE: fail_points, ONCE: str(work)}
    command = [sys.executable, "-m", "tests.stores.program", *arguments]
    with open(work / "log", "w") as log:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def ended(work: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait until the program has ended, with all its processes. Returns its exit code and what it printed."""
    try:
        code = process.wait(SECONDS_MAX)
    finally:
        kill_session(process)
    return code, (work / "log").read_text()


def run(work: Path, arguments: list[str], fail_points: str = "") -> tuple[int, str]:
    return ended(work, begun(work, arguments, fail_points))


def totals(output: Path) -> dict[Any, tuple[Any, ...]]:
    """The newest result of each key."""
    found: dict[Any, tuple[Any, ...]] = {}
    for file in sorted(output.glob("batch-*.parquet")):
        found |= {row["k"]: tuple(row.values()) for row in pq.read_table(file).to_pylist()}
    return found


def assert_right(spark: SparkSession, source: Path, output: Path) -> None:
    """The results equal Spark's batch answer."""
    rows = spark.read.schema(SCHEMA).parquet(str(source))
    answer = rows.groupBy("k").agg(F.count("*"), F.sum("v"), F.min("v"), F.max("v")).collect()
    found = totals(output)
    assert {key: (row[1], *row[3:]) for key, row in found.items()} == {row[0]: (row[1], *row[3:]) for row in answer}
    assert all(found[row[0]][2] == pytest.approx(row[2]) for row in answer)


@pytest.mark.parametrize("seconds", ["0", "2"])
def test_executors_and_driver_are_killed(spark: SparkSession, s3_port: int, place: str, tmp_path: Path, seconds: str) -> None:
    source = write_input(tmp_path / "input", files=8, seed=21)
    settings = {"spark.driver.extraClassPath": classpath("s3a"), **hadoop_settings(s3_port)}
    confs = [f"--conf={name.replace('.', '__')}={value}" for name, value in settings.items()]
    output = tmp_path / "out"
    given = ["local-cluster[2,1,1024]", place, str(source), str(output), *confs, f"--option=checkpointSeconds={seconds}"]
    code, said = run(tmp_path, [*given, "--kill=2"], "job-done@5")
    assert code == KILLED, said
    assert "killed executor" in said
    code, said = run(tmp_path, given)
    assert code == 0, said
    assert_right(spark, source, output)
    checkpoint = Checkpoint(place, settings=lambda: settings_of(s3_port))
    checked = verify(checkpoint, checkpoint.manifests.versions())
    assert not checked.broken
    assert checked.bytes
    assert checkpoint.spark_log.newest("commits") == 7


@pytest.mark.parametrize(("point", "before"), [("job-done", "committing version 2"), ("manifest-after", "delivering version 2")])
def test_a_driver_that_slept_may_neither_commit_nor_deliver(
    spark: SparkSession, s3_port: int, tmp_path: Path, place: str, point: str, before: str
) -> None:
    """It is stopped by SIGSTOP, another one goes on to the end, and then it wakes up. The state is in S3, where there are no locks."""
    source, output, logs = write_input(tmp_path / "input", files=6, seed=11), tmp_path / "out", tmp_path / "checkpoint"
    confs = [f"--conf={name.replace('.', '__')}={value}" for name, value in hadoop_settings(s3_port).items()]
    given = ["local[2,4]", str(logs), str(source), str(output), *confs, f"--option=stateLocation={place}", "--option=versionsToKeep=2"]
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    sleeper = begun(tmp_path / "first", given, f"{NO_LOCKS},{point}@2=wait")
    mark = tmp_path / "first" / f"{point}@2"
    try:
        wait_for_pid(mark, SECONDS_MAX)
        members = session_members(sleeper.pid)
        for pid in members:
            os.kill(pid, signal.SIGSTOP)
        code, said = run(tmp_path / "second", given, NO_LOCKS)
        assert code == 0, said
        before_waking = totals(output)
        mark.unlink()
        for pid in members:
            os.kill(pid, signal.SIGCONT)
    finally:
        code, said = ended(tmp_path / "first", sleeper)
    assert code != 0
    assert "another query has taken over" in said
    assert f"before {before}" in said
    assert totals(output) == before_waking
    assert_right(spark, source, output)
    checkpoint = Checkpoint(str(logs), settings=lambda: settings_of(s3_port))
    assert not verify(checkpoint, checkpoint.manifests.versions()).broken
