"""SEEP's pool of ready machines (5.2), here executors. They are started before they are needed, because a start takes too long.

    p = a few for failures + the most that were taken within one start time, lately

Executors that are taken while another one starts must be ready already. So the second part is what a growing query needs: the pool is
large while the query scales out fast, and shrinks to what failures need when the last minute had few requests.

Differences from the paper: it says that one or two machines suffice for failures, and that the pool should be larger while the query
scales out. Its experiments use a constant p. The formula is ours. If nothing is taken, p does not change, so a steady load comes to rest.

The pool of running queries (`runtime/pool.py`) and scenarios of the simulator use it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from headrace.control.checks import ascending, between
from headrace.control.decisions import Decision, Nothing, ReleaseExecutors, RequestExecutors
from headrace.errors import require


@dataclass(frozen=True)
class PoolObservation:
    """The executors of a query at one moment."""

    at_s: float
    working: int
    """Executors that have instances."""
    ready: int
    """Executors in the pool: started, but without instances."""
    starting: int = 0
    """Executors that were requested and have not started yet."""
    taken: int = 0
    """Executors taken from the pool since the last observation, for more instances or to replace failed ones."""
    waiting: int = 0
    """Executors that the query needs now and that the pool does not have. They are requested in addition to the pool."""

    def __post_init__(self) -> None:
        counts = (self.working, self.ready, self.starting, self.taken, self.waiting)
        require(min(counts) >= 0, f"numbers of executors are not negative; found {counts}")


@dataclass(frozen=True)
class PoolConfig:
    """Settings of the pool."""

    for_failures: int = 2
    """Ready executors for failures. The paper suggests one or two; the second covers a failure while the first is being replaced."""
    ready_max: int = 16
    """The most ready executors: they cost as much as working ones."""
    start_s: float = 5.0
    """How long an executor takes to start, about what a JVM takes on a laptop. Set it to minutes if machines must be booted."""
    window_s: float = 60.0
    """How long a burst of requests is remembered: twelve start times, so a load that grows once a minute keeps its pool."""
    total_max: int = 1_000_000
    """The most executors in all, working and ready."""
    withdraws: bool = False
    """True if a request for a lower total cancels executors that have not started yet, as it does in Spark. Booting machines go on."""

    def __post_init__(self) -> None:
        between("pool", "for_failures", self.for_failures, 0)
        between("pool", "start_s", self.start_s, 0)
        between("pool", "total_max", self.total_max, 1)
        ascending("pool", for_failures=self.for_failures, ready_max=self.ready_max)
        ascending("pool", start_s=self.start_s, window_s=self.window_s)


@dataclass(frozen=True)
class PoolMemory:
    """What the policy remembers from one observation to the next."""

    taken: tuple[tuple[float, int], ...] = ()
    """Moments and numbers of executors that were taken within the window, oldest first."""


def decide(observation: PoolObservation, config: PoolConfig, memory: PoolMemory) -> tuple[tuple[Decision, ...], PoolMemory]:
    """Request executors if the pool is too small; release some, or request fewer, if it is too large.

    >>> growing = PoolObservation(at_s=10.0, working=6, ready=0, taken=4)
    >>> (decision,), memory = decide(growing, PoolConfig(), PoolMemory())
    >>> decision
    RequestExecutors(why='Ready executors needed: 6 (4 taken within 5 s + 2 for failures); 0 ready, 0 starting', total=12)
    >>> (later,), memory = decide(PoolObservation(at_s=80.0, working=6, ready=6), PoolConfig(), memory)
    >>> later
    ReleaseExecutors(why='Ready executors needed: 2 (0 taken within 5 s + 2 for failures); 6 ready, 0 starting', count=4)
    """
    memory = _remembered(observation, config, memory)
    burst = burst_max(memory.taken, config.start_s)
    room = max(0, config.total_max - observation.working)
    wanted = min(min(config.for_failures + burst, config.ready_max) + observation.waiting, room)
    waiting = f" + {observation.waiting} missing now" if observation.waiting else ""
    parts = f"{burst} taken within {config.start_s:.3g} s + {config.for_failures} for failures{waiting}"
    why = f"Ready executors needed: {wanted} ({parts}); {observation.ready} ready, {observation.starting} starting"
    if observation.ready + observation.starting < wanted:
        return (RequestExecutors(total=observation.working + wanted, why=why),), memory
    if observation.ready > wanted:
        return (ReleaseExecutors(count=observation.ready - wanted, why=why),), memory
    if config.withdraws and observation.ready + observation.starting > wanted:
        return (RequestExecutors(total=observation.working + wanted, why=why),), memory
    return (Nothing(why=why),), memory


def burst_max(taken: tuple[tuple[float, int], ...], span_s: float) -> int:
    """The most executors that were taken within any time span of this length.

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
