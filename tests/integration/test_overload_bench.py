"""The short form of the benchmark of overload: all results exact, although the machine may be too busy for the deadline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.extra]


def test_the_short_form_drops_rows_and_is_exact(tmp_path: Path) -> None:
    own = "--duration 12 --calibration 4 --rows 3000 --deadline 3 --lanes ours"
    command = [sys.executable, "-c", "from headrace.cli import main; main()", "bench", "overload", *own.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr + done.stdout
    line = json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert line["equal"] is True
    ours = line["lanes"]["ours, shedding"]
    assert 0 < ours["light"] < 1 or 0 < ours["heavy"] < 1, "twice the capacity was offered, so rows were dropped"
    assert line["delivered_of_optimum"] > 0.3
    assert line["lookup_us_max"] < 1000
