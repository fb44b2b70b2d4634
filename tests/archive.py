"""Options for the JVMs of tests. Tests are many short Spark programs, and starting them is much of their time.

The second compiler is off, because its code would hardly be used. Classes are not verified again by each of thirty JVMs. An archive of
loaded classes, which JVMs map instead of reading jars, saves a quarter of the time of a small program. ``python -m tests.archive`` makes
it, once for each environment, in about a minute; meanwhile ``make test`` runs tests without Spark. Without the archive, tests take longer.
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
UNVERIFIED = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


def jvm_options() -> str:
    """The options for a JVM that a test starts now."""
    mapped = f" -XX:SharedArchiveFile={PATH} -Xlog:cds=off -Xlog:cds+dynamic=off" if PATH.exists() else ""
    return f"{OPTIONS} {UNVERIFIED}{mapped}"


def make() -> None:
    """Run a small query, and let its JVM archive the classes that it has loaded."""
    from tests.crash.harness import ROOT, write_input

    with tempfile.TemporaryDirectory() as folder:
        source = write_input(Path(folder) / "input", files=2, seed=1)
        made = Path(folder) / PATH.name
        command = [sys.executable, "-m", "tests.crash.driver", "windowed", str(source), f"{folder}/output", f"{folder}/checkpoint"]
        options = f"{OPTIONS} -XX:ArchiveClassesAtExit={made}"
        subprocess.run(command, cwd=ROOT, env={**os.environ, "SPARK_SUBMIT_OPTS": options}, capture_output=True, check=False)
        # The archive is written when the JVM ends, which also ends its output. Without an archive there is nothing to keep.
        if made.exists():
            shutil.move(made, PATH.with_suffix(".new"))
            PATH.with_suffix(".new").rename(PATH)


if __name__ == "__main__" and not PATH.exists():
    make()
