"""The supported versions of Spark are the same everywhere they are named, and others are refused."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.errors import SessionError
from headrace.spark import contract, versions

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()


def workflow() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    return found


def test_every_step_of_the_workflow_is_a_target_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    commands = [step["run"] for job in workflow()["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        words = command.split()
        assert words[0] == "make"
        assert words[1] in targets


def test_the_versions_are_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions.REQUIREMENT in project["dependencies"]
    assert workflow()["jobs"]["matrix"]["strategy"]["matrix"]["spark"] == list(versions.SUPPORTED)
    assert f"\nSPARK := {' '.join(versions.SUPPORTED)}\n" in MAKEFILE
    assert tuple(contract.MEMBERS_OF) == tuple(contract.PYTHON_OF) == versions.SUPPORTED


@pytest.mark.parametrize("text", ["3.5.9", "4.0.5", "4.4.0", "4.10.0", "5.0.0", "4.4.0.dev1", "unknown"])
def test_a_session_of_another_version_is_refused(text: str) -> None:
    with pytest.raises(SessionError, match=r"wanted Spark 4\.1, 4\.2 or 4\.3; found Spark"):
        versions.check_same_version(text)


def test_a_pyspark_of_another_version_is_refused_before_anything_of_it_is_used() -> None:
    code = "import pyspark; pyspark.__version__ = '4.0.5'; import headrace as hr; hr.stream"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert "SessionError: session: wanted Spark 4.1, 4.2 or 4.3; found PySpark 4.0.5" in done.stderr
