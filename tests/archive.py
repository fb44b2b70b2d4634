"""An archive of Spark's loaded classes, which JVMs of later tests map instead of loading jars: a third of a small program's time.

``python -m tests.archive`` makes it, once for each environment; without it, tests only take longer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PATH = Path(sys.prefix) / "headrace-tests.jsa"
OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Tests are many short Spark programs: the second compiler would be busy with code that is about to be thrown away."""


def jvm_options() -> str:
    """What JVMs that tests start are to be told."""
    return f"{OPTIONS} -XX:SharedArchiveFile={PATH} -Xlog:cds=off -Xlog:cds+dynamic=off" if PATH.exists() else OPTIONS


def make() -> None:
    """Run a small query, and let its JVM write down the classes that it has loaded."""
    from tests.crash.harness import ROOT, write_input

    with tempfile.TemporaryDirectory() as folder:
        source = write_input(Path(folder) / "input", files=2, seed=1)
        made = Path(folder) / PATH.name
        command = [sys.executable, "-m", "tests.crash.driver", "windowed", str(source), f"{folder}/output", f"{folder}/checkpoint"]
        options = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
        subprocess.run(command, cwd=ROOT, env={**os.environ, "SPARK_SUBMIT_OPTS": options}, capture_output=True, check=False)
        # Its output ends with the JVM, which is when the archive is written; without one, there is nothing to keep.
        if made.exists():
            shutil.move(made, PATH)


if __name__ == "__main__" and not PATH.exists():
    make()
