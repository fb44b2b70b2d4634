"""Parallel recovery (SEEP 4.2): the slots of a lost instance are split over several executors at once, and joined again later.

Each survivor has work of its own. So a lost instance is split only if that lets the batch end earlier than with one heir:

    3 executors, 1 core, 1 instance each; one is lost    heir: 2 and 1 units of work    split in two: 1.5 and 1.5
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.ids import InstanceId
from headrace.state.levelling import Weights
from headrace.state.routing import Routing
from headrace.state.slots import SlotRanges

GAIN_MIN = 0.1
"""Another part must make the slowest executor this much faster: each part is one more task, with its own run files."""


@dataclass(frozen=True)
class Load:
    """The work of one executor in a batch, in units of an average instance."""

    parts: tuple[float, ...] = ()
    """The work of each of its instances."""
    cores: int = 1

    @property
    def time(self) -> float:
        """How long it takes: instances run side by side, as many as there are cores."""
        return max(max(self.parts, default=0.0), sum(self.parts) / max(1, self.cores))

    def plus(self, work: float) -> Load:
        return replace(self, parts=(*self.parts, work))


def heirs(loads: Mapping[str, Load], candidates: Sequence[str], parts_max: int, work: float = 1.0) -> tuple[str, ...]:
    """The executors that take equal parts of a lost instance; one if splitting it does not pay. Empty without candidates.

    >>> one = Load((1.0,))
    >>> heirs({"1": one, "2": one}, ["1", "2"], 4)
    ('1', '2')

    An executor with nothing to do takes it alone, and so does one with free cores:

    >>> heirs({"1": one, "2": one, "3": Load()}, ["1", "2", "3"], 4)
    ('3',)
    >>> heirs({"1": Load((1.0,), 2), "2": Load((1.0,), 2)}, ["1", "2"], 4)
    ('1',)
    """
    best: tuple[str, ...] = ()
    best_time = float("inf")
    for parts in range(1, min(parts_max, len(candidates)) + 1):
        now, chosen = dict(loads), []
        for _ in range(parts):
            free = [each for each in candidates if each not in chosen]
            chosen.append(min(free, key=lambda each: now.get(each, Load()).plus(work / parts).time))
            now[chosen[-1]] = now.get(chosen[-1], Load()).plus(work / parts)
        time = max(each.time for each in now.values())
        if time < best_time * (1 - GAIN_MIN) or not best:
            best, best_time = tuple(chosen), time
    return best


def split(routing: Routing, instance: InstanceId, parts: int, weights: Weights | None = None) -> Routing:
    """The routing in which an instance keeps the first part of its slots, and new instances behind the others get the rest.

    ``weights`` is the work of each slot, which the parts share evenly; without it all slots count alike. Slots are not cut further.

    >>> split(Routing.even(2), 0, 2).ranges
    (((0, 1024),), ((2048, 4096),), ((1024, 2048),))
    >>> split(Routing.even(2), 0, 2).epoch
    1
    """
    units = routing.units
    mine = np.flatnonzero(routing.owners == instance)
    parts = min(parts, len(mine))
    if parts < 2:
        return routing
    work = units.widths[mine] if weights is None else (weights[units.slots] * units.widths)[mine]
    # Slots without work count a little, so that no part is empty.
    work = work + max(float(work.sum()), 1.0) / len(mine) / 1000
    middles = np.cumsum(work) - work / 2
    edges = np.unique(np.searchsorted(middles, work.sum() * np.arange(1, parts) / parts))
    shares: list[SlotRanges] = [tuple(units.ranges(each)) for each in np.split(mine, edges) if len(each)]
    ranges = list(routing.ranges)
    ranges[instance] = shares[0]
    return Routing((*ranges, *shares[1:]), routing.next_epoch)


def joined(now: Routing, before: Routing) -> Routing:
    """The routing as it was before splits, as a further change.

    >>> after = joined(split(Routing.even(2), 0, 2), Routing.even(2))
    >>> after.ranges == Routing.even(2).ranges, after.epoch
    (True, 2)
    """
    return Routing(before.ranges, now.next_epoch)
