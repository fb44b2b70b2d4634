"""The demo from end to end, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-c", "from headrace.cli import main; main()", "demo"]
TIMEOUT_S = 280


def run_demo(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "--out", str(out), *options], capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.spark
def test_a_short_demo_equals_spark_and_leaves_a_report(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    done = run_demo(out, "--seconds", "4", "--rate", "2000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to Spark's batch answer: " in done.stdout
    assert "equal to Spark's batch answer: 0 rows" not in done.stdout
    assert "Traceback" not in done.stderr
    report = (out / "report.html").read_text(encoding="utf-8")
    assert report.count("<svg") == report.count("</svg>") == 12
    for part in ("Latency from arrival", "Utilisation of instances", "Decisions", "heavy_customers", "== Headrace plan ==", "pyspark"):
        assert part in report
    # Self-contained: names of XML vocabularies are the only addresses in it.
    assert "src=" not in report
    assert "<link" not in report
    assert "<script" not in report


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.spark
def test_an_interrupted_demo_stops_cleanly(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    process = subprocess.Popen(
        [*COMMAND, "--out", str(out), "--seconds", "200", "--rate", "500"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        # As in a terminal: a group of its own, all of which gets the signal.
        start_new_session=True,
    )
    try:
        until = time.monotonic() + TIMEOUT_S / 2
        manifests = out / "checkpoint" / "headrace" / "manifests"
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


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.txt"
    precious.write_text("three years")
    done = run_demo(tmp_path)
    assert done.returncode == 2
    assert "a folder with other things in it" in done.stderr
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.txt"]
