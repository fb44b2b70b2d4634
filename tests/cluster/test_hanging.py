"""An executor that hangs is found and replaced, whatever the query does at that moment. Spark alone needs two minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.extra, pytest.mark.timeout(400)]

NEVER = "checkpointSeconds=100000"
SECONDS_MAX = 30
"""Eight seconds on a quiet machine, and a quarter of Spark's time-out on a busy one."""


@pytest.mark.parametrize(
    ("moment", "options"),
    [
        ("function", ()),
        ("files", ()),
        ("files", (NEVER, "replicas=1")),
        ("shipping", (NEVER, "replicas=1")),
        ("moving", ()),
        ("moving", (NEVER, "replicas=1")),
        ("copies", (NEVER, "replicas=2")),
    ],
)
def test_the_query_goes_on_soon(tmp_path: Path, moment: str, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.cluster.hanging", str(tmp_path / "work"), moment, *options]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-5000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert not seen["failed"]
    assert seen["results"], "the results are those of plain Python"
    assert seen["state"], "the state is that of plain Python"
    assert seen["even"], "each row is in the files once"
    assert seen["seconds"] < SECONDS_MAX
    assert seen["stopped"] not in seen["live"]
