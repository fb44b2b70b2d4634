"""Finds out on which executor a task runs, and where that executor keeps its files."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

DRIVER = "driver"
_FLAG = b"--executor-id"
_ANCESTORS_MAX = 8


@lru_cache(maxsize=1)
def executor_id() -> str:
    """The id of the executor that this Python worker belongs to.

    PySpark does not tell its workers. But the command line of every executor process contains its id, and that process is an ancestor of
    this one. With a local master there is no executor process, and the driver does the work.
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
    """The folder of an executor's working copies.

    An absolute name is a folder in which each executor has its own. A relative one is in the executor's working directory, which Spark
    creates and removes.
    """
    path = Path(name)
    return path / f"executor-{executor_id()}" if path.is_absolute() else Path.cwd() / name
