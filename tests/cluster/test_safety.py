"""State that is not in the durable store survives the loss of executors: from copies on others, or computed again from the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600)]

NEVER = "checkpointSeconds=100000"


def run(tmp_path: Path, faults: str, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster.safety", str(tmp_path / "work"), faults, *options]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["results"], "the results are those of plain Python"
    assert seen["state"], "the state is that of plain Python"
    assert not seen["failed"]
    return seen


def rebuilt(seen: dict[str, Any]) -> int:
    return sum(batch["rebuilt"] for batch in seen["batches"])


def test_an_executor_is_lost_and_its_instance_goes_on_where_a_copy_is(tmp_path: Path) -> None:
    seen = run(tmp_path, "k", NEVER, "replicas=1")
    assert rebuilt(seen) == 0, "nothing was computed again"
    assert seen["batches"][-1]["replicas"]["missing"] == 0, "all copies are there again"


@pytest.mark.extra
def test_an_executor_is_lost_and_its_state_is_computed_again_from_the_source(tmp_path: Path) -> None:
    assert rebuilt(run(tmp_path, "k", NEVER)) >= 3


@pytest.mark.extra
@pytest.mark.parametrize(
    ("faults", "options"),
    [
        # Between two batches nothing runs that Spark could run again elsewhere.
        ("i", (NEVER, "replicas=1")),
        ("i", (NEVER,)),
        # One that hangs is found by the watch, and its state is on a peer.
        ("h", (NEVER, "replicas=1")),
        # Two of three at once: two copies are enough, one is not, and the rest is computed again.
        ("2", (NEVER, "replicas=2")),
        ("2", (NEVER, "replicas=1")),
        # Copies are made beside the next batch, checkpoints come in between, slots move.
        ("krk", ("checkpointSeconds=0.5", "replicas=1", "acknowledge=home")),
        ("rkri", (NEVER, "replicas=1")),
        # Every version is durable, and copies only save reading it.
        ("ki", ("replicas=1",)),
        ("rk", ("checkpointSeconds=1",)),
    ],
)
def test_nothing_is_lost_or_doubled(tmp_path: Path, faults: str, options: tuple[str, ...]) -> None:
    run(tmp_path, faults, *options)


@pytest.mark.extra
def test_a_peer_that_hangs_delays_a_batch_by_seconds(tmp_path: Path) -> None:
    """It has no instances, so nothing but the copies for it waits. Spark itself would notice it after two minutes."""
    seen = run(tmp_path, "p", NEVER, "replicas=2", "instances=1")
    assert max(batch["batchMs"] for batch in seen["batches"]) < 60_000
