"""The pool: executors that are ready before they are needed (SEEP 5.2).

An executor takes seconds to start. With ``headrace.readyExecutors=p``, Headrace requests as many executors as the instances need, and p
more. A new instance gets a ready one as its home at once, and the pool is filled up again. Executors that are no longer needed after
scaling in are released. Without the option, Headrace uses the executors that the user has.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar
from weakref import WeakKeyDictionary

from pyspark import SparkContext

from headrace.spark.executors import Executor, Executors


@dataclass(frozen=True)
class Need:
    """What one query needs: executors for its instances, spare ones, and those that are homes now."""

    executors: int
    ready: int
    homes: frozenset[str]


@dataclass
class Pool:
    """The executors of one application. All its queries share them."""

    executors: Executors
    needs: dict[str, Need] = field(default_factory=dict)
    asked: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    _all: ClassVar[WeakKeyDictionary[SparkContext, Pool]] = WeakKeyDictionary()

    @classmethod
    def of(cls, executors: Executors) -> Pool:
        """The pool of an application. All its queries get the same one."""
        return cls._all.setdefault(executors.context, cls(executors))

    def tend(self, query: str, need: Need | None) -> None:
        """Note what a query needs now, and request or release executors. None means that the query has ended."""
        with self.lock:
            if need is None:
                self.needs.pop(query, None)
            else:
                self.needs[query] = need
            if not self.needs:
                return
            live = self.executors.live()
            total = wanted(self.needs.values())
            spare = surplus(live, self.needs.values())
            if spare:
                self.executors.release(spare)
                self.asked = total
            elif total != self.asked:
                self.executors.request(total)
                self.asked = total


def wanted(needs: Collection[Need]) -> int:
    """How many executors there should be.

    >>> wanted([Need(2, 1, frozenset()), Need(3, 2, frozenset())])
    7
    """
    return sum(need.executors for need in needs) + max((need.ready for need in needs), default=0)


def surplus(live: tuple[Executor, ...], needs: Collection[Need]) -> list[str]:
    """Executors to release: the newest of those that are no instance's home.

    >>> four = tuple(Executor(str(at), "here", 1) for at in range(4))
    >>> surplus(four, [Need(2, 1, frozenset({"0", "3"}))])
    ['2']
    """
    homes = frozenset().union(*(need.homes for need in needs))
    free = [each.id for each in live if each.id not in homes]
    return free[::-1][: max(0, len(live) - wanted(needs))]
