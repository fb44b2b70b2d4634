"""Which instance gets which slots: the arithmetic that several policies share, for a thousand instances in milliseconds.

Slots have a weight, the CPU they cost. Everything here takes a table of owners and gives back another one.
"""

from __future__ import annotations

import heapq

import numpy as np

from headrace.control.observation import Floats, Owners, loads_of


def levelled(owners: Owners, weights: Floats, instances: int) -> Owners:
    """Owners for another number of instances, all about equally loaded, with few slots moved.

    Who stays gives up what exceeds its share, its lightest slots first. These, and all slots of those who go, are dealt out, the
    heaviest first, each to the least loaded; slots without work evenly too.

    >>> from headrace.ids import SLOTS
    >>> after = levelled(np.arange(SLOTS) % 4, np.ones(SLOTS), 3)
    >>> np.bincount(after).tolist(), int((after != np.arange(SLOTS) % 4).sum())
    ([1366, 1365, 1365], 1024)
    """
    weights = with_idle(weights)
    share = weights.sum() / instances
    order, before = _heaviest_first(owners, weights)
    # A slot stays with its owner if more than half of it lies within the share. Half of a slot heavier than two shares does not, but
    # the first of an instance stays all the same: elsewhere it would be as much too heavy.
    stays = (before + weights[order] / 2 <= share) | (before == 0)
    stays &= owners[order] < instances
    kept, orphans = order[stays], order[~stays]
    loads = loads_of(owners[kept], weights[kept], instances)
    after = owners.copy()
    after[orphans] = _deal_out(weights[orphans], loads)
    return after


def relieved(owners: Owners, weights: Floats, loads: Floats) -> Owners:
    """One sweep of balancing: the most loaded gives to the least loaded, the second to the second least, and so on.

    Each giver hands over its heaviest slots that fit into half of the difference. Where none does, it hands over its lightest one, if that
    is lighter than the difference: the pair comes closer all the same.

    >>> from headrace.ids import SLOTS
    >>> after = relieved(np.zeros(SLOTS, dtype=np.int64), np.full(SLOTS, 1 / SLOTS), np.array([1.0, 0.0]))
    >>> np.bincount(after).tolist()
    [2048, 2048]
    """
    taker_of, room = _pairs(loads)
    working = np.flatnonzero((weights > 0) & (weights < 2 * room[owners]))
    order, before = _heaviest_first(owners[working], np.where(weights[working] <= room[owners[working]], weights[working], 0.0))
    slots = working[order]
    small = weights[slots] <= room[owners[slots]]
    # One part in 10^9 more room, or the rounding of sums would leave the last of equal slots behind.
    going = slots[small & (before + weights[slots] <= room[owners[slots]] * (1 + 1e-9))]
    stuck = np.setdiff1d(owners[slots], owners[going])
    large = slots[np.isin(owners[slots], stuck)]
    lightest = large[np.lexsort((weights[large], owners[large]))]
    lightest = lightest[np.r_[True, np.diff(owners[lightest]) != 0]] if len(lightest) else lightest
    after = owners.copy()
    for those in (going, lightest):
        after[those] = taker_of[owners[those]]
    return after


def _pairs(loads: Floats) -> tuple[Owners, Floats]:
    """For each instance whom it gives to, and half of the difference; takers give nothing to themselves."""
    ranked = np.argsort(loads, kind="stable")
    half = len(loads) // 2
    takers, givers = ranked[:half], ranked[::-1][:half]
    room = np.zeros(len(loads))
    room[givers] = (loads[givers] - loads[takers]) / 2
    taker_of = np.arange(len(loads))
    taker_of[givers] = takers
    return taker_of, room


def with_idle(weights: Floats) -> Floats:
    """The same work, with a trifle for idle slots, so that they are dealt out evenly too."""
    total = weights.sum()
    return weights + total * 1e-9 if total > 0 else np.ones(len(weights))


def _heaviest_first(owners: Owners, weights: Floats) -> tuple[Owners, Floats]:
    """Slots by owner, the heaviest first; and for each the weight of those of its owner before it."""
    order = np.lexsort((-weights, owners))
    return order, running(owners[order], weights[order])


def running(groups: Owners, weights: Floats) -> Floats:
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


def _deal_out(weights: Floats, loads: Floats) -> Owners:
    """Who takes each orphan: the heaviest first, to the least loaded, ties to the lowest number."""
    heap = [(load, instance) for instance, load in enumerate(loads.tolist())]
    heapq.heapify(heap)
    by_weight = np.argsort(-weights, kind="stable")
    dealt = []
    for weight in weights[by_weight].tolist():
        load, instance = heap[0]
        dealt.append(instance)
        heapq.heapreplace(heap, (load + weight, instance))
    takers = np.empty(len(weights), dtype=np.int64)
    takers[by_weight] = dealt
    return takers
