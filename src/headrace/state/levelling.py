"""Levelling: assigns slots to instances so that all have about the same work. Changes of routing are computed with it.

A table of owners has the instance of each slot. An instance with more than its even share gives up its last slots. These, and all slots of
instances that are removed, are assigned in order of slots to the least loaded instances. So neighbouring slots mostly stay together, a
routing has few ranges, and state is fetched in few pieces. No slot moves without need.

The weight of a slot is its work. Apart from a sort, the time is linear in the number of slots.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from headrace.state.slots import SlotRange, SlotRanges

Owners = npt.NDArray[np.int64]
"""The instance that owns each slot."""
Weights = npt.NDArray[np.float64]
"""The work of each slot, in any unit."""

IDLE_SHARE = 1e-9
"""The work that is assumed for an idle slot, as a share of all work."""


def with_idle(weights: Weights) -> Weights:
    """The weights plus a tiny amount, so that idle slots are assigned evenly too. If there is no work, all slots weigh the same."""
    total = weights.sum()
    return weights + total * IDLE_SHARE if total > 0 else np.ones(len(weights))


def levelled_owners(owners: Owners, weights: Weights, instances: int) -> Owners:
    """Owners for this number of instances, all with about the same work. Few slots move, and neighbours stay together.

    No instance gets more than its even share by more than one slot.

    >>> after = levelled_owners(np.arange(12) // 4, np.ones(12), 4)
    >>> after.tolist()
    [0, 0, 0, 3, 1, 1, 1, 3, 2, 2, 2, 3]
    >>> levelled_owners(after, np.ones(12), 2).tolist()
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
    """The slots that are beyond the even share of their owners. A slot that crosses the share stays if more than half of it is within.

    The first slot of an owner always stays, since it would be as heavy for any other owner.
    """
    order = np.argsort(owners, kind="stable")
    order = order[np.searchsorted(owners[order], 0) :]
    before = running_totals(owners[order], weights[order])
    # The share is raised by one part in 10^9. Otherwise rounding errors would decide which of equal slots is given up.
    return order[(before + weights[order] / 2 > share * (1 + 1e-9)) & (before > 0)]


def _dealt_out(slots: Owners, weights: Weights, loads: Weights, share: float) -> Owners:
    """The new owner of each of these slots. Neighbours go to one owner until it has its share, and then to the least loaded one."""
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


def running_totals(groups: Owners, weights: Weights) -> Weights:
    """For entries sorted by group: the total weight of the earlier entries of the same group.

    >>> running_totals(np.array([0, 0, 0, 2, 2]), np.array([5.0, 3.0, 1.0, 4.0, 4.0])).tolist()
    [0.0, 5.0, 8.0, 0.0, 4.0]
    """
    if not len(groups):
        return np.zeros(0)
    until = np.cumsum(weights) - weights
    first = np.r_[True, groups[1:] != groups[:-1]]
    # Differences of large sums are not exact, but the first entry of each group must be exactly 0.
    return np.where(first, 0.0, until - until[np.maximum.accumulate(np.where(first, np.arange(len(groups)), 0))])


def ranges_by_owner(owners: Owners, instances: int, slots: Owners | None = None) -> tuple[SlotRanges, ...]:
    """The slots of each instance as ranges, neighbours joined. ``slots``, ascending, restricts the result to these slots.

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
