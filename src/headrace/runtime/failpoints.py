"""Fail points: named points at which a test can kill a process, to test recovery from a crash at each of them.

They are off unless the environment variable ``HEADRACE_FAILPOINT`` holds a list of ``NAME@VERSION``, separated by commas. When off, a point
costs one dictionary look-up. At a point that is on, the process is killed by ``kill -9``:

- In the driver, Spark's JVM is killed first, so that it does nothing more for a dead driver. The Python workers end with their JVM.
- In a task, only the worker dies, and Spark runs the task again. The new attempt has the same environment and would die too. So
  ``HEADRACE_FAILPOINT_ONCE`` names a directory in which each point creates a marker file. A point whose marker exists does nothing.

With ``NAME@VERSION=raise`` the batch is aborted by an exception, and the process lives. The query does nothing after that point, so its
files are the same as after a kill, and a restart in the same process takes a second. The driver sends such points along with its tasks,
because a worker keeps the environment that it was started with.

With ``NAME@VERSION=wait`` the process waits there until its marker is removed. It is then a zombie: it sleeps while the query crashes and
recovers, and afterwards goes on with work that is out of date.

A bare ``NAME`` is a condition that always holds, such as a disk without locks.
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
KAFKA_POINTS = ("kafka-begun", "kafka-sent", "kafka-noted", "kafka-committed")
"""Points of the driver in queries that write to Kafka."""
TASK_POINTS = ("task-begin", "run-before", "run-after", "staged-after", "task-end")


_RAISE = "=raise"
_sent = ""
"""In a worker: the points that the driver sent along with the task."""


class Crash(Exception):
    """A test has aborted the batch at a fail point."""


@contextlib.contextmanager
def break_off(name: str, version: Version) -> Iterator[None]:
    """Inside the block, a batch of this process is aborted when it reaches this point."""
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
    """In the driver: the points at which tasks shall be aborted."""
    return ",".join(point for point in os.environ.get(VARIABLE, "").split(",") if point.endswith(_RAISE))


def receive_points(points: str) -> None:
    """In a worker, when a task begins: set the points that the driver sent along."""
    global _sent
    _sent = points


def fail_point(name: str, version: Version) -> None:
    """A point at which a test can kill the process, abort the batch, or let the process wait."""
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
    """True if a test has set this condition."""
    wanted = os.environ.get(VARIABLE)
    return bool(wanted) and name in str(wanted).split(",")


def _first_time(point: str) -> bool:
    directory = os.environ.get(ONCE)
    if not directory:
        return True
    try:
        # Exclusive creation: if several tasks reach the point at the same time, only one dies. The marker names it.
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
