"""`headrace version`: the versions that matter in a bug report."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import typer

import headrace

JAVA_TIMEOUT_S = 30


def version() -> None:
    """Print the versions of Headrace and of what it runs on."""
    typer.echo(f"{'headrace':<9} {headrace.__version__}")
    for name in ("pyspark", "pyarrow"):
        typer.echo(f"{name:<9} {_package_version(name)}")
    typer.echo(f"{'python':<9} {platform.python_version()}")
    typer.echo(f"{'java':<9} {java_version()}")


def java_version() -> str:
    """The first line of `java -version`, or the reason why there is none.

    As Spark does, this takes the Java of JAVA_HOME if that is set, else the one on PATH.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return "not found: install Java 17 or newer, or set JAVA_HOME"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        remedy = "point JAVA_HOME at Java 17 or newer, or unset it" if home else "install Java 17 or newer"
        return f"does not run ({error}): {remedy}"
    # Java prints its version to stderr. With JAVA_TOOL_OPTIONS it prints other lines first.
    lines = [line for line in (done.stderr + done.stdout).splitlines() if " version " in line]
    return lines[0] if lines else "gave no version"


def _package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
