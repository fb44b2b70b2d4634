"""Everything in S3 alone, Spark's own logs included: driver and executors share no folder of the checkpoint.

An executor is killed, the driver is killed and restarted, and the results equal Spark's batch answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.store.server import hadoop_settings
from headrace.chaos.processes import kill_session
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import ONCE, VARIABLE
from headrace.runtime.verification import verify
from tests.crash.driver import SCHEMA
from tests.crash.harness import KILLED, ROOT, write_input
from tests.stores.conftest import settings_of
from tests.stores.jars import classpath

SECONDS_MAX = 280

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.slow, pytest.mark.extra]


def run(work: Path, arguments: list[str], fail_points: str = "") -> tuple[int, str]:
    """Run the program to its end, with all its processes. Returns its exit code and what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        VARIABLE: fail_points,
        ONCE: str(work),
    }
    with open(work / "log", "w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.stores.program", *arguments],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS_MAX)
        finally:
            kill_session(process)
        log.seek(0)
        return code, log.read()


def totals(output: Path) -> dict[Any, tuple[Any, ...]]:
    """The newest result of each key."""
    found: dict[Any, tuple[Any, ...]] = {}
    for file in sorted(output.glob("batch-*.parquet")):
        found |= {row["k"]: tuple(row.values()) for row in pq.read_table(file).to_pylist()}
    return found


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
    rows = spark.read.schema(SCHEMA).parquet(str(source))
    answer = rows.groupBy("k").agg(F.count("*"), F.sum("v"), F.min("v"), F.max("v")).collect()
    found = totals(output)
    assert {key: (row[1], *row[3:]) for key, row in found.items()} == {row[0]: (row[1], *row[3:]) for row in answer}
    assert all(found[row[0]][2] == pytest.approx(row[2]) for row in answer)
    checkpoint = Checkpoint(place, settings=settings_of(s3_port))
    checked = verify(checkpoint, checkpoint.manifests.versions())
    assert not checked.broken
    assert checked.bytes
    assert checkpoint.spark_log.newest("commits") == 7
