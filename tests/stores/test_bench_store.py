"""A tiny run of `headrace bench store`, as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.store.server import is_there

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.extra]


@pytest.mark.skipif(not is_there(), reason="needs moto's server and obstore")
def test_results_are_equal_and_all_lanes_have_figures(tmp_path: Path) -> None:
    options = "store --keys 300 --rows 100 --warmup 1 --delays 20 --seconds 0.5 --turns 1 --heap 1"
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", *options.split(), "--dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr + done.stdout
    line = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert line["equal"] is True
    measured = line["store"]
    assert set(measured) == {"100 rows, folder", "100 rows, S3 + 0 ms", "100 rows, S3 + 20 ms"}
    for name, figures in measured.items():
        assert figures["period_ms"] > 0
        assert (figures["upload_ms"] > 0) == ("S3" in name)
