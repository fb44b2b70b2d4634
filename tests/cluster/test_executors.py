"""Queries on real executors: homes are kept, state is fetched by who needs it, executors come and go, and one is killed in mid-batch.
The results are those of an undisturbed run on one machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.runtime import standalone
from tests import archive
from tests.crash.conftest import Undisturbed, undisturbed
from tests.crash.harness import ROOT, RUN_SECONDS_MAX, Left, Program, write_input
from tests.work_folders import remove_work_folders

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

__all__ = ["undisturbed"]


def run(master: str, source: Path, work: Path, *options: str) -> dict[str, Any]:
    work.mkdir()
    return result_of([sys.executable, "-m", "tests.cluster.program", master, "windowed", str(source), str(work), *options])


def result_of(command: list[str]) -> dict[str, Any]:
    """Run a program, and return what it prints in its last line."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    # Executors of local-cluster leave their folders with Spark itself.
    remove_work_folders()
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check(seen: dict[str, Any]) -> None:
    for batch in (*seen["two"], *seen.get("one", ()), *seen.get("grown", ()), seen["killed"][-1]):
        for operator, instance, executor in batch["ran"]:
            assert executor == batch["homes"][operator][instance], batch
    assert len(set(seen["two"][-1]["homes"]["aggregate"])) == 2, "two executors, two homes"
    assert seen["victim"] not in seen["killed"][-1]["homes"]["aggregate"], "nobody lives on an executor that is gone"


def check_change(seen: dict[str, Any]) -> None:
    assert len(seen["one"][-1]["ran"]) == 1
    new = set(seen["grown"][-1]["homes"]["aggregate"]) - set(seen["two"][-1]["homes"]["aggregate"])
    assert len(new) == 1, "one was given back, and another one came"
    changes = [change for batch in seen["grown"] for change in batch["changes"]]
    assert sum(change["bytesFetched"] for change in changes) + seen["grown"][0]["fetched"] > 0, "the new home had nothing"
    assert sum(change["bytesLent"] for change in changes) > 0, "the old one lent it"


@pytest.mark.extra
def test_on_a_local_cluster(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """Shrinks, grows again, and loses an executor in mid-batch."""
    source = write_input(tmp_path / "input", files=5, seed=6)
    seen = run("local-cluster[2,1,1024]", source, tmp_path / "work")
    check(seen)
    check_change(seen)
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))


@pytest.mark.extra
def test_an_executor_that_hangs_and_one_that_dies_cost_one_attempt_each(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The batch goes on without them: no version, row or result differs from those of an undisturbed run."""
    source = write_input(tmp_path / "input", files=6, seed=8)
    seen = run("local-cluster[3,1,1024]", source, tmp_path / "work", "--faults")
    for name, hung in (("hung", True), ("killed", False)):
        executor, batch = seen[name]
        assert [(each["executors"], each["hung"]) for each in batch["interruptions"]] == [([executor], hung)]
        assert executor not in batch["homes"]["aggregate"]
    # Spark alone would wait two minutes for the one that hangs. Three seconds pass until it is suspected.
    assert seen["hungSeconds"] < 5.0 + 2 * seen["calm"][-1]["batchMs"] / 1000
    assert not seen["after"]["interruptions"]
    # The monitor says the same: who lives, who was lost, and how long each recovery took.
    told = seen["monitor"]
    assert {each["id"]: each["instances"] for each in told["executors"]} == dict(Counter(seen["after"]["homes"]["aggregate"])) | {
        each: 0 for each in told["live"] if each not in seen["after"]["homes"]["aggregate"]
    }
    assert [(each["executors"], each["hung"]) for each in told["recoveries"]] == [([seen["hung"][0]], True), ([seen["killed"][0]], False)]
    lost = seen["killed"][1]
    assert told["recoveries"][1]["recoveredMs"] == round(lost["batchMs"] - lost["interruptions"][0]["afterMs"], 1)
    assert [each["kind"] for each in told["events"]].count("homes") >= 3
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))


@pytest.mark.extra
def test_an_executor_that_works_for_a_job_of_the_user_is_left_alone(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """The query waits for it, and neither takes it for one that hangs nor kills it."""
    source = write_input(tmp_path / "input", files=4, seed=9)
    seen = run("local-cluster[2,1,1024]", source, tmp_path / "work", "--beside")
    assert not seen["beside"]["interruptions"]
    assert seen["busy"] in seen["live"]
    assert seen["attempts"] == [0]
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))


@pytest.mark.extra
def test_an_executor_that_hangs_is_found_while_all_others_are_busy(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It does not answer, which is more than that its tasks take long."""
    source = write_input(tmp_path / "input", files=4, seed=9)
    seen = run("local-cluster[2,1,1024]", source, tmp_path / "work", "--beside", "--hanging")
    assert [(each["executors"], each["hung"]) for each in seen["beside"]["interruptions"]] == [([seen["hung"]], True)]
    assert seen["busy"] in seen["live"]
    assert seen["attempts"] == [0]
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))


@pytest.mark.extra
def test_event_times_of_a_batch_that_was_cached_when_an_executor_died(tmp_path: Path) -> None:
    """The attempt that is cancelled has cached rows with the greatest event time, and the watermark still counts them."""
    seen = result_of([sys.executable, "-m", "tests.cluster.event_times", str(tmp_path)])
    assert [each["hung"] for each in seen["interruptions"]] == [False]
    assert seen["watermark"] == "1970-01-01T00:16:40.000Z"


@pytest.mark.extra
def test_on_a_standalone_cluster(tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as ``headrace cluster up`` starts; an executor is lost in mid-batch."""
    source = write_input(tmp_path / "input", files=3, seed=7)
    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", archive.jvm_options())
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with standalone.running(tmp_path / "cluster", workers=2) as cluster:
        os.environ["SPARK_SUBMIT_OPTS"] = archive.jvm_options()
        check(run(cluster.master, source, tmp_path / "work", "--short"))
    assert not cluster.alive()
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))
