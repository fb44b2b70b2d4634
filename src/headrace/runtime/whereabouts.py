"""Where a task finds itself: on which executor, and with which disk of its own."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

DRIVER = "driver"
_FLAG = b"--executor-id"
_ANCESTORS_MAX = 8


@lru_cache(maxsize=1)
def executor_id() -> str:
    """The executor that this Python worker serves.

    PySpark does not tell its workers; but every master starts executors by a command that says it, and that process is an ancestor of
    ours. On one machine there is none, and the driver does the work itself.
    """
    pid = os.getpid()
    for _ in range(_ANCESTORS_MAX):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):
            break
        if _FLAG in words[:-1]:
            return words[words.index(_FLAG) + 1].decode()
        if pid <= 1:
            break
    return DRIVER


def working_folder(name: str) -> Path:
    """Where an executor keeps its copies: an absolute name is that folder, with one in it for each executor; any other lies in the
    executor's own directory, which Spark gives it and removes."""
    path = Path(name)
    return path / f"executor-{executor_id()}" if path.is_absolute() else Path.cwd() / name
