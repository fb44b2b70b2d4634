"""The pool: executors that are ready before they are needed (SEEP 5.2).

An executor takes seconds to start. With ``headrace.readyExecutors=p``, Headrace requests as many executors as the instances need, and at
least p more. A new instance gets a ready one as its home at once, and the pool is filled up again. While queries scale out fast more are
kept ready, and fewer again after a minute without growth: `control/pool.py` decides how many. With p = 0 none are kept ready, and executors
are requested when instances need them. Executors that are no longer needed are released between two batches. Without the option,
Headrace uses the executors that the user has.

    what queries need --> Supply: observation --> control/pool.py: decision --> Pool: Spark's requestTotalExecutors, killExecutors
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from headrace.control import pool as policy
from headrace.control.decisions import Decision, ReleaseExecutors, RequestExecutors
from headrace.control.pool import PoolConfig, PoolMemory, PoolObservation
from headrace.logs import logger
from headrace.spark.executors import Executors

_log = logger(__name__)


@dataclass(frozen=True)
class Need:
    """What one query needs: executors for its instances, how many to keep ready at least, and those that are homes now."""

    executors: int
    ready: int
    homes: frozenset[str]


@dataclass
class Supply:
    """What the queries of an application need, and what was requested for them. It reads no clock and calls no Spark."""

    needs: dict[str, Need] = field(default_factory=dict)
    """By query."""
    requested: int | None = None
    """The total that was requested last; None before the first request."""
    start_s: float = PoolConfig.start_s
    """How long the executors of the last request took to start."""
    memory: PoolMemory = field(default_factory=PoolMemory)
    taken: int = 0
    """Executors that queries took since the last decision."""
    pending: tuple[tuple[float, int], ...] = ()
    """Requests whose executors have not all started: when they were made, and the total. Oldest and smallest first."""

    def note(self, query: str, need: Need | None, live: Collection[str]) -> None:
        """Note what a query needs now, with the executors that are alive. None means that the query has ended.

        Executors are taken when a query needs more than before, and when it loses a home. Those with which it starts do not count: they
        say nothing about its growth.
        """
        before = self.needs.pop(query, None)
        if need is None:
            return
        self.needs[query] = replace(need, homes=need.homes & set(live))
        if before is not None:
            self.taken += max(0, need.executors - before.executors) + len(before.homes - set(live))

    def decide(self, at_s: float, live: int) -> Decision:
        """What to do, with this many live executors."""
        while self.pending and self.pending[0][1] <= live:
            self.start_s = at_s - self.pending[0][0]
            self.pending = self.pending[1:]
        starting = max(0, (self.requested or 0) - live)
        needed = sum(need.executors for need in self.needs.values())
        working = min(needed, live)
        seen = PoolObservation(at_s, working, live - working, starting, self.taken, waiting=needed - working)
        self.taken = 0
        (decision,), self.memory = policy.decide(seen, self.config, self.memory)
        return decision

    def note_request(self, total: int, at_s: float, live: int) -> None:
        """Note that this total was requested from Spark."""
        self.requested = total
        self.pending = tuple(each for each in self.pending if each[1] < total)
        if total > live:
            self.pending += ((at_s, total),)

    @property
    def config(self) -> PoolConfig:
        """The settings of the policy: the largest number that a query wants ready counts for all of them."""
        ready = max((need.ready for need in self.needs.values()), default=0)
        return PoolConfig(
            for_failures=ready,
            ready_max=max(ready, PoolConfig.ready_max) if ready else 0,
            # A request may have to wait until the cluster has room. That is not the time of a start.
            start_s=min(self.start_s, PoolConfig.window_s),
            withdraws=True,
        )

    def free(self, live: Collection[str]) -> list[str]:
        """Live executors that are no instance's home, newest first."""
        homes = frozenset().union(*(need.homes for need in self.needs.values()))
        return [each for each in reversed([*live]) if each not in homes]


@dataclass
class Pool:
    """The executors of one application. All its queries share them."""

    executors: Executors
    supply: Supply = field(default_factory=Supply)
    released: frozenset[str] = frozenset()
    """Executors that were given back. Spark may list them for a while."""
    clock: Callable[[], float] = time.monotonic
    lock: threading.Lock = field(default_factory=threading.Lock)
    _all: ClassVar[WeakKeyDictionary[SparkContext, Pool]] = WeakKeyDictionary()

    @classmethod
    def of(cls, executors: Executors) -> Pool:
        """The pool of an application. All its queries get the same one."""
        return cls._all.setdefault(executors.context, cls(executors))

    def tend(self, query: str, need: Need | None, between_batches: bool = False) -> bool:
        """Note what a query needs now, and request or release executors. A ``need`` of None means that the query has ended.

        Executors are only released ``between_batches`` of the query, because a batch may have shuffle files on any of them. Returns True if
        some must be released, and this was not such a moment.
        """
        with self.lock:
            listed = [each.id for each in self.executors.live()]
            self.released = self.released.intersection(listed)
            live = [each for each in listed if each not in self.released]
            self.supply.note(query, need, live)
            if not self.supply.needs:
                return False
            decision = self.supply.decide(self.clock(), len(live))
            if isinstance(decision, ReleaseExecutors):
                if between_batches:
                    self._release(decision, live)
                return not between_batches
            if isinstance(decision, RequestExecutors):
                _log.info("executors requested, %d in all: %s", decision.total, decision.why, query=query)
                self._request(decision.total, len(live))
            elif self.supply.requested is None:
                # There are as many as there should be. Spark shall replace those that it loses.
                self._request(len(live), len(live))
            return False

    def _release(self, decision: ReleaseExecutors, live: list[str]) -> None:
        """Release executors that are no homes."""
        leaving = self.supply.free(live)[: decision.count]
        if leaving and self.executors.release(leaving):
            _log.info("executors released, %s: %s", ", ".join(leaving), decision.why)
            self.released |= frozenset(leaving)
            left = len(live) - len(leaving)
            # Spark has lowered its total by the number of released ones. If it knew no total before, it is 0 now.
            self._request(left, left)

    def _request(self, total: int, live: int) -> None:
        self.executors.request(total)
        self.supply.note_request(total, self.clock(), live)


@dataclass
class PoolClient:
    """The pool as one query sees it."""

    pool: Pool
    query: str
    ready: int
    """The least number of executors to keep ready."""
    has_left: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tend(self, executors: int, homes: frozenset[str], between_batches: bool = False) -> bool:
        """Tell the pool how many executors the query needs, and its homes. See ``Pool.tend``."""
        with self.lock:
            return not self.has_left and self.pool.tend(self.query, Need(executors, self.ready, homes), between_batches)

    def leave(self) -> None:
        """The query has ended, and needs nothing more."""
        with self.lock:
            self.has_left = True
            self.pool.tend(self.query, None)

    @property
    def released(self) -> frozenset[str]:
        """Executors that were given back, and may still be alive for a while."""
        return self.pool.released

    def homes_of_others(self) -> frozenset[str]:
        """The executors that other queries use."""
        needs = self.pool.supply.needs.copy()
        return frozenset().union(*(need.homes for query, need in needs.items() if query != self.query))
