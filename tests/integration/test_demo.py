"""The demo from end to end, as a user starts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

from headrace.demo.calls import CallMaker, RateCurve
from headrace.demo.check import Verdict, compare
from headrace.demo.lane import ELASTIC
from headrace.demo.places import Folders
from headrace.demo.query import BILL, PRICED, answer, bills

COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()", "demo"]
TIMEOUT_S = 280
SOON_S = 30.0


def run_demo(out: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--out", str(out), "--no-browser", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env={**os.environ, **environment})


def processes_of(out: Path) -> list[str]:
    """The command lines of processes that name the folder; a process that has ended has none."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(out) in line:
            found.append(line)
    return found


def assert_nothing_is_left(out: Path, temporary: Path) -> None:
    until = time.monotonic() + SOON_S
    while processes_of(out) and time.monotonic() < until:
        time.sleep(0.2)
    assert not processes_of(out)
    assert not [path for path in temporary.iterdir() if path.name.startswith("headrace-demo-")]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short path: sockets are in it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.spark
@pytest.mark.crash
def test_a_short_demo_loses_its_driver_equals_spark_and_leaves_a_report(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "demo"
    done = run_demo(out, "--seconds", "6", "--rate", "100", TMPDIR=str(temporary))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to Spark's batch answer: " in done.stdout
    assert " 0 lost, 0 doubled, and the bills of " in done.stdout
    for part in ("the monitor is at http://127.0.0.1:", "a hot key: ", "kill -9 ", "it is back after ", "plain Spark's lane"):
        assert part in done.stdout, done.stdout
    assert "Traceback" not in done.stderr
    report = (out / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == report.count("</svg>") == 6
    run = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert {"hot", "kill", "back"} <= {mark["kind"] for mark in run["marks"]}
    assert run["elastic"][-1]["rows"] == sum(arrival["rows"] for arrival in run["arrivals"])
    assert_nothing_is_left(out, temporary)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.spark
def test_an_interrupted_demo_stops_cleanly(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [*COMMAND, "--out", str(out), "--seconds", "200", "--rate", "100", "--no-browser"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(temporary)},
        # As in a terminal: a group of its own, all of which gets the signal.
        start_new_session=True,
    )
    try:
        until = time.monotonic() + TIMEOUT_S / 2
        manifests = out / "elastic" / "checkpoint" / "headrace" / "manifests"
        while not any(manifests.glob("*.json")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S / 2)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130, stdout + stderr
    assert "interrupted: stopped after" in stdout
    assert "Traceback" not in stderr
    assert_nothing_is_left(out, temporary)


@pytest.mark.spark
def test_each_kind_of_difference_from_the_batch_answer_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    places = Folders(tmp_path / "calls", tmp_path)
    places.folder.mkdir()
    places.prepare(0, CallMaker(RateCurve(500, 60), 7, 50).tick(0))()
    right: Any = answer(places.calls(spark)).toPandas()
    state = tmp_path / "bills"

    def compared(rows: pd.DataFrame, kept: pd.DataFrame) -> Verdict:
        for frame, folder, schema in ((rows, tmp_path / ELASTIC / "priced", PRICED), (kept, state, f"src string, {BILL}")):
            spark.createDataFrame(frame, schema).coalesce(1).write.mode("overwrite").parquet(str(folder))
        return compare(spark, places, ELASTIC, str(state))

    kept: Any = bills(answer(places.calls(spark))).toPandas()
    equal = compared(right, kept)
    assert equal.equal
    assert (equal.rows, equal.bills) == (len(right), len(kept))
    faulty = pd.concat([right.iloc[2:], right.iloc[[5, 6, 7]]], ignore_index=True)
    faulty.loc[0, "cents"] += 1
    kept.loc[0, "calls"] += 1
    found = compared(faulty, kept.iloc[:-1])
    assert not found.equal
    assert (found.rows, found.lost, found.doubled, found.wrong, found.bills_wrong) == (len(right), 3, 3, 1, 2)
    assert len(found.examples) == 3 + 4 + 2


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("three years")
    done = run_demo(tmp_path)
    assert done.returncode == 2
    assert "a folder with other things in it" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
