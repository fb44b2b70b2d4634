"""The machine and the versions that the figures were measured with."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.text import Text


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def heap_gb_default() -> int:
    """The heap of a lane's JVM. Three JVMs must fit into memory beside the page cache."""
    return max(1, min(8, int(memory_bytes() / 2**30 / 3)))


def describe() -> dict[str, Any]:
    return {
        "cores": cores(),
        "cpu": _cpu_model(),
        "memory_gb": round(memory_bytes() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2),
    }


def line(described: dict[str, Any]) -> Text:
    """The lines below the tables."""
    return Text(f"on {described['cores']} cores of {described['cpu']}, {described['memory_gb']} GB", style="dim")


def versions() -> dict[str, str]:
    found = {name: metadata.version(name) for name in ("headrace", "pyspark", "pyarrow", "numpy")}
    return {**found, "python": platform.python_version()}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
