"""Performs the faults of a plan on a running query. Each returns what was done, and when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.chaos.life import Died, Refused
from headrace.chaos.plan import DELAY_S_MAX, Fault
from headrace.chaos.processes import is_gone, parent_of, send, session_members
from headrace.chaos.rig import BaseRig, Rig
from headrace.config import Config
from headrace.logs import logger

DAMAGED_FILES = 3
DAMAGED_BYTES = 64
SPARE_S = 0.2
"""A fault may also come this long after a batch."""
EXECUTORS_S_MAX = 60.0
"""Spark replaces an executor within seconds."""
_log = logger(__name__)


class NotPossible(Exception):
    """The machine or the moment does not allow the fault."""


@dataclass
class Done:
    """A fault that was done."""

    what: list[str] = field(default_factory=list)
    struck_s: float = 0.0
    """When, by the clock; 0 if it has not happened."""
    refused: str = ""
    """The error that ended the query, if it had to be started again."""

    def strike(self, rig: Rig, what: str, wait_s: float = 0.0) -> None:
        """Note the fault, and let the file come by which its effect is measured. Between two batches this may be later."""
        self.what.append(what)
        rig.sleep(wait_s)
        self.struck_s = time.time()
        rig.feed(1)


def perform(rig: Rig, fault: Fault, done: Done) -> None:
    """Do a fault, and let the query process what came before it and one file that comes after it."""
    DO[fault.kind](rig, fault, done)


def _delay_s(rig: Rig, fault: Fault) -> float:
    """From the files to the fault: at any moment of their batches, or right after them."""
    return round(fault.delay_s * min(1.0, (SPARE_S + fault.files * rig.usual_batch_s()) / DELAY_S_MAX), 3)


def _after(rig: Rig, fault: Fault) -> str:
    return f"{_delay_s(rig, fault):.2f} s after {fault.files} file(s)"


def _begin_batch(rig: Rig, fault: Fault, done: Done) -> int:
    """Let files come, begin the changes, and wait for the moment of the fault. Returns how many answers are outstanding."""
    rig.feed(fault.files)
    for seed in fault.changes:
        rig.alive.tell("change", seed=seed)
    rig.alive.tell("settle")
    rig.sleep(_delay_s(rig, fault))
    return len(fault.changes)


def _end_batch(rig: Rig, done: Done, changes: int) -> None:
    """Take the outstanding answers, and wait until all is processed."""
    failed: Refused | None = None
    with rig.spent.on("changes"):
        for _ in range(changes):
            try:
                done.what.append(str(rig.alive.answer()))
            except Refused as refused:
                # A change may be refused, for example because the executor that should get the slots is gone.
                done.what.append(f"change refused ({refused.brief()})")
    try:
        with rig.spent.on("batches"):
            rig.note(rig.alive.answer())
    except Refused as refused:
        failed = refused
    if failed is not None:
        done.refused = failed.brief()
        rig.active = False
    rig.settle()


def _changes_now(rig: Rig, fault: Fault, done: Done) -> None:
    """Make the changes while the query is idle."""
    for seed in fault.changes:
        try:
            done.what.append(str(rig.alive.ask("change", seed=seed)))
        except Refused as refused:
            done.what.append(f"change refused ({refused.brief()})")


def _victims(rig: Rig, fault: Fault, count: int = 1) -> dict[str, int]:
    """Executors by choice of the plan, those with instances first. At least one more must be there to go on."""
    needed, deadline = min(count + 1, rig.setup.executors), time.monotonic() + EXECUTORS_S_MAX
    found: dict[str, int] = rig.alive.ask("executors")
    with rig.spent.on("waiting for executors"):
        while len(found) < needed and time.monotonic() < deadline:
            time.sleep(0.1)
            found = rig.alive.ask("executors")
    if len(found) < max(needed, 1):
        raise NotPossible(f"{len(found)} executor(s) on this machine, {needed} needed")
    homes = set(rig.batches[-1]["homes"]) if rig.batches else set()
    ranked = [each for each in found if each in homes] or list(found)
    first = int(fault.victim * len(ranked))
    chosen = [ranked[(first + at) % len(ranked)] for at in range(min(count, len(ranked)))]
    chosen += [each for each in found if each not in chosen][: count - len(chosen)]
    return {each: found[each] for each in chosen}


def _named(executors: Sequence[str] | dict[str, int]) -> str:
    return "executor " + " and ".join(executors)


def kill_executors(rig: Rig, fault: Fault, done: Done, count: int = 1) -> None:
    victims = _victims(rig, fault, count)
    changes = _begin_batch(rig, fault, done)
    send(victims.values(), signal.SIGKILL)
    done.strike(rig, f"{_named(victims)}, {_after(rig, fault)}")
    _end_batch(rig, done, changes)


def kill_two_executors(rig: Rig, fault: Fault, done: Done) -> None:
    kill_executors(rig, fault, done, 2)


def kill_idle_executor(rig: Rig, fault: Fault, done: Done) -> None:
    _changes_now(rig, fault, done)
    rig.feed(fault.files)
    rig.settle()
    victims = _victims(rig, fault)
    send(victims.values(), signal.SIGKILL)
    done.strike(rig, f"{_named(victims)}, {fault.delay_s:.2f} s before a file", fault.delay_s)
    rig.settle()


def hang_executor(rig: Rig, fault: Fault, done: Done) -> None:
    victims = _victims(rig, fault)
    if fault.idle:
        _changes_now(rig, fault, done)
        send(victims.values(), signal.SIGSTOP)
        done.strike(rig, f"{_named(victims)} before a batch")
        rig.feed(fault.files)
        rig.alive.tell("settle")
        changes = 0
    else:
        changes = _begin_batch(rig, fault, done)
        send(victims.values(), signal.SIGSTOP)
        done.strike(rig, f"{_named(victims)}, {_after(rig, fault)}")
    if fault.comes_back:
        rig.sleep(fault.away_s)
        send(victims.values(), signal.SIGCONT)
        done.what.append(f"goes on after {fault.away_s:.1f} s")
    _end_batch(rig, done, changes)
    # One without work is not noticed. It must not hang forever.
    send([pid for pid in victims.values() if not is_gone(pid)], signal.SIGCONT)


def damage_copies(rig: Rig, fault: Fault, done: Done) -> None:
    """Change bytes in the middle of files. A damaged file takes the place of the old one, so what is in memory stays as it was."""
    victims = _victims(rig, fault)
    folder = rig.setup.options.get("headrace.workingDirectory", Config().workingDirectory)
    damaged: list[str] = []
    for executor, pid in victims.items():
        place = Path(folder) / f"executor-{executor}" if Path(folder).is_absolute() else Path(f"/proc/{pid}/cwd").resolve() / folder
        files = sorted(place.rglob("*.arrow"))
        first = int(fault.victim * len(files))
        for path in files[first:] + files[:first]:
            if len(damaged) < DAMAGED_FILES and _damage(path, fault.victim):
                damaged.append(path.name)
    if not damaged:
        raise NotPossible(f"{_named(victims)} has no working copies")
    done.strike(rig, f"{len(damaged)} file(s) of {_named(victims)}")
    changes = _begin_batch(rig, fault, done)
    _end_batch(rig, done, changes)


def _damage(path: Path, where: float) -> bool:
    try:
        data = bytearray(path.read_bytes())
        begin = int(where * max(0, len(data) - DAMAGED_BYTES))
        for at in range(begin, min(len(data), begin + DAMAGED_BYTES)):
            data[at] ^= 0xFF
        temporary = path.with_name(f".{path.name}.damaged")
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        # A sweep has just removed it.
        return False
    return True


def kill_driver(rig: Rig, fault: Fault, done: Done) -> None:
    changes = _begin_batch(rig, fault, done)
    rig.kill()
    done.strike(rig, f"{_after(rig, fault)}{', while its routing changed' if changes else ''}")
    rig.settle()


def kill_driver_at_point(rig: Rig, fault: Fault, done: Done) -> None:
    _changes_now(rig, fault, done)
    newest = max([rig.version, *(each["version"] for each in rig.batches[-1:])])
    point = f"{fault.point}@{newest + fault.ahead}"
    rig.forget_marks()
    rig.alive.ask("arm", points=point)
    rig.feed(fault.files)
    try:
        rig.alive.ask("settle")
    except (Died, Refused) as ended:
        _log.debug("the driver reached its point, or failed on the way: %s", ended)
    reached = (rig.marks / point).exists()
    rig.kill()
    done.strike(rig, f"at {point}" if reached else f"{point} was not reached; killed while idle")
    rig.settle()


def kill_driver_and_executor(rig: Rig, fault: Fault, done: Done) -> None:
    victims = _victims(rig, fault)
    _begin_batch(rig, fault, done)
    send(victims.values(), signal.SIGKILL)
    done.strike(rig, f"{_named(victims)}, {_after(rig, fault)}, and the driver {fault.away_s / 6:.2f} s later")
    rig.sleep(fault.away_s / 6)
    rig.kill()
    rig.settle()


def kill_workers(rig: Rig, fault: Fault, done: Done) -> None:
    changes = _begin_batch(rig, fault, done)
    found = sorted(workers(rig))
    first = int(fault.victim * len(found))
    killed = send(found[first : first + fault.ahead], signal.SIGKILL)
    done.strike(rig, f"{killed} worker(s), {_after(rig, fault)}")
    _end_batch(rig, done, changes)


def workers(rig: BaseRig) -> list[int]:
    """The Python workers of a program: forked by a daemon, so their parent runs the same command."""
    found = []
    for pid in session_members(rig.alive.process.pid):
        try:
            if _is_daemon(pid) and _is_daemon(parent_of(pid)):
                found.append(pid)
        except OSError as gone:
            _log.debug("process %d has ended meanwhile: %s", pid, gone)
    return found


def _is_daemon(pid: int) -> bool:
    return b"pyspark.daemon" in (Path("/proc") / str(pid) / "cmdline").read_bytes()


def store_away(rig: Rig, fault: Fault, done: Done) -> None:
    _changes_now(rig, fault, done)
    away = rig.store.with_name("store-away")
    os.rename(rig.store, away)
    done.strike(rig, f"for {fault.away_s:.1f} s")
    try:
        rig.feed(fault.files)
        rig.sleep(fault.away_s)
    finally:
        if rig.store.exists():
            done.what.append("a folder was made in its place")
            os.rename(rig.store, rig.store.with_name(f"store-made-{fault.number}"))
        os.rename(away, rig.store)
    try:
        rig.settle()
    except Refused as refused:
        done.refused = refused.brief()
        rig.active = False
        rig.settle()


def change_routing(rig: Rig, fault: Fault, done: Done) -> None:
    changes = _begin_batch(rig, fault, done)
    done.strike(rig, "")
    _end_batch(rig, done, changes)
    done.what = [each for each in done.what if each]


DO: dict[str, Callable[[Rig, Fault, Done], None]] = {
    "kill-executor": kill_executors,
    "kill-idle-executor": kill_idle_executor,
    "hang-executor": hang_executor,
    "kill-two-executors": kill_two_executors,
    "damage-copies": damage_copies,
    "kill-driver": kill_driver,
    "kill-driver-at-point": kill_driver_at_point,
    "kill-driver-and-executor": kill_driver_and_executor,
    "kill-workers": kill_workers,
    "store-away": store_away,
    "change-routing": change_routing,
}
