"""The routing state: which instance owns which slots (SEEP's rho), and how it changes.

A change takes as few slots from their owners as it can. Growing from n to n + 1 instances takes 1/(n + 1) of the slots, evenly from all;
shrinking hands out those of the instances that go. What stays with its owner need not be fetched by anybody.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import require
from headrace.ids import SLOTS
from headrace.state.recreation import Part, Recreation, sides
from headrace.state.slots import SlotRange, SlotRanges, even_ranges, ranges_of

Weights = npt.NDArray[np.float64]
"""How much work each slot was, in any unit; its sum is all the work."""

IDLE_SHARE = 1e-9
"""What an idle slot counts for, as a share of all work."""


@dataclass(frozen=True)
class Routing:
    """Every slot's owner. Owners are the instances 0, 1, ... of one operator."""

    ranges: tuple[SlotRanges, ...]
    """Per instance, in order of slots, neighbours joined."""
    epoch: int = 0
    """Grows with every change; a version says by which epoch its rows were routed."""
    recreations: tuple[Recreation, ...] = ()
    """Slots whose windows are being recreated by their new owner, while the old one still closes its own."""
    spread: SlotRanges = ()
    """Slots whose rows are dealt out over all instances, whoever owns them: each keeps what it got as a partial of the slot's state, and
    the owner merges. For slots with more work than one instance can do, where state is merged anyway."""

    def __post_init__(self) -> None:
        owned = sorted(r for each in self.ranges for r in each)
        edges = [0, *itertools.chain.from_iterable(owned), SLOTS]
        whole = all(lo < hi for lo, hi in owned) and all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))
        require(whole, f"every slot has one owner, unlike in {self.ranges}")

    @classmethod
    def even(cls, instances: int) -> Routing:
        """Contiguous ranges of as equal a size as can be.

        >>> Routing.even(3).ranges
        (((0, 1365),), ((1365, 2730),), ((2730, 4096),))
        """
        return cls(even_ranges(instances))

    @property
    def instances(self) -> int:
        return len(self.ranges)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What each task does: the instances', then, for each recreation, the old owner's side and the new one's."""
        if not self.recreations:
            return tuple(Part(ranges, spread=self.spread) for ranges in self.ranges)
        owners = self.table()
        for recreation in self.recreations:
            for lo, hi in recreation.slots:
                owners[lo:hi] = -1
        alone = [Part(ranges_of(np.flatnonzero(owners == instance))) for instance in range(self.instances)]
        return (*alone, *(side for recreation in self.recreations for side in sides(recreation)))

    def targets(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Per slot: the task that gets its rows; another one that gets them too, or -1; and before which sub-key it does."""
        first, also = self.table(), np.full(SLOTS, -1)
        until = np.zeros(SLOTS, dtype=np.int64)
        for at, recreation in enumerate(self.recreations):
            for lo, hi in recreation.slots:
                also[lo:hi] = self.instances + 2 * at
                first[lo:hi] = self.instances + 2 * at + 1
                until[lo:hi] = recreation.end_us
        return first, also, until

    def recreating(self, before: Routing, seen_us: int, window: tuple[int, int, int]) -> Routing:
        """The same, with the windows of the slots that were others' before recreated by their owners, after rows up to ``seen_us``."""
        old, new = before.table(), self.table()
        pairs = sorted({(int(a), int(b)) for a, b in zip(old, new, strict=True) if a != b})
        slots = {pair: ranges_of(np.flatnonzero((old == pair[0]) & (new == pair[1]))) for pair in pairs}
        begun = tuple(Recreation.begun(slots[pair], *pair, self.epoch, seen_us, window) for pair in pairs)
        return replace(self, recreations=begun)

    def without(self, over: Collection[Recreation]) -> Routing:
        """The same when recreations are over, or broken off."""
        left = tuple(each for each in self.recreations if each not in over)
        return self if left == self.recreations else replace(self, recreations=left, epoch=self.epoch + 1)

    def spreading(self, slots: Iterable[int]) -> Routing:
        """The same, with the rows of just these slots dealt out over all instances.

        >>> Routing.even(2).spreading([7, 8, 100]).spread
        ((7, 9), (100, 101))
        """
        spread = ranges_of(sorted(slots))
        return self if spread == self.spread else replace(self, spread=spread, epoch=self.epoch + 1)

    def table(self) -> npt.NDArray[np.int64]:
        """Slot to instance."""
        owners = np.zeros(SLOTS, dtype=np.int64)
        for instance, ranges in enumerate(self.ranges):
            for lo, hi in ranges:
                owners[lo:hi] = instance
        return owners

    def rescaled(self, instances: int, weights: Weights | None = None) -> Routing:
        """For another number of instances, each with an even share of the slots, or of the work where weights are given.

        >>> after = Routing.even(3).rescaled(4)
        >>> after.ranges
        (((0, 1024),), ((1365, 2389),), ((2730, 3754),), ((1024, 1365), (2389, 2730), (3754, 4096)))
        >>> after.rescaled(3).moved_from(after)
        1024
        """
        require(1 <= instances <= SLOTS, f"an operator has 1 to {SLOTS} instances, not {instances}")
        work = with_idle(np.ones(SLOTS) if weights is None else weights)
        return self._with(_levelled(self.table(), instances, work), instances)

    def moved(self, slots: Iterable[SlotRange], to: int) -> Routing:
        """The same, with these slots given to an instance.

        >>> Routing.even(2).moved([(0, 10)], to=1).ranges
        (((10, 2048),), ((0, 10), (2048, 4096)))
        """
        require(0 <= to < self.instances, f"there are instances 0 to {self.instances - 1}, not {to}")
        owners = self.table()
        for lo, hi in slots:
            require(0 <= lo < hi <= SLOTS, f"a range of slots is not empty and lies in [0, {SLOTS}), not [{lo}, {hi})")
            owners[lo:hi] = to
        return self._with(owners, self.instances)

    def moved_from(self, before: Routing) -> int:
        """How many slots have another owner than before."""
        return int((self.table() != before.table()).sum())

    def loads(self, weights: Weights) -> list[float]:
        """Each instance's part of the work."""
        return [float(load) for load in np.bincount(self.table(), weights=weights, minlength=self.instances)]

    def to_json(self) -> dict[str, Any]:
        recreations = [each.to_json() for each in self.recreations]
        return {"epoch": self.epoch, "ranges": self.ranges, "recreations": recreations, "spread": self.spread}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Routing:
        recreations = tuple(Recreation.from_json(each) for each in body["recreations"])
        spread = tuple((lo, hi) for lo, hi in body["spread"])
        return cls(tuple(tuple((lo, hi) for lo, hi in each) for each in body["ranges"]), body["epoch"], recreations, spread)

    def _with(self, owners: npt.NDArray[np.int64], instances: int) -> Routing:
        ranges = tuple(ranges_of(np.flatnonzero(owners == instance)) for instance in range(instances))
        return self if ranges == self.ranges else Routing(ranges, self.epoch + 1, spread=self.spread if instances > 1 else ())


def with_idle(weights: Weights) -> Weights:
    """The same work, with a trifle for idle slots, so that they are dealt out evenly too; no work at all is the same for every slot."""
    return weights + weights.sum() * IDLE_SHARE if weights.any() else np.ones(len(weights))


def _levelled(owners: npt.NDArray[np.int64], instances: int, weights: Weights) -> npt.NDArray[np.int64]:
    """Who owns what when everybody has about as much: whoever has too much gives up the end of what it has, in order of slots."""
    owners = np.where(owners < instances, owners, -1)
    share = weights.sum() / instances
    for instance in range(instances):
        mine = np.flatnonzero(owners == instance)
        kept = np.cumsum(weights[mine])
        # The slot that crosses the share stays if more than half of it lies before; a single heavy slot always has an owner.
        owners[mine[kept - weights[mine] / 2 > share]] = -1
    loads = np.bincount(owners[owners >= 0], weights=weights[owners >= 0], minlength=instances).astype(np.float64)
    for pool in ranges_of(np.flatnonzero(owners < 0)):
        _deal_out(owners, range(*pool), loads, weights, share)
    return owners


def _deal_out(owners: npt.NDArray[np.int64], pool: Sequence[int], loads: npt.NDArray[np.float64], weights: Weights, share: float) -> None:
    """Give neighbouring slots to the least loaded, one owner as long as it has less than its share."""
    to = int(np.argmin(loads))
    for slot in pool:
        if loads[to] + weights[slot] / 2 > share:
            to = int(np.argmin(loads))
        owners[slot] = to
        loads[to] += weights[slot]
