"""``headrace chaos`` as a user runs it: a program and a function, with and without executors, and the proof that it can fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import archive
from tests.chaos import own
from tests.crash.harness import ROOT

pytestmark = [pytest.mark.extra, pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900)]

QUICK = ("spark.sql.codegen.wholeStage=false", "spark.sql.codegen.factoryMode=NO_CODEGEN", "spark.sql.shuffle.partitions=2")
FUNCTION = """
from pyspark.sql import functions as F

def totals(rows):
    return rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
"""


def chaos(tmp_path: Path, query: str, *arguments: str, wanted: int = 0) -> tuple[dict[str, Any], str]:
    """Run the command. Returns its JSON and what it said."""
    own.write(tmp_path / "input", 3000, keys=200, files=4)
    command = [sys.executable, "-m", "headrace", "chaos", query, "--out", str(tmp_path / "out"), *arguments]
    for setting in QUICK:
        command += ["--conf", setting]
    options = archive.jvm_options()
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": options, "CHAOS_INPUT": str(tmp_path / "input"), "COLUMNS": "80"}
    done = subprocess.run(
        [*command, "--conf", f"spark.executor.extraJavaOptions={options}"],
        capture_output=True,
        text=True,
        timeout=800,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert done.returncode == wanted, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((tmp_path / "out" / "faults.json").read_text()), done.stdout


def test_a_program_with_three_sinks_loses_executors(tmp_path: Path) -> None:
    kinds = ["--kind", "kill-executor", "--kind", "hang-executor", "--kind", "damage-copies"]
    options = ["--option", "headrace.replicas=1", "--option", "headrace.checkpointSeconds=5"]
    seen, said = chaos(tmp_path, "tests/chaos/own.py", "--faults", "3", "--seed", "3", "--rows", "100", *kinds, *options)
    assert [each["outcome"] for each in seen["faults"]] == ["survived"] * 4
    assert all(each["recovery_s"] > 0 for each in seen["faults"][:3])
    assert [each["kind"] for each in seen["plan"]] == [each["kind"] for each in seen["faults"][:3]]
    assert "0 rows lost, 0 rows doubled" in said
    assert "<svg" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("mutation", ["lose", "double"])
def test_a_row_that_is_lost_or_doubled_on_purpose_fails_the_campaign(tmp_path: Path, mutation: str) -> None:
    query = tmp_path / "user_query.py"
    query.write_text(FUNCTION)
    arguments = ["--input", str(tmp_path / "input"), "--mode", "update", "--master", "local[2,4]", "--faults", "2", "--seed", "1"]
    arguments += ["--kind", "kill-workers", "--kind", "change-routing", "--rows", "100", "--mutate", mutation]
    seen, said = chaos(tmp_path, f"{query}:totals", *arguments, wanted=1)
    outcomes = [each["outcome"] for each in seen["faults"]]
    assert outcomes == ["survived", "survived", "WRONG"]
    assert "FAILED" in said


def test_rows_that_come_late_are_told_before_any_fault(tmp_path: Path) -> None:
    """Spark's batch answer counts late rows, so the comparison would say nothing about faults."""
    query = tmp_path / "user_query.py"
    text = 'rows.withWatermark("ts", "0 seconds").groupBy("k", F.window("ts", "2 seconds")).count()'
    query.write_text(f"from pyspark.sql import functions as F\n\ndef windows(rows):\n    return {text}\n")
    own.write(tmp_path / "input", 3000, keys=200, files=4)
    command = [sys.executable, "-m", "headrace", "chaos", f"{query}:windows", "--input", str(tmp_path / "input")]
    command += ["--master", "local[2]", "--faults", "1", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "SPARK_SUBMIT_OPTS": archive.jvm_options()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=ROOT, env=environment, check=False)
    assert done.returncode == 2
    assert "came late" in done.stderr
