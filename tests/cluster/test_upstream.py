"""With ``recovery=upstream`` a lost executor's windows are computed again from the rows that they depend on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.extra]


@pytest.mark.parametrize("faults", ["ki", "r2"])
def test_windows_come_once_and_right(tmp_path: Path, faults: str) -> None:
    command = [sys.executable, "-m", "tests.cluster.windows", str(tmp_path / "work"), faults, "recovery=upstream"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-5000:]
    seen: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert seen["results"], "each window came once, and is that of plain Python"
    assert not seen["failed"]
    assert seen["durable"] == 0, "nothing was kept safe"
    rebuilt = [batch["rebuilt"] for batch in seen["batches"]]
    assert any(rebuilt), "state was computed again"
    assert max(rebuilt) <= 5, "from the batches on which it depends, not from the first"
    assert seen["records"] <= 8
