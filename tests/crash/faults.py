"""Random disturbances of a program, from a given source of randomness."""

from __future__ import annotations

import subprocess
import time
from random import Random

from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import DRIVER_POINTS, TASK_POINTS
from tests.crash.harness import RUN_SECONDS_MAX, Program, kill_session

KILLED = -9


def version_of(program: Program) -> int:
    """The newest committed version; -1 if there is none."""
    return max(Checkpoint(str(program.checkpoint)).manifests.versions(), default=-1)


def kill_at_random(program: Program, random: Random, instances: int) -> str:
    """kill -9 of everything, some time after the query has begun to move."""
    before = version_of(program)
    moves, delay_s = random.randint(0, 2), random.uniform(0, 1.2)
    process = program.start(instances)
    try:
        deadline = time.monotonic() + RUN_SECONDS_MAX
        while process.poll() is None and version_of(program) < before + moves and time.monotonic() < deadline:
            time.sleep(0.01)
        if moves == 0:
            # Not yet in the first batch: somewhere in the start, which takes seconds.
            delay_s *= 5
        try:
            code = process.wait(delay_s)
        except subprocess.TimeoutExpired:
            kill_session(process)
            return f"killed at random, {instances} instance(s), in version {version_of(program) + 1}"
    finally:
        kill_session(process)
    assert code == 0, f"exit code {code}\n{program.said()}"
    return f"finished before the kill, {instances} instance(s)"


def die_at_a_point(program: Program, random: Random, instances: int) -> str:
    """The driver dies at a named point, soon; on the way there some workers may die too."""
    version = version_of(program) + random.randint(1, 2)
    points = [f"{random.choice(DRIVER_POINTS)}@{version}"]
    points += [f"{random.choice(TASK_POINTS)}@{v}" for v in (version - 1, version) if v > 0 and random.random() < 0.4]
    for mark in (program.work / "marks").glob("*"):
        mark.unlink()
    code = program.run(instances, ",".join(points))
    assert code in (0, KILLED), f"exit code {code} after {points}\n{program.said()}"
    return f"fail points {', '.join(points)}, {instances} instance(s): {'died' if code else 'not reached, finished'}"


def disturb(program: Program, random: Random) -> str:
    """One disturbance; says what was done."""
    instances = random.randint(1, 4)
    fault = random.choice((kill_at_random, die_at_a_point))
    return fault(program, random, instances)
