"""Lets an executor fail in the middle of a batch, and notes what happens then.

    wait for the end of a batch -> a part of a batch later: the fault, on an executor that works -> deliveries, until all is as before

The victim is an executor with state: the one with most instances or partitions, and of those the one that has worked most since the
batch began. Headrace says where its instances ran; an executor of Spark has the files of its RocksDB stores open.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.recovery.rows import Delivery
from headrace.bench.model import OURS
from headrace.bench.runner import Runner
from headrace.spark.executors import Executors

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
MOMENTS = (0.5, 0.2, 0.8, 0.35, 0.65)
"""When faults happen, one after the other: parts of a batch's usual time after the batch before has ended. Equal for all engines."""
STEADY_BATCHES, STEADY = 5, 1.5
"""The query is steady if so many batches in a row took at most this many times as long as usual."""
RECOVERED_S_MAX, STEADY_S_MAX = 400.0, 45.0
"""How long deliveries and a new executor are waited for, and then how long for steady batches. Spark needs minutes to find a hang."""
STORE = re.compile(r"StateStoreId\(opId=\d+,partId=(\d+),")
LOOK_S, SAMPLE_S = 0.05, 0.02
"""How often something that is waited for is looked at, and the work of executors before a fault."""
BEFORE = 30
"""Deliveries before the fault that are noted."""


def strike(runner: Runner, seen: list[Delivery]) -> dict[str, Any]:
    """Let an executor fail, and return when what happened. Without a fault, or without executors, the times are those of calm batches."""
    context = runner.spark.sparkContext
    executors, fault = Executors.of(context), SIGNALS.get(str(runner.lane.params["fault"]))
    usual_ms = median(_gaps_ms(seen[-BEFORE:]))
    moment = MOMENTS[len(runner.notes) % len(MOMENTS)]
    at = len(seen)
    _wait(runner, lambda: len(seen) > at, RECOVERED_S_MAX, "a batch")
    note: dict[str, Any] = {"moment": moment, "usual_ms": round(usual_ms, 1)}
    if executors is None or fault is None:
        note["struck_ms"] = time.time() * 1000
    else:
        live, victim = len(executors.live()), _victim(runner, executors, usual_ms * moment / 1000)
        process = pid_of(victim, str(context.applicationId))
        note |= {"executor": victim, "struck_ms": time.time() * 1000}
        os.kill(process, fault)
        at = len(seen)
        _wait(runner, lambda: victim not in _ids(executors), RECOVERED_S_MAX, "the loss of an executor")
        note["lost_ms"] = time.time() * 1000
        _wait(runner, lambda: len(_ids(executors)) >= live, RECOVERED_S_MAX, "another executor")
        note["replaced_ms"] = time.time() * 1000
    _wait(runner, lambda: len(seen) > at + STEADY_BATCHES, RECOVERED_S_MAX, "batches")
    steady = _holds(runner, lambda: _is_steady(seen, usual_ms) and _is_spread(runner, executors), STEADY_S_MAX)
    note["steady_ms"] = time.time() * 1000 if steady else None
    note["delivered"] = [[each.batch, each.at_ms] for each in seen[max(0, at - BEFORE) :]]
    note["batches"] = _own(runner, seen[max(0, at - 1)].batch)
    return note


def pid_of(executor: str, application: str) -> int:
    """The process of an executor."""
    wanted = [b"--executor-id", executor.encode()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if application.encode() in words and wanted in ([*pair] for pair in pairwise(words)):
                return int(path.parent.name)
    raise ProcessLookupError(executor)


def _victim(runner: Runner, executors: Executors, seconds: float) -> str:
    """Wait this long, and return an executor that has state, if possible one that works at the end."""
    until_s = time.monotonic() + seconds
    state = _state_at(runner, executors)
    worked: Counter[str] = Counter()
    now: set[str] = set()
    while time.monotonic() < until_s:
        now = {each for each, tasks in executors.running_tasks().items() if tasks}
        worked.update(now)
        time.sleep(min(SAMPLE_S, max(0.0, until_s - time.monotonic())))
    return max(_ids(executors), key=lambda each: (state[each], each in now, worked[each], each))


def _state_at(runner: Runner, executors: Executors) -> Counter[str]:
    """The number of instances or partitions on each executor."""
    if runner.lane.engine == OURS:
        return Counter(each["executor"] for each in runner.query.lastProgress["headrace"]["instances"])
    application = str(runner.spark.sparkContext.applicationId)
    return Counter({each: len(_stores_of(pid_of(each, application))) for each in _ids(executors)})


def _is_steady(seen: Sequence[Delivery], usual_ms: float) -> bool:
    return max(_gaps_ms(seen[-STEADY_BATCHES - 1 :])) <= STEADY * usual_ms


def _is_spread(runner: Runner, executors: Executors | None) -> bool:
    """True if every executor has instances again. Spark leaves partitions where they are."""
    return runner.lane.engine != OURS or executors is None or set(_state_at(runner, executors)) >= _ids(executors)


def _stores_of(process: int) -> set[str]:
    """The partitions whose RocksDB stores a process has open, from the names of their folders."""
    found = set()
    for handle in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            found.update(STORE.findall(os.readlink(handle)))
    return found


def _ids(executors: Executors) -> set[str]:
    return {each.id for each in executors.live()}


def _gaps_ms(seen: Sequence[Delivery]) -> list[float]:
    return [after.at_ms - before.at_ms for before, after in pairwise(seen)] or [0.0]


def _wait(runner: Runner, holds: Callable[[], bool], seconds: float, what: str) -> None:
    if not _holds(runner, holds, seconds):
        raise TimeoutError(f"waited {seconds:g} s for {what}")


def _holds(runner: Runner, holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds; False if it does not within this time, or the query has ended."""
    until_s = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until_s or not runner.query.isActive:
            return False
        time.sleep(LOOK_S)
    return True


def _own(runner: Runner, after: int) -> list[dict[str, Any]]:
    """What Headrace itself says about the batches after this one: attempts that were broken off, and where the time went."""
    if runner.lane.engine != OURS:
        return []
    found = []
    for progress in runner.query.recentProgress:
        if progress["batchId"] > after:
            ours = progress["headrace"]
            fetched = sum(each["bytesFetched"] for each in ours["instances"])
            kept = {name: ours[name] for name in ("batchMs", "phasesMs", "interruptions", "changes") if name in ours}
            found.append({"id": progress["batchId"], **kept, "bytesFetched": fetched})
    return found
