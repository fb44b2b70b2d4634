"""Slots dealt out to instances so that all have about as much work: the arithmetic under a change of routing.

A table of owners says which instance has which slot. Whoever has more than its share gives up the end of what it has, in order of slots;
that, and all slots of instances that go, is dealt out in order of slots too, to the least loaded. So neighbours mostly stay together,
which keeps the ranges of a routing, and the pieces that state is fetched in, few; and nobody moves what may stay.

Slots have a weight, the work they are. Everything is linear in the number of slots but for a sort, whatever the number of instances.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from headrace.state.slots import SlotRange, SlotRanges

Owners = npt.NDArray[np.int64]
"""Slot to instance."""
Weights = npt.NDArray[np.float64]
"""How much work each slot is, in any unit; its sum is all the work."""

IDLE_SHARE = 1e-9
"""What an idle slot counts for, as a share of all work."""


def with_idle(weights: Weights) -> Weights:
    """The same work, with a trifle for idle slots, so that they are dealt out evenly too; no work at all is the same for every slot."""
    total = weights.sum()
    return weights + total * IDLE_SHARE if total > 0 else np.ones(len(weights))


def levelled(owners: Owners, weights: Weights, instances: int) -> Owners:
    """Owners for another number of instances, all about equally loaded, with few slots moved and neighbours together.

    Nobody ends up above its share by more than one slot.

    >>> after = levelled(np.arange(12) // 4, np.ones(12), 4)
    >>> after.tolist()
    [0, 0, 0, 3, 1, 1, 1, 3, 2, 2, 2, 3]
    >>> levelled(after, np.ones(12), 2).tolist()
    [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0]
    """
    weights = with_idle(weights)
    share = float(weights.sum()) / instances
    after = np.where(owners < instances, owners, -1)
    after[_given_up(after, weights, share)] = -1
    orphans = np.flatnonzero(after < 0)
    kept = after >= 0
    loads = np.bincount(after[kept], weights=weights[kept], minlength=instances).astype(np.float64)
    after[orphans] = _dealt_out(orphans, weights[orphans], loads, share)
    return after


def _given_up(owners: Owners, weights: Weights, share: float) -> Owners:
    """The slots that exceed their owners' shares. One that crosses the share stays if more than half of it lies before.

    The first slot of an owner always stays: elsewhere it would be as much too heavy.
    """
    order = np.argsort(owners, kind="stable")
    order = order[np.searchsorted(owners[order], 0) :]
    before = running(owners[order], weights[order])
    # One part in 10^9 more, or the rounding of sums would decide which of equal slots goes.
    return order[(before + weights[order] / 2 > share * (1 + 1e-9)) & (before > 0)]


def _dealt_out(slots: Owners, weights: Weights, loads: Weights, share: float) -> Owners:
    """Who takes each of these slots: neighbours one owner, as long as it has less than its share; then the least loaded."""
    heap = [(load, instance) for instance, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    follows = (np.diff(slots, prepend=-2) == 1).tolist()
    takers: list[int] = []
    load, instance = heapq.heappop(heap)
    for weight, neighbour in zip(weights.tolist(), follows, strict=True):
        if not neighbour or load + weight / 2 > share:
            load, instance = heapq.heappushpop(heap, (load, instance))
        takers.append(instance)
        load += weight
    return np.array(takers, dtype=np.int64)


def running(groups: Owners, weights: Weights) -> Weights:
    """For entries sorted by group: what the earlier entries of their group weigh.

    >>> running(np.array([0, 0, 0, 2, 2]), np.array([5.0, 3.0, 1.0, 4.0, 4.0])).tolist()
    [0.0, 5.0, 8.0, 0.0, 4.0]
    """
    if not len(groups):
        return np.zeros(0)
    until = np.cumsum(weights) - weights
    first = np.r_[True, groups[1:] != groups[:-1]]
    # Sums of floating point numbers lose what is tiny against them; the first of each group must be 0 all the same.
    return np.where(first, 0.0, until - until[np.maximum.accumulate(np.where(first, np.arange(len(groups)), 0))])


def ranges_by_owner(owners: Owners, instances: int, slots: Owners | None = None) -> tuple[SlotRanges, ...]:
    """Each instance's slots as ranges, neighbours joined; of all slots, or of these, which ascend.

    >>> ranges_by_owner(np.array([0, 0, 2, 0]), 3)
    (((0, 2), (3, 4)), (), ((2, 3),))
    >>> ranges_by_owner(np.array([0, 0, 2, 0]), 3, np.array([1, 2]))
    (((1, 2),), (), ((2, 3),))
    """
    found: list[list[SlotRange]] = [[] for _ in range(instances)]
    slots = np.arange(len(owners)) if slots is None else slots
    if not len(slots):
        return tuple(() for _ in found)
    takers = owners[slots]
    cuts = np.flatnonzero((np.diff(slots) != 1) | (np.diff(takers) != 0)) + 1
    starts, ends = np.r_[0, cuts], np.r_[cuts, len(slots)]
    for taker, lo, hi in zip(takers[starts].tolist(), slots[starts].tolist(), (slots[ends - 1] + 1).tolist(), strict=True):
        found[taker].append((lo, hi))
    return tuple(map(tuple, found))
