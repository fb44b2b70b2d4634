"""SEEP's pool of ready machines (5.2), here executors: started ahead of need, since a start takes longer than an overload may last.

    p = a few for failures + the most that were taken within any one start time, lately

What is taken while an executor starts has to be there already, and so the second part is exactly what a growing query needs: the pool is
large while the query scales out fast. When the last minute's requests were few, it shrinks to what failures need.

Where this departs from the paper: it gives the two observations (one or two for failures; larger while scaling out, smaller after), but
uses a constant p in its experiments. The formula is ours. With nothing taken p stays the same, so a steady load comes to rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision, Nothing, ReleaseExecutors, RequestExecutors
from headrace.errors import require


@dataclass(frozen=True)
class PoolObservation:
    at_s: float
    working: int
    """Executors that have instances."""
    ready: int
    """Executors that wait to be taken."""
    starting: int = 0
    """Executors that were requested and are not there yet."""
    taken: int = 0
    """How many were taken from the pool since the last observation, for more instances or in place of failed ones."""
    waiting: int = 0
    """How many are asked for that the pool does not have; they come on top of what shall be ready."""

    def __post_init__(self) -> None:
        counts = (self.working, self.ready, self.starting, self.taken, self.waiting)
        require(min(counts) >= 0, f"numbers of executors are not negative, unlike {counts}")


@dataclass(frozen=True)
class PoolConfig:
    for_failures: int = 2
    """One or two suffice for failures as they happen, says the paper; the second covers a failure while the first is being replaced."""
    ready_max: int = 16
    """Ready executors cost as much as working ones."""
    start_s: float = 5.0
    """How long an executor takes to start; a JVM takes about that on a laptop. Set it to minutes where machines must be booted."""
    window_s: float = 60.0
    """For how long a burst of requests is remembered. Twelve start times: a ramp with a step a minute keeps its pool."""
    total_max: int = 1_000_000
    """Executors in all, working and ready."""

    def __post_init__(self) -> None:
        between("pool", "for_failures", self.for_failures, 0)
        between("pool", "start_s", self.start_s, 0)
        between("pool", "total_max", self.total_max, 1)
        ascending("pool", for_failures=self.for_failures, ready_max=self.ready_max)
        ascending("pool", start_s=self.start_s, window_s=self.window_s)


@dataclass(frozen=True)
class PoolMemory:
    taken: tuple[tuple[float, int], ...] = ()
    """When how many were taken, oldest first, as far back as the window goes."""


def decide(observation: PoolObservation, config: PoolConfig, memory: PoolMemory) -> tuple[tuple[Decision, ...], PoolMemory]:
    """Refill or shrink the pool.

    >>> growing = PoolObservation(at_s=10.0, working=6, ready=0, taken=4)
    >>> (decision,), memory = decide(growing, PoolConfig(), PoolMemory())
    >>> decision
    RequestExecutors(why='6 ready executors wanted, for 4 were taken within 5 s and 2 are for failures; there are 0, and 0 start', total=12)
    >>> (later,), memory = decide(PoolObservation(at_s=80.0, working=6, ready=6), PoolConfig(), memory)
    >>> later
    ReleaseExecutors(why='2 ready executors wanted, for 0 were taken within 5 s and 2 are for failures; there are 6, and 0 start', count=4)
    """
    memory = _remembered(observation, config, memory)
    burst = burst_max(memory.taken, config.start_s)
    room = max(0, config.total_max - observation.working)
    wanted = min(min(config.for_failures + burst, config.ready_max) + observation.waiting, room)
    waiting = f", {observation.waiting} are waited for" if observation.waiting else ""
    why = (
        f"{wanted} ready executors wanted, for {burst} were taken within {config.start_s:g} s{waiting} and {config.for_failures} are for "
        f"failures; there are {observation.ready}, and {observation.starting} start"
    )
    if observation.ready + observation.starting < wanted:
        return (RequestExecutors(total=observation.working + wanted, why=why),), memory
    if observation.ready > wanted:
        return (ReleaseExecutors(count=observation.ready - wanted, why=why),), memory
    return (Nothing(why=why),), memory


def burst_max(taken: tuple[tuple[float, int], ...], span_s: float) -> int:
    """The most that were taken within any span of time of this length.

    >>> burst_max(((0.0, 1), (4.0, 2), (6.0, 2), (20.0, 3)), 5.0)
    4
    """
    most = running = 0
    oldest = iter(taken)
    first = next(oldest, None)
    for at_s, count in taken:
        running += count
        while first is not None and first[0] <= at_s - span_s and first[0] < at_s:
            running -= first[1]
            first = next(oldest, None)
        most = max(most, running)
    return most


def _remembered(observation: PoolObservation, config: PoolConfig, memory: PoolMemory) -> PoolMemory:
    since_s = observation.at_s - config.window_s
    recent = itertools.dropwhile(lambda each: each[0] <= since_s, memory.taken)
    new = ((observation.at_s, observation.taken),) if observation.taken else ()
    return PoolMemory((*recent, *new))
