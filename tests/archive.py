"""How JVMs of tests are started: tests are many short Spark programs, whose start is much of their time.

The second compiler would be busy with code that is about to be thrown away, and Spark's classes need not be verified anew by each of
thirty JVMs. And an archive of loaded classes, which JVMs map instead of reading jars, takes a quarter off a small program's time.
``python -m tests.archive`` makes it, once for each environment; without it, tests only take longer. It takes a minute, in which
``make test`` runs what needs no Spark.
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
    """What a JVM that a test starts now is to be told."""
    mapped = f" -XX:SharedArchiveFile={PATH} -Xlog:cds=off -Xlog:cds+dynamic=off" if PATH.exists() else ""
    return f"{OPTIONS} {UNVERIFIED}{mapped}"


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
            shutil.move(made, PATH.with_suffix(".new"))
            PATH.with_suffix(".new").rename(PATH)


if __name__ == "__main__" and not PATH.exists():
    make()
