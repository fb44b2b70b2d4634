"""Faults of processes: drivers, Python workers and executors die or sleep; the query stops, restarts and is rescaled."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from random import Random

from headrace.chaos.faults import NotPossible, workers
from headrace.chaos.life import Died, Refused
from headrace.chaos.processes import send, session_members
from headrace.runtime.failpoints import DRIVER_POINTS, TASK_POINTS
from tests.chaos.oracle import repeated_calls
from tests.chaos.rig import Rig

MID_BATCH_S = 1.5


def kill_driver(rig: Rig, random: Random) -> str:
    """kill -9 of the driver, its JVM and its workers some time after rows have come; perhaps while it starts."""
    rig.feed(random.randint(1, 3))
    moves = random.randint(0, 2)
    if moves:
        rig.wait_for_version(rig.version + moves, 10)
    changing = random.random() < 0.5
    if changing:
        rig.alive.tell("change", seed=random.randrange(2**31))
    delay_s = random.uniform(0, MID_BATCH_S)
    time.sleep(delay_s)
    version = rig.version
    rig.kill()
    return f"{delay_s:.2f} s after version {version}" + (", while its routing changed" if changing else "")


def kill_starting_driver(rig: Rig, random: Random) -> str:
    """kill -9 while a query starts in a process of its own, before or in its first batch."""
    rig.kill()
    rig.feed(random.randint(1, 2))
    life = rig.launch(f"{random.choice(TASK_POINTS)}@{rig.version + 1}" if random.random() < 0.5 else "")
    instances = {"headrace.instances": random.randint(1, 3)}
    places = {"source": str(rig.source), "output": str(rig.output), "checkpoint": str(rig.checkpoint)}
    life.tell("start", **places, order=list(rig.order), options=instances)
    delay_s = random.uniform(0, 2 * MID_BATCH_S)
    time.sleep(delay_s)
    rig.kill()
    return f"{delay_s:.2f} s after start() was called"


def driver_fail_point(rig: Rig, random: Random) -> str:
    """kill -9 at a named point of a batch; a worker may die in that life too."""
    point = f"{random.choice(DRIVER_POINTS)}@{rig.version + random.randint(1, 2)}"
    rig.alive.ask("arm", points=point)
    rig.feed(2)
    with suppress(Died, Refused):
        rig.alive.ask("settle")
    reached = (rig.marks / point).exists()
    rig.kill()
    return point if reached else f"{point} (not reached; killed afterwards)"


def break_off(rig: Rig, random: Random) -> str:
    """The batch breaks off at a named point, and the query restarts in the same process."""
    point = f"{random.choice(DRIVER_POINTS)}@{rig.version + random.randint(1, 2)}"
    rig.alive.ask("arm", points=f"{point}=raise")
    rig.feed(2)
    try:
        rig.alive.ask("settle")
    except Refused:
        rig.active = False
    rig.alive.ask("arm", points="")
    return point + ("" if not rig.active else " (not reached)")


def worker_fail_point(rig: Rig, random: Random) -> str:
    """A new life in which workers die at named points of tasks; Spark tries the tasks again."""
    version = rig.version
    points = [f"{random.choice(TASK_POINTS)}@{version + at}" for at in range(1, random.randint(2, 3))]
    rig.launch(",".join(points))
    rig.feed(len(points) + 1)
    rig.settle()
    died = [point for point in points if (rig.marks / point).exists()]
    return ", ".join(died) or f"{', '.join(points)} (not reached)"


def kill_workers(rig: Rig, random: Random) -> str:
    """kill -9 of Python workers in mid-batch, once or twice."""
    rig.feed(2)
    rig.alive.tell("settle")
    killed = 0
    for _ in range(random.randint(1, 2)):
        time.sleep(random.uniform(0, MID_BATCH_S / 2))
        found = workers(rig)
        killed += send(random.sample(found, min(len(found), random.randint(1, 2))), signal.SIGKILL)
    rig.alive.answer()
    return f"{killed} worker(s)"


def kill_executor(rig: Rig, random: Random) -> str:
    """kill -9 of an executor in mid-batch; Spark's master starts another one."""
    victims = list(rig.alive.ask("executors").values())
    if not victims:
        raise NotPossible("no executors: the query runs in one JVM")
    rig.feed(2)
    rig.alive.tell("settle")
    time.sleep(random.uniform(0, MID_BATCH_S))
    send([random.choice(victims)], signal.SIGKILL)
    rig.alive.answer()
    return f"one of {len(victims)}"


NO_LOCKS = "no-locks"
"""The fail point that makes a driver find no file locks, as on some network disks."""


def second_driver(rig: Rig, random: Random) -> str:
    """SIGSTOP of a driver in mid-batch; another one goes on on its checkpoint; SIGCONT of the first.

    Every other time the disk has no locks, so that nothing but the checkpoint itself tells the two apart.
    """
    without_locks = random.random() < 0.7
    rig.feed(2)
    sleeper, rig.life, rig.active = rig.alive, None, False
    time.sleep(random.uniform(0, MID_BATCH_S))
    send(session_members(sleeper.process.pid), signal.SIGSTOP)
    try:
        try:
            rig.launch(NO_LOCKS if without_locks else "")
            rig.start()
            rig.settle()
            said = "no locks; the second went on" if without_locks else "the second went on in spite of the lock"
        except Refused as refused:
            if not refused.ours:
                raise
            said = f"the second was refused ({refused.kind})"
        rig.feed(1)
        send(session_members(sleeper.process.pid), signal.SIGCONT)
        if rig.active:
            with suppress(Refused, Died):
                sleeper.ask("settle")
                said += ", and the first too"
            rig.settle()
        else:
            rig.kill()
            sleeper.ask("settle")
            rig.life, rig.active = sleeper, True
    finally:
        if sleeper is not rig.life:
            sleeper.kill()
    return said


def stop_and_restart(rig: Rig, random: Random) -> str:
    """stop(), with rows still coming, and start() again. A graceful stop repeats no delivery."""
    before = set(repeated_calls(rig.output))
    rig.feed(random.randint(1, 2))
    time.sleep(random.uniform(0, MID_BATCH_S))
    rig.stop()
    rig.settle()
    again = sorted(set(repeated_calls(rig.output)) - before)
    return "" if not again else f"{REPEATED} version(s) {again}"


REPEATED = "repeated after a graceful stop:"


def other_order(rig: Rig, random: Random) -> str:
    """The query restarts with its sinks in another order."""
    rig.stop()
    order = list(rig.order)
    while tuple(order) == rig.order:
        random.shuffle(order)
    rig.order = tuple(order)
    rig.feed(1)
    return " ".join(order)


def change_routing(rig: Rig, random: Random) -> str:
    """Rescale, move, spread or rebalance some times by any protocol, while batches run."""
    said = []
    for _ in range(random.randint(2, 4)):
        rig.feed(1)
        said.append(rig.alive.ask("change", seed=random.randrange(2**31)))
        time.sleep(random.uniform(0, 0.5))
    return "; ".join(said)
