"""Queries on real executors: homes are kept, state is fetched by who needs it, executors come and go, and one is killed in mid-batch.
The results are those of an undisturbed run on one machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from headrace.runtime import standalone
from tests import archive
from tests.crash.conftest import Undisturbed, undisturbed
from tests.crash.harness import ROOT, RUN_SECONDS_MAX, Left, Program, write_input

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

__all__ = ["undisturbed"]

FILES = 10


def run(master: str, kind: str, source: Path, work: Path) -> dict[str, Any]:
    work.mkdir()
    command = [sys.executable, "-m", "tests.cluster.program", master, kind, str(source), str(work)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX)
    # Executors of local-cluster leave their folders with Spark itself.
    shutil.rmtree(Path(_find_spark_home()) / "work", ignore_errors=True)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


def check(seen: dict[str, Any]) -> None:
    for batch in (*seen["two"], *seen["three"], *seen["one"], *seen["last"]):
        for operator, instance, executor in batch["ran"]:
            # What is closed by the driver itself is no executor's.
            assert executor in (batch["homes"][operator][instance], "driver"), batch
    assert all(len(set(homes)) == 3 for homes in seen["three"][-1]["homes"].values()), "three executors, three homes"
    changes = [change for batch in seen["three"] for change in batch["changes"]]
    assert sum(change["bytesFetched"] for change in changes) + seen["three"][0]["fetched"] > 0, "the new home had nothing"
    for homes in seen["killed"][-1]["homes"].values():
        assert seen["victim"] not in homes, "nobody lives on an executor that is gone"
    assert len(seen["last"][0]["ran"]) == len(seen["last"][0]["homes"])


def test_on_a_local_cluster(tmp_path: Path, undisturbed: Undisturbed) -> None:
    source = write_input(tmp_path / "input", files=FILES, seed=6)
    check(run("local-cluster[3,1,1024]", "windowed", source, tmp_path / "work"))
    assert not Left.of(Program("windowed", source, tmp_path / "work")).difference(undisturbed("windowed", source, tmp_path / "calm"))


def test_on_a_standalone_cluster(tmp_path: Path, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_input(tmp_path / "input", files=FILES, seed=7)
    monkeypatch.setenv("SPARK_DAEMON_JAVA_OPTS", archive.jvm_options())
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    with standalone.running(tmp_path / "cluster", workers=3) as cluster:
        os.environ["SPARK_SUBMIT_OPTS"] = archive.jvm_options()
        check(run(cluster.master, "graph", source, tmp_path / "work"))
    assert not cluster.alive()
    assert not Left.of(Program("graph", source, tmp_path / "work")).difference(undisturbed("graph", source, tmp_path / "calm"))
