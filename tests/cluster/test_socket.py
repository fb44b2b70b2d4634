"""A socket cannot give its rows again, so executors keep copies of them until a later version is durable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.extra]

PEER = ("recovery=peer", "replicas=1", "checkpointSeconds=100000")


def run(tmp_path: Path, faults: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.socket_rows", str(tmp_path / "work"), faults, *options]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return seen


@pytest.mark.parametrize("faults", ["k", "i", "kdi"])
def test_losing_an_executor_loses_no_row(tmp_path: Path, faults: str) -> None:
    seen = run(tmp_path, faults, *PEER)
    assert not seen["failed"]
    assert seen["results"], "the results are those of plain Python"
    assert seen["state"], "the state is that of plain Python"
    if "d" in faults:
        assert seen["rebuilt"] >= 3, "state was computed again from the rows that executors kept"
    assert "losing an executor loses no row; rows since the last checkpoint are lost with the driver" in seen["explained"]
    assert "the socket source counts its rows from 0 with every start" in seen["refused"]


def test_a_checkpoint_evicts_the_rows_before_it(tmp_path: Path) -> None:
    seen = run(tmp_path, "cd", *PEER)
    assert seen["results"]
    assert seen["state"]
    before, after = seen["kept"][2], seen["kept"][3]
    assert before >= 3, "rows of all batches"
    assert after < before, "rows since the checkpoint"
    assert 1 <= seen["rebuilt"] <= after + 1


def test_rows_whose_copies_are_all_lost_are_an_error(tmp_path: Path) -> None:
    seen = run(tmp_path, "a", *PEER)
    assert "SourceError" in seen["failed"]
    assert "all executors with some of them were lost at once" in seen["failed"]


def test_with_durable_versions_the_executors_need_not_keep_rows(tmp_path: Path) -> None:
    seen = run(tmp_path, "ki", "checkpointSeconds=0")
    assert seen["results"]
    assert seen["state"]
    assert set(seen["kept"]) == {0}
    assert "rows of the batch in flight are lost with the driver" in seen["explained"]
