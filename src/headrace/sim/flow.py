"""Queues as flows: per instance of an operator, the number of waiting rows for each tick in which rows were born at the source.

A row keeps the tick of its birth through the whole query, so its latency is known when it leaves the last operator. The oldest rows are
taken first, as by an input merger (StreamCloud, Fig. 3). Amounts are real numbers: half a row may wait.

    tick of birth     ... 41   42   43  (now)
    instance 0         0    0    0   12          was empty: takes all new rows, in one numpy call for all such instances
    instance 1         3   20   21   19          is behind: takes the oldest rows first, a few ticks at a time
    instance 2         0    0    0    0

The table is a ring buffer with a fixed number of ticks. Older rows are kept as one amount, with the sum of their ticks of birth. So sums
and means of their latencies are exact, and percentiles are approximate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from headrace.control.observation import Flags, Floats, Owners
from headrace.errors import require

TICKS_KEPT = 1024
_LOOK = 16


@dataclass(frozen=True, eq=False)
class Flow:
    """Rows on their way to an operator: ``amounts[i]`` rows were born in ``ticks[i]``.

    ``old`` further rows are too old to keep their ticks; ``old_born`` is the sum of their ticks of birth.
    """

    ticks: Owners
    amounts: Floats
    old: float = 0.0
    old_born: float = 0.0

    @property
    def total(self) -> float:
        return float(self.amounts.sum()) + self.old

    def times(self, factor: float) -> Flow:
        """The same rows, with all amounts multiplied."""
        return self if factor == 1.0 else Flow(self.ticks, self.amounts * factor, self.old * factor, self.old_born * factor)


NO_FLOW = Flow(np.zeros(0, dtype=np.int64), np.zeros(0))


def born(tick: int, amount: float) -> Flow:
    """New rows of a source."""
    return Flow(np.array([tick]), np.array([amount]))


def joined(flows: list[Flow]) -> Flow:
    """The union of several flows.

    >>> both = joined([Flow(np.array([3, 5]), np.array([1.0, 2.0])), Flow(np.array([4, 5]), np.array([1.0, 1.0]))])
    >>> both.ticks.tolist(), both.amounts.tolist()
    ([3, 4, 5], [1.0, 1.0, 3.0])
    """
    if len(flows) == 1:
        return flows[0]
    ticks, index = np.unique(np.concatenate([flow.ticks for flow in flows]), return_inverse=True)
    amounts: Floats = np.zeros(len(ticks))
    np.add.at(amounts, index, np.concatenate([flow.amounts for flow in flows]))
    return Flow(ticks, amounts, sum(flow.old for flow in flows), sum(flow.old_born for flow in flows))


class Queues:
    """The rows that wait at the instances of one operator."""

    def __init__(self, instances: int, ticks_kept: int = TICKS_KEPT) -> None:
        self.now = 0
        self.waiting = np.zeros(instances)
        self._kept = ticks_kept
        self._rows = np.zeros((ticks_kept, instances))
        # Per instance: waiting rows were born in this tick or later, except those in `_old`.
        self._oldest = np.zeros(instances, dtype=np.int64)
        self._old = np.zeros(instances)
        self._old_born = np.zeros(instances)
        self._has_old = False
        self._empty = np.ones(instances, dtype=np.bool_)
        self._ticks = NO_FLOW.ticks
        # All rows in the table were born in this tick or later.
        self._first = 1

    def advance(self, now: int) -> None:
        """Begin the next tick. The rows of the tick that leaves the ring buffer become old rows."""
        self.now = now
        self._ticks = NO_FLOW.ticks
        if now - self._kept < self._first:
            return
        place = self._rows[now % self._kept]
        self._old += place
        self._old_born += place * (now - self._kept)
        self._has_old = bool(self._old.any())
        place[:] = 0.0
        np.maximum(self._oldest, now - self._kept + 1, out=self._oldest)

    def add(self, flow: Flow, total: float, shares: Floats) -> None:
        """Add arriving rows, ``total`` in all, to the instances by their shares.

        Call it once a tick: `take` relies on it that an instance that was empty has only these rows.
        """
        require(not len(self._ticks), "rows arrive once a tick")
        self._ticks = flow.ticks
        self._empty = self.waiting == 0
        if len(flow.ticks) == 1:
            self._rows[int(flow.ticks[0]) % self._kept] += flow.amounts[0] * shares
        elif len(flow.ticks):
            self._rows[flow.ticks % self._kept] += flow.amounts[:, None] * shares
        if flow.old:
            self._old += flow.old * shares
            self._old_born += flow.old_born * shares
            self._has_old = True
        self.waiting = self.waiting + total * shares
        if len(flow.ticks):
            first = int(flow.ticks[0])
            np.minimum(self._oldest, first, out=self._oldest)
            self._first = min(self._first, first)

    def older(self, tick: int) -> Floats:
        """The number of waiting rows that were born before this tick, per instance."""
        younger = np.arange(max(tick, self.now - self._kept + 1), self.now + 1)
        return np.asarray(self.waiting - self._rows[younger % self._kept].sum(axis=0))

    def take(self, able: Floats) -> tuple[Floats, Flow]:
        """Take the oldest rows, up to ``able`` per instance. Returns the number per instance, and all of them as one flow."""
        done = np.minimum(self.waiting, able)
        full = self.waiting <= able
        left, old, old_born = self._take_old(done) if self._has_old else (done, 0.0, 0.0)
        # Nearly all instances were empty and take all rows that have just arrived. A few numpy calls handle them together.
        quick = self._empty & full if len(self._ticks) else full & (self.waiting == 0)
        if quick.all():
            ticks, amounts = self._take_everything()
            self.waiting = np.zeros(len(done))
            return done, Flow(ticks, amounts, old, old_born)
        ticks, amounts = self._take_new(quick)
        others = np.flatnonzero(~quick & (done > 0))
        if len(others):
            # An instance that takes everything has no limit here, so that rounding errors leave nothing behind.
            ticks, amounts = self._take_oldest(others, np.where(full[others], np.inf, left[others]), ticks, amounts)
        self.waiting = np.where(full, 0.0, self.waiting - done)
        self._first = int(self._oldest.min())
        return done, Flow(ticks, amounts, old, old_born)

    def _take_everything(self) -> tuple[Owners, Floats]:
        """Take the rows that arrived in this tick from all instances, when these are the only rows."""
        self._oldest.fill(self.now + 1)
        self._first = self.now + 1
        if not len(self._ticks):
            return NO_FLOW.ticks, NO_FLOW.amounts
        if len(self._ticks) == 1:
            place = self._rows[int(self._ticks[0]) % self._kept]
            amounts = np.array([place.sum()])
            place.fill(0.0)
            return self._ticks, amounts
        places = self._ticks % self._kept
        amounts = self._rows[places].sum(axis=1)
        self._rows[places] = 0.0
        return self._ticks, amounts

    def _take_old(self, done: Floats) -> tuple[Floats, float, float]:
        """Take old rows first. Returns what each instance may still take, the old rows taken, and the sum of their ticks of birth."""
        taken = np.minimum(self._old, done)
        births = taken * self._old_born / np.maximum(self._old, 1e-300)
        self._old = self._old - taken
        self._old_born = np.where(self._old > 0, self._old_born - births, 0.0)
        self._has_old = bool(self._old.any())
        return done - taken, float(taken.sum()), float(births.sum())

    def _take_new(self, who: Flags) -> tuple[Owners, Floats]:
        """Take the rows that arrived in this tick from these instances."""
        self._oldest[who] = self.now + 1
        if not len(self._ticks):
            return NO_FLOW.ticks, NO_FLOW.amounts
        places = self._ticks % self._kept
        block = self._rows[places]
        self._rows[places] = block * ~who
        return self._ticks, np.asarray(block @ who.astype(np.float64))

    def _take_oldest(self, who: Owners, able: Floats, ticks_before: Owners, amounts_before: Floats) -> tuple[Owners, Floats]:
        """Take up to ``able`` rows from each of these instances, oldest first, a few ticks per pass.

        The result also contains the amounts that were taken before.
        """
        first = min(int(self._oldest[who].min()), int(ticks_before[0]) if len(ticks_before) else self.now)
        amounts = np.zeros(self.now - first + 1)
        amounts[ticks_before - first] = amounts_before
        while len(who):
            look = min(_LOOK, self.now - int(self._oldest[who].min()) + 1)
            ticks = self._oldest[who] + np.arange(look)[:, None]
            inside = ticks <= self.now
            places = ticks % self._kept
            block = self._rows[places, who] * inside
            before = np.cumsum(block, axis=0) - block
            taken = np.minimum(np.maximum(able - before, 0.0), block)
            rest = block - taken
            # Write back no ticks after now: their places in the ring buffer hold the oldest ticks.
            self._rows[places[inside], np.broadcast_to(who, places.shape)[inside]] = rest[inside]
            amounts += np.bincount((ticks - first)[inside], weights=taken[inside], minlength=len(amounts))
            able = able - taken.sum(axis=0)
            some = rest > 0
            found = some.any(axis=0)
            self._oldest[who] += np.where(found, some.argmax(axis=0), look)
            more = ~found & (self._oldest[who] <= self.now)
            who, able = who[more], able[more]
        some = amounts > 0
        return np.flatnonzero(some) + first, amounts[some]

    def rerouted(self, parts: sparse.csr_array, instances: int) -> None:
        """Move waiting rows to the new owners of their slots. Instance b gets the share ``parts[a, b]`` of the rows of instance a."""
        first = min(int(self._oldest.min()), self.now) if len(self._oldest) else self.now
        places = np.arange(first, self.now + 1) % self._kept
        rows = np.zeros((self._kept, instances))
        rows[places] = (parts.T @ self._rows[places].T).T
        self._rows = rows
        self._old, self._old_born = parts.T @ self._old, parts.T @ self._old_born
        self.waiting = parts.T @ self.waiting
        self._oldest = np.full(instances, first)
        self._first = first
