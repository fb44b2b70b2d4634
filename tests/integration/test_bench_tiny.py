"""A tiny run of every benchmark: its queries run, its results are equal, its RESULT line has the agreed form.

All run on the tests' own Spark, one query after the other, so the figures mean nothing. One runs as users run it, with
processes that are stopped and let go on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.bench import discover
from headrace.bench.inline import InlineLane
from headrace.bench.model import Benchmark, Lane
from headrace.bench.run import BenchSettings, print_result, run_benchmark

pytestmark = pytest.mark.spark

TINY = {
    "aggregate": "--keys 300 --rows 1000 --baselines spark-memory",
    "functions": "--keys 100 --rows 300 --calls median(v) --baselines spark-memory",
    "sliding": "--keys 10 --rows 200 --step-s 3600 --baselines spark-rocksdb",
    "join": "--keys 100 --rows 400 --step-s 30",
    "call-records": "--rows 300 --numbers 30 --districts 5 --instances 2",
    "product": "--numbers 20 --rows 100 --step-s 30 --instances none",
    "latency": "--keys 300 --rows 100 --warmup 1 --baselines spark-memory",
    "heavy-customers": "--customers 10 --rows 200 --step-s 3600 --baselines spark-rocksdb",
    "strategies": "--keys 20 --rows 200 --step-s 60 --nodes 4 --warmup 2",
    "nexmark": "--queries q4 --rows 1000 --step-s 60 --in-flight 5",
    "process": "--keys 200 --rows 500 --baseline-rows 50 --preload-rows 200 --baselines transformWithStateInPandas"
    " --theirs transformWithStateInPandas",
    "rescale": "--sizes 300 --rows 100",
    "handover": "--windows 1 --sizes 20 --rows 20 --repeats 1 --settle=false --moving-rows 1000 --master none",
    "elastic": "--keys 300 --rows 100 --path 1",
    "executors": "--keys 300 --rows 100 --repeats 1 --master none",
    "recovery": "--keys 300 --rows 100 --kills 1 --executors 2 --fault none",
    "approaches": "--keys 300 --rows 100 --kills 1 --executors 2 --fault none --approaches checkpoint-0s --spark=false",
    "control": "--operators 40 --nodes 5 --instances 20 --epsilon 0.3 --repeats 1",
    "state-size": "--sizes 200,1000 --rows 100 --warmup 1 --memory --memory-rows 1000",
}

ELSEWHERE = {"kafka", "linear-road", "word-frequency", "top-k", "overload"}
"""With tests of their own: they start their own Spark."""

BASELINES = {
    "call-records": ("spark",),
    "product": ("spark",),
    "process": ("transformWithStateInPandas",),
    "strategies": ("operator-cloud",),
    "rescale": ("spark-offline",),
    "handover": ("window recreation", "merge", "buffering"),
    "elastic": ("static",),
    "executors": ("no pool",),
    "approaches": (),
    "control": ("solver",),
    # Each query beside Spark.
    "nexmark": ("q4",),
}
"""Where they are not Spark's two state stores."""


def tiny(spark: SparkSession, name: str, folder: Path) -> dict[str, Any]:
    def inline(benchmark: Benchmark, lane: Lane, place: Path) -> InlineLane:
        return InlineLane(spark, benchmark.name, lane, place)

    # A second turn starts every query anew; one benchmark is enough to see that it goes on where it was.
    settings = BenchSettings(seconds=0.2, turns=2 if name == "latency" else 1, warmup=1, directory=str(folder))
    return run_benchmark(name, TINY[name].split(), settings, inline)


def test_every_benchmark_has_a_tiny_run_and_a_readme() -> None:
    assert {*TINY, *ELSEWHERE} == set(discover.names())
    for name in {*TINY, *ELSEWHERE}:
        assert (discover.source_root() / "benchmarks" / name.replace("-", "_") / "README.md").is_file()


LIKE_OTHERS = (
    "aggregate", "call-records", "functions", "heavy-customers", "join", "nexmark", "process", "product", "sliding", "state-size",
    "strategies",
)  # fmt: skip
WITH_CHANGES = ("approaches", "elastic", "executors", "handover", "recovery", "rescale")
ALIKE = {*LIKE_OTHERS, *WITH_CHANGES}
"""Those whose way through the runner others take too."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.extra] if name in ALIKE else []) for name in sorted(TINY)])
def test_a_tiny_run_is_equal_and_says_so(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    print_result(tiny(spark, name, tmp_path))
    line = last_result(capsys.readouterr().out)
    check_form(line, name)
    assert line["equal"] is True, json.dumps({name: lane for name, lane in line["lanes"].items() if not lane["equal"]}, indent=1)
    assert not list(tmp_path.iterdir()), "the run leaves nothing behind"
    check_own = {
        "latency": check_latency,
        "state-size": check_state_size,
        "process": check_process,
        "control": check_control,
        "nexmark": check_nexmark,
    }.get(name)
    if check_own:
        check_own(line)


@pytest.mark.slow
@pytest.mark.extra
def test_the_command_runs_engines_as_processes_in_turns(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    options = f"latency --keys 300 --rows 100 --warmup 2 --baselines spark-memory --seconds 0.5 --turns 2 --heap 1 --json {result}"
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", *options.split(), "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr + done.stdout
    line = last_result(done.stdout)
    check_form(line, "latency")
    check_latency(line)
    assert line["equal"] is True
    assert line == json.loads(result.read_text(encoding="utf-8"))
    assert line["versions"]["java"]
    assert "turn 1 of 2" in done.stderr


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.crash
def test_an_executor_is_killed_and_results_are_right_again(tmp_path: Path) -> None:
    options = "recovery --keys 300 --rows 100 --executors 2 --memory-mb 512 --kills 2 --seconds 0.2 --heap 1 --baselines none"
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", *options.split(), "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr + done.stdout
    line = last_result(done.stdout)
    check_form(line, "recovery")
    assert line["equal"] is True
    faults = line["faults"]["ours"]
    assert len(faults) == 2
    assert all(each["recovery_s"] > 0 and each["replaced_s"] >= each["lost_s"] > 0 for each in faults)
    assert [path.name for path in tmp_path.iterdir()] == ["bench-out"]


def last_result(out: str) -> dict[str, Any]:
    last = out.splitlines()[-1]
    assert last.startswith("RESULT ")
    line = json.loads(last.removeprefix("RESULT "))
    assert isinstance(line, dict)
    return line


def check_form(line: dict[str, Any], name: str) -> None:
    assert list(line)[:5] == ["bench", "ours", "baselines", "ratio", "equal"]
    assert line["bench"] == name
    assert line["ours"] > 0
    for baseline, rate in line["baselines"].items():
        assert baseline in BASELINES.get(name, ("spark-rocksdb", "spark-memory"))
        assert rate > 0
        assert line["ratio"][baseline] > 0
    assert {"cores", "cpu", "memory_gb"} <= set(line["machine"])
    for lane in line["lanes"].values():
        assert lane["batches"] > 0
        assert lane["batch_ms"]["median"] > 0


def check_latency(line: dict[str, Any]) -> None:
    median = {name: period["median"] for name, period in line["period_ms"].items()}
    for name, ratio in line["ratio"].items():
        # Both periods are rounded.
        assert ratio == pytest.approx(median[name] / median["ours"], rel=0.05)
        assert line["ratio_p99"][name] > 0
    assert "addBatch" in line["phases_ms"]["ours"]
    assert "addBatch/job" in line["phases_ms"]["ours"]


def check_process(line: dict[str, Any]) -> None:
    assert line["per_key"] > 0
    assert set(line["per_key_ratio"]) == set(line["ratio"]) == {"transformWithStateInPandas"}


def check_nexmark(line: dict[str, Any]) -> None:
    assert line["worst"] == line["ratio"]["q4"]
    assert not any(lane["digest"].startswith("0 rows") for lane in line["lanes"].values())


def check_state_size(line: dict[str, Any]) -> None:
    assert set(line["batch_ms"]["ours"]) == {"200", "1000"}
    assert line["growth"]["ours"]["median"] >= 1
    assert isinstance(line["within"], bool)
    assert line["memory"]["private_bytes_max"] > 0


def check_control(line: dict[str, Any]) -> None:
    assert line["within"] == all(figure["holds"] for figure in line["figures"].values())
    asked = ("ROD", "correlation, 40", "look-up", "FIT, imbalance 8", "decide: ring", "decide: backup")
    assert all(any(name.startswith(words) for name in line["figures"]) for words in asked)
