"""The deck of faults, and what each needs to be undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from headrace.chaos.life import Refused
from tests.chaos import damage, disk, processes
from tests.chaos.data import files_of
from tests.chaos.query import QUERIES
from tests.chaos.rig import Rig


@dataclass
class Injected:
    """A fault that was done."""

    what: str
    undo: Callable[[], None] | None = None
    always: bool = False
    """True if the fault must be undone even if it had no effect."""
    damage: damage.Damage | None = None


Fault = Callable[[Rig, Random], Injected]


def _plain(do: Callable[[Rig, Random], str]) -> Fault:
    return lambda rig, random: Injected(do(rig, random))


def _disk(do: Callable[[Rig, Random], tuple[str, Callable[[], None]]]) -> Fault:
    def inject(rig: Rig, random: Random) -> Injected:
        what, undo = do(rig, random)
        return Injected(what, undo, always=True)

    return inject


def _other_order(rig: Rig, random: Random) -> Injected:
    def back() -> None:
        rig.order = QUERIES[rig.query]

    return Injected(processes.other_order(rig, random), back)


def _corrupt(target: str) -> Fault:
    def inject(rig: Rig, random: Random) -> Injected:
        if target == "routing" and not (rig.checkpoint / "headrace" / "routing.json").exists():
            # The file exists after the first change.
            rig.alive.ask("change", seed=random.randrange(2**31))
        if target == "staged" or random.random() < 0.3:
            # A version that is committed and not delivered: its results are read from their files.
            _stop_before_delivery(rig)
        else:
            rig.stop()
        done = damage.corrupt(rig.checkpoint, target, random, foreign(rig))
        rig.feed(random.randint(1, 2))
        return Injected(done.what, done.undo, damage=done)

    return inject


def _foreign_folder(rig: Rig, random: Random) -> Injected:
    rig.stop()
    done = damage.foreign_folder(rig.checkpoint, foreign(rig), random)
    rig.feed(1)
    return Injected(done.what, done.undo, damage=done)


def _stop_before_delivery(rig: Rig) -> None:
    rig.alive.ask("arm", points=f"manifest-after@{rig.version + 1}=raise")
    rig.feed(1)
    try:
        rig.alive.ask("settle")
        rig.stop()
    except Refused:
        rig.active = False
    rig.alive.ask("arm", points="")


def foreign(rig: Rig) -> Path:
    """A checkpoint that another run of the same query left; made when it is first needed."""
    made = rig.work / "foreign"
    if not made.exists():
        other = Rig(made, files_of("foreign", 4), Random(0), rig.master, query=rig.query, life=rig.alive)
        other.feed(4)
        other.settle()
        other.stop()
    return made / "0" / "checkpoint"


def _second_driver(rig: Rig, random: Random) -> Injected:
    return Injected(processes.second_driver(rig, random))


FAULTS: dict[str, Fault] = {
    "kill driver": _plain(processes.kill_driver),
    "kill starting driver": _plain(processes.kill_starting_driver),
    "driver fail point": _plain(processes.driver_fail_point),
    "batch breaks off": _plain(processes.break_off),
    "worker fail point": _plain(processes.worker_fail_point),
    "kill workers": _plain(processes.kill_workers),
    "kill executor": _plain(processes.kill_executor),
    "second driver": _second_driver,
    "stop and restart": _plain(processes.stop_and_restart),
    "sinks in another order": _other_order,
    "change routing": _plain(processes.change_routing),
    "disk full": _disk(disk.fill),
    "read-only disk": _disk(disk.read_only),
    **{f"corrupt {target}": _corrupt(target) for target in damage.TARGETS},
    "folder of another run": _foreign_folder,
}

ON_A_CLUSTER = (*(("kill executor",) * 3), "kill workers", "change routing", "stop and restart", "kill driver", "batch breaks off")
"""Kinds for seeds with executors, where a start takes longer: those that executors can change something about."""


EVERY = 5
"""Of so many seeds, the last has executors."""


def is_on_a_cluster(seed: int) -> bool:
    return seed % EVERY == EVERY - 1


def deck(seed: int, faults: int) -> list[str]:
    """The faults of a seed, in order. Seeds draw from one endless deck, in which every kind comes once before any repeats."""
    if is_on_a_cluster(seed):
        kinds, first = list(ON_A_CLUSTER), seed // EVERY * faults
    else:
        kinds, first = [name for name in FAULTS if name != "kill executor"], (seed - seed // EVERY) * faults
    found: list[str] = []
    for at in range(first, first + faults):
        shuffled = Random(f"deck/{at // len(kinds)}").sample(kinds, len(kinds))
        found.append(shuffled[at % len(kinds)])
    return found
