"""Hot slots: slots with more work than an instance's even share. Assigning whole slots cannot level such a load.

Where state can be merged, the rows of a hot slot are spread over all instances, even if they all have one key. The slot's owner merges
their partials when a window closes. In Flink and Kafka Streams the user would rewrite the query for that, with a salted key and a second
aggregate.

Elsewhere the slot is cut: around its heavy keys, each of which can then have an owner of its own, and into even pieces if the slot is
just large. A single key is never cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from headrace.ids import POSITION_STEP, KeyHash, Slot, position_of
from headrace.state.levelling import Weights
from headrace.state.routing import WHOLE, Routing
from headrace.state.units import Units

HOT_SHARE = 1.0
"""A slot is hot if its work is more than this share of an instance's even share."""
HEAVY_SHARE = 0.25
"""A key of a hot slot is cut out if its work is more than this share of an instance's even share."""

KeyRows = Mapping[KeyHash, float]
"""Work by key hash, for the heaviest keys of busy slots."""


def levelled_routing(
    before: Routing, instances: int, work: Weights | None, *, spreads: bool, keys: KeyRows | None = None, moves_freely: bool = False
) -> Routing:
    """A routing for this many instances with even work. Hot slots are spread if ``spreads``, and cut otherwise.

    >>> work = np.ones(4096)
    >>> work[77] = 9000.0
    >>> after = levelled_routing(Routing.even(2), 4, work, spreads=True)
    >>> after.spread, max(after.loads(np.where(work > 1, 0, work)))
    (((77, 78),), 1024.0)
    >>> levelled_routing(after, 4, np.ones(4096), spreads=True).spread
    ()

    ``moves_freely`` says that moving a slot costs nothing, so that each instance can get neighbouring slots.
    """
    deal = Routing.side_by_side if moves_freely else Routing.rescaled
    if work is None:
        return deal(before, instances)
    share = work.sum() / instances
    hot = (work > HOT_SHARE * share) & (instances > 1)
    if spreads:
        after = deal(before, instances, np.where(hot, 0.0, work))
        return after.spreading(Slot(int(slot)) for slot in np.flatnonzero(hot))
    units = _cut(np.flatnonzero(hot), work, share, keys or {})
    return deal(before, instances, unit_work(units, work, keys or {}), units)


def unit_work(units: Units, work: Weights, keys: KeyRows) -> Weights:
    """The work of each unit. A key with a unit of its own keeps its work; the other units of a slot share the rest by width.

    >>> units = Units.cut_at([7.5, 7.5 + POSITION_STEP])
    >>> work = np.where(np.arange(4096) == 7, 10.0, 1.0)
    >>> [round(float(each), 3) for each in unit_work(units, work, {15 << 51: 8.0})[6:11]]
    [1.0, 1.0, 8.0, 1.0, 1.0]
    """
    if not units.cuts:
        return work
    alone = np.zeros(len(units))
    for h, rows in keys.items():
        at = int(units.of_hashes(np.array([h], dtype=np.uint64))[0])
        if units.widths[at] == POSITION_STEP:
            alone[at] += rows
    left = np.maximum(0.0, work - np.bincount(units.slots, weights=alone, minlength=len(WHOLE)))
    return np.where(alone > 0, alone, left[units.slots] * units.widths)


def _cut(hot: np.ndarray[tuple[int], np.dtype[np.int64]], work: Weights, share: float, keys: KeyRows) -> Units:
    cuts: list[float] = []
    for slot in (int(each) for each in hot):
        heavy = {h: rows for h, rows in keys.items() if int(position_of(h)) == slot and rows > HEAVY_SHARE * share}
        rest = work[slot] - sum(heavy.values())
        if len(heavy) == 1 and rest < HEAVY_SHARE * share:
            continue  # One key is the slot: nothing is left to cut.
        for h in heavy:
            cuts += [position_of(h), position_of(h) + POSITION_STEP]
        pieces = math.ceil(rest / share * 2) if rest > share else 1
        cuts += [slot + at / pieces for at in range(1, pieces)]
    return Units.cut_at(cuts)
