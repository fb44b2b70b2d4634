"""Word frequency at a small size: all parts on one session, every count checked; and once as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks.word_frequency import bench, plan
from benchmarks.word_frequency.engines import Here
from benchmarks.word_frequency.words import Wanted, generated

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.extra]


def test_all_parts_give_equal_counts(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"rates": "100", "intervals": "0,1", "windows": "running,15min", "rows": 300, "baselines": "spark-memory", "seconds": 1.0}
    read = plan.read({**bench.BENCHMARK.options, **asked})
    pool = generated(Wanted(words=500, fragments=1_000))
    cells = plan.Cells(read, {500: (str(pool.write(tmp_path / "pool.arrow")), pool)})
    measured = bench.measured(Here(spark, tmp_path), cells)
    every = [*measured.extra["latency"], *measured.extra["interval"], *measured.extra["throughput"]]
    assert measured.equal, [each["wrong"] for each in every]
    assert len(every) == 3 + 2 + 4
    assert all(each["latency_ms"]["p95"] > 0 for each in measured.extra["latency"])
    assert all(each["recovery_s"] > 0 and 0 < each["delta_share"] <= 1 for each in measured.extra["interval"])
    assert all(each["words_s"] > 0 for each in measured.extra["throughput"])
    assert all(Path(path).is_file() for path in measured.extra["plots"])


def test_the_command_runs_engines_in_processes_of_their_own(tmp_path: Path) -> None:
    own = "--parts latency --rates 100 --words 100 --warm 0.1 --baselines spark-memory --seconds 1"
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", "word-frequency", *own.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr + done.stdout
    line = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert line["equal"] is True
    assert {each["engine"] for each in line["latency"]} == {"ours", "spark-memory"}
