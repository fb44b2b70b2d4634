"""Moves slots from busy instances to idle ones, for a thousand instances in milliseconds.

Each slot has a weight, the CPU that it costs. The functions map a table of owners to a new one, as in `headrace.state.levelling`, which
assigns slots when the number of instances changes.
"""

from __future__ import annotations

import numpy as np

from headrace.control.observation import Floats, Owners
from headrace.state.levelling import running_totals


def relieved(owners: Owners, weights: Floats, loads: Floats) -> Owners:
    """One sweep of balancing: the most loaded instance gives to the least loaded, the second to the second least, and so on.

    Each giver hands over its heaviest slots that fit into half of the difference. If none fits, it hands over its lightest one, provided
    that this is lighter than the difference. The two loads still come closer.

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
    # Slightly more room, because rounding of sums would otherwise leave the last of equal slots behind.
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
    """For each instance: the instance that it gives to, and half of the difference in load. Takers give to themselves, with no room."""
    ranked = np.argsort(loads, kind="stable")
    half = len(loads) // 2
    takers, givers = ranked[:half], ranked[::-1][:half]
    room = np.zeros(len(loads))
    room[givers] = (loads[givers] - loads[takers]) / 2
    taker_of = np.arange(len(loads))
    taker_of[givers] = takers
    return taker_of, room


def _heaviest_first(owners: Owners, weights: Floats) -> tuple[Owners, Floats]:
    """Slots by owner, the heaviest first; and for each slot the total weight of its owner's slots before it."""
    order = np.lexsort((-weights, owners))
    return order, running_totals(owners[order], weights[order])
