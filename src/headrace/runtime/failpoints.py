"""Named points at which a test can make the process die, to prove that every order of crash and restart is survived.

Off unless the environment variable ``HEADRACE_FAILPOINT`` is set to ``NAME@VERSION``; then the process is killed by ``kill -9`` the
first time that point is passed at that version. It costs one dictionary look-up otherwise.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "HEADRACE_FAILPOINT"

DRIVER_POINTS = (
    "batch-begin",
    "job-done",
    "flush-done",
    "manifest-before",
    "manifest-after",
    "deliver-before",
    "deliver-after",
    "collect-garbage",
    "batch-end",
)
TASK_POINTS = ("task-begin", "run-before", "run-after", "staged-after", "task-end")


def fail_point(name: str, version: int) -> None:
    """Die here if a test asked for it."""
    wanted = os.environ.get(VARIABLE)
    if wanted and wanted == f"{name}@{version}":
        os.kill(int(os.environ.get("HEADRACE_FAILPOINT_JVM") or os.getpid()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
