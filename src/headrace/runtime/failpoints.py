"""Named points at which a test can make a process die, to prove that every order of crash and restart is survived.

Off unless the environment variable ``HEADRACE_FAILPOINT`` holds a list of ``NAME@VERSION``, with commas between; it costs one dictionary
look-up otherwise. At such a point the process is ended by ``kill -9``:

- in the driver, Spark's JVM goes first, so that it cannot do anything more on behalf of a driver that is gone; the Python workers see
  their JVM go and end by themselves;
- in a task only the worker dies, and Spark tries the task again. The new attempt has the same environment and would die too, so
  ``HEADRACE_FAILPOINT_ONCE`` names a directory in which each point leaves a mark the first time, and does nothing once the mark is there.

With ``NAME@VERSION=raise`` the batch breaks off there and the process lives: nothing of the query does anything after that point, so
its files are those that a kill would leave, and a restart in the same process takes a second. The driver sends such points along with
its tasks, because a worker keeps the environment that it was started with.

A bare ``NAME`` is a condition that holds all the time, such as a disk without locks.

With ``NAME@VERSION=wait`` the process is not killed but waits there until its mark is removed: a zombie, which sleeps through the crash
and the recovery of the query, and does its work when nobody wants it any more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.ids import Version

VARIABLE = "HEADRACE_FAILPOINT"
ONCE = "HEADRACE_FAILPOINT_ONCE"

DRIVER_POINTS = (
    "batch-begin",
    "job-done",
    "flush-done",
    "manifest-before",
    "manifest-after",
    "deliver-after",
    "collect-garbage",
)
TASK_POINTS = ("task-begin", "run-before", "run-after", "staged-after", "task-end")


_RAISE = "=raise"
_sent = ""
"""In a worker: the points that the driver sent along with the task."""


class Crash(Exception):
    """The batch broke off at a point, because a test asked for it."""


@contextlib.contextmanager
def break_off(name: str, version: Version) -> Iterator[None]:
    """Meanwhile, a batch of this process that comes to this point breaks off there."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ",".join(filter(None, (before, f"{name}@{version}{_RAISE}")))
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def points_for_tasks() -> str:
    """In the driver: the points at which tasks are to break off."""
    return ",".join(point for point in os.environ.get(VARIABLE, "").split(",") if point.endswith(_RAISE))


def receive_points(points: str) -> None:
    """In a worker, at the begin of a task: take over what the driver sent along."""
    global _sent
    _sent = points


def fail_point(name: str, version: Version) -> None:
    """Die here if a test asked for it."""
    wanted = os.environ.get(VARIABLE) or _sent
    if not wanted:
        return
    here = f"{name}@{version}"
    points = wanted.split(",")
    if here in points and _first_time(here):
        _kill()
    elif f"{here}{_RAISE}" in points and _first_time(here):
        raise Crash(here)
    elif f"{here}=wait" in points and _first_time(here):
        while (Path(os.environ[ONCE]) / here).exists():
            time.sleep(0.01)


def is_set(name: str) -> bool:
    """True if a test asked for this condition."""
    wanted = os.environ.get(VARIABLE)
    return bool(wanted) and name in str(wanted).split(",")


def _first_time(point: str) -> bool:
    directory = os.environ.get(ONCE)
    if not directory:
        return True
    try:
        # Exclusive: of several tasks that come here at the same time, one dies. The mark names it.
        with open(Path(directory) / point, "x") as mark:
            mark.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def _kill() -> None:
    from headrace.spark.gateway import jvm_pid

    jvm = jvm_pid()
    if jvm is not None:
        os.kill(jvm, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
