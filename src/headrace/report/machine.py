"""The machine and the versions that the figures of a report were measured with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("headrace", "pyspark", "pyarrow", "numpy", "pandas")


def machine(java: str = "") -> list[tuple[str, str]]:
    """Names and values for a table. Nothing identifies the machine."""
    rows = [
        ("processor", _processor()),
        ("cores", str(_cores())),
        ("memory", _memory()),
        ("system", f"{platform.system()} {platform.release()}"),
    ]
    return rows + versions(java)


def versions(java: str = "") -> list[tuple[str, str]]:
    found = [("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            found.append((name, "not installed"))
    return found + ([("java", java)] if java else [])


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except FileNotFoundError:
        pass
    return platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB"
    except (ValueError, OSError):
        return "unknown"
