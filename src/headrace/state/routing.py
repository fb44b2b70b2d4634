"""The routing of an operator: which instance owns which slots (SEEP's routing state rho), and how it changes.

A change moves as few slots as possible. Growing from n to n + 1 instances moves 1/(n + 1) of the slots, the same share of every instance.
Shrinking moves only the slots of the instances that are removed. State of slots that keep their owner need not be fetched.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import require
from headrace.ids import FIRST_EPOCH, SLOTS, InstanceId, RoutingEpoch, Slot
from headrace.state.levelling import Weights, levelled_owners, with_idle
from headrace.state.recreation import Part, Recreation, sides
from headrace.state.slots import SlotRange, SlotRanges, even_ranges, ranges_of
from headrace.state.units import Units

WHOLE = Units()
"""No slot is cut."""


@dataclass(frozen=True)
class Routing:
    """The owner of every slot of one operator; ``query.routing()`` returns it. Owners are the instances 0, 1, ..."""

    ranges: tuple[SlotRanges, ...]
    """For each instance, the slot ranges that it owns, in order. Adjacent ranges are joined."""
    epoch: RoutingEpoch = FIRST_EPOCH
    """Grows with every change. A manifest names the epoch by which the rows of its version were routed."""
    recreations: tuple[Recreation, ...] = ()
    """Slots whose windows the new owner is recreating, while the old owner still closes earlier windows."""
    spread: SlotRanges = ()
    """Hot slots whose rows are distributed over all instances. Each instance keeps a partial state, and the owner merges them."""

    def __post_init__(self) -> None:
        owned = sorted(r for each in self.ranges for r in each)
        edges = [0, *itertools.chain.from_iterable(owned), SLOTS]
        whole = all(lo < hi for lo, hi in owned) and all(a == b for a, b in zip(edges[::2], edges[1::2], strict=True))
        require(whole, f"every slot has one owner, unlike in {self.ranges}")
        _check_apart("spread slots", self.spread)
        _check_apart("recreated slots", [each for recreation in self.recreations for each in recreation.slots])
        for each in self.recreations:
            sound = 0 <= each.new < self.instances and each.old >= 0 and 0 < each.generation <= self.epoch
            require(sound and each.last_us < min(each.switch_us, each.end_us), f"a recreation has owners and windows, unlike {each}")

    @classmethod
    def even(cls, instances: int) -> Routing:
        """A routing with one contiguous range per instance, all of about the same size.

        >>> Routing.even(3).ranges
        (((0, 1365),), ((1365, 2730),), ((2730, 4096),))
        """
        return cls(even_ranges(instances))

    @property
    def next_epoch(self) -> RoutingEpoch:
        """The epoch of the routing that replaces this one."""
        return RoutingEpoch(self.epoch + 1)

    @property
    def instances(self) -> int:
        """The number of instances."""
        return len(self.ranges)

    @cached_property
    def units(self) -> Units:
        """The units that have an owner: slots, and pieces of slots that are cut."""
        return Units.cut_at(edge for ranges in self.ranges for each in ranges for edge in each)

    @cached_property
    def owners(self) -> npt.NDArray[np.int64]:
        """The instance that owns each unit."""
        owners = np.zeros(len(self.units), dtype=np.int64)
        for instance, ranges in enumerate(self.ranges):
            for lo, hi in ranges:
                owners[self.units.between(lo, hi)] = instance
        owners.flags.writeable = False
        return owners

    def owners_of(self, units: Units) -> npt.NDArray[np.int64]:
        """The owner of each of these other units: the instance that owns the beginning of the unit."""
        if units == self.units:
            return self.owners.copy()
        within: npt.NDArray[np.int64] = self.owners[np.searchsorted(self.units.edges, units.edges[:-1], "right") - 1]
        return within

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The work of each task: one per instance, then two per recreation, for the old and the new owner's side."""
        if not self.recreations:
            return tuple(Part(ranges, spread=self.spread) for ranges in self.ranges)
        units = self._cut_for_all()
        owners = self.owners_of(units)
        for recreation in self.recreations:
            for lo, hi in recreation.slots:
                owners[units.between(lo, hi)] = -1
        alone = [Part(units.ranges(np.flatnonzero(owners == instance))) for instance in range(self.instances)]
        return (*alone, *(side for recreation in self.recreations for side in sides(recreation)))

    def targets(self) -> Targets:
        """The tables by which rows are sent to tasks."""
        units = self._cut_for_all()
        first, also = self.owners_of(units), np.full(len(units), -1)
        until = np.zeros(len(units), dtype=np.int64)
        for at, recreation in enumerate(self.recreations):
            for lo, hi in recreation.slots:
                mine = units.between(lo, hi)
                also[mine] = self.instances + 2 * at
                first[mine] = self.instances + 2 * at + 1
                until[mine] = recreation.end_us
        return Targets(units, first, also, until)

    def _cut_for_all(self) -> Units:
        """Units that are cut wherever the slots of an owner or of a recreation begin or end."""
        return Units.cut_at([*self.units.cuts, *(edge for r in self.recreations for each in r.slots for edge in each)])

    def recreating(self, before: Routing, seen_us: int, window: tuple[int, int, int]) -> Routing:
        """The same routing with a window recreation for every slot whose owner differs from ``before``.

        ``seen_us`` is the newest event time so far, and ``window`` is size, advance and offset of the windows.
        """
        units = self._with_cuts_of(before)
        old, new = before.owners_of(units), self.owners_of(units)
        pairs = sorted({(InstanceId(int(a)), InstanceId(int(b))) for a, b in zip(old, new, strict=True) if a != b})
        slots = {pair: units.ranges(np.flatnonzero((old == pair[0]) & (new == pair[1]))) for pair in pairs}
        begun = tuple(Recreation.begun(slots[pair], *pair, self.epoch, seen_us, window) for pair in pairs)
        return replace(self, recreations=begun)

    def without(self, over: Collection[Recreation]) -> Routing:
        """The same routing without these recreations, which are over or were broken off."""
        left = tuple(each for each in self.recreations if each not in over)
        return self if left == self.recreations else replace(self, recreations=left, epoch=self.next_epoch)

    def spreading(self, slots: Iterable[Slot]) -> Routing:
        """The same routing, with the rows of these slots, and of no others, spread over all instances.

        >>> Routing.even(2).spreading([7, 8, 100]).spread
        ((7, 9), (100, 101))
        """
        spread = ranges_of(sorted(slots))
        return self if spread == self.spread else replace(self, spread=spread, epoch=self.next_epoch)

    def table(self) -> npt.NDArray[np.int64]:
        """The owner of each slot. If a slot is cut, it is the owner of its first piece."""
        return self.owners_of(Units())

    def rescaled(self, instances: int, weights: Weights | None = None, units: Units = WHOLE) -> Routing:
        """A routing for another number of instances, with an even share of the work for each, and few slots moved.

        ``weights`` is the work of each unit; without it, all slots count alike.

        >>> after = Routing.even(3).rescaled(4)
        >>> after.ranges
        (((0, 1024),), ((1365, 2389),), ((2730, 3754),), ((1024, 1365), (2389, 2730), (3754, 4096)))
        >>> after.rescaled(3).moved_from(after)
        1024
        """
        require(1 <= instances <= SLOTS, f"an operator has 1 to {SLOTS} instances, not {instances}")
        work = units.widths if weights is None else weights
        return self._with(units, levelled_owners(self.owners_of(units), work, instances), instances)

    def side_by_side(self, instances: int, weights: Weights | None = None, units: Units = WHOLE) -> Routing:
        """Like ``rescaled``, but each instance gets one contiguous range. For queries in which moving a slot costs nothing.

        >>> Routing.even(3).side_by_side(2, np.arange(SLOTS, dtype=np.float64)).ranges
        (((0, 2896),), ((2896, 4096),))
        """
        require(1 <= instances <= SLOTS, f"an operator has 1 to {SLOTS} instances, not {instances}")
        work = with_idle(units.widths if weights is None else weights)
        middles = np.cumsum(work) - work / 2
        owners = np.minimum(middles * instances / work.sum(), instances - 1).astype(np.int64)
        return self._with(units, owners, instances)

    def moved(self, slots: Iterable[SlotRange], to: InstanceId) -> Routing:
        """The same routing, with these slots owned by instance ``to``. A range that ends inside a slot cuts the slot.

        >>> Routing.even(2).moved([(0, 10)], to=1).ranges
        (((10, 2048),), ((0, 10), (2048, 4096)))
        >>> Routing.even(2).moved([(7.25, 7.5)], to=1).ranges
        (((0, 7.25), (7.5, 2048)), ((7.25, 7.5), (2048, 4096)))
        """
        require(0 <= to < self.instances, f"there are instances 0 to {self.instances - 1}, not {to}")
        slots = list(slots)
        units = Units.cut_at([*self.units.cuts, *(edge for each in slots for edge in each)])
        owners = self.owners_of(units)
        for lo, hi in slots:
            require(0 <= lo < hi <= SLOTS, f"a range of slots is not empty and lies in [0, {SLOTS}), not [{lo}, {hi})")
            owners[units.between(lo, hi)] = to
        return self._with(units, owners, self.instances)

    def moved_from(self, before: Routing) -> int:
        """How many slots have another owner than before. Pieces of slots are added up, and the sum is rounded up."""
        units = self._with_cuts_of(before)
        return math.ceil(float(units.widths[self.owners_of(units) != before.owners_of(units)].sum()))

    def loads(self, weights: Weights) -> list[float]:
        """The work of each instance; ``weights`` is the work of each slot."""
        work = weights[self.units.slots] * self.units.widths
        return [float(load) for load in np.bincount(self.owners, weights=work, minlength=self.instances)]

    def to_json(self) -> dict[str, Any]:
        recreations = [each.to_json() for each in self.recreations]
        return {"epoch": self.epoch, "ranges": self.ranges, "recreations": recreations, "spread": self.spread}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Routing:
        recreations = tuple(Recreation.from_json(each) for each in body["recreations"])
        spread = tuple((lo, hi) for lo, hi in body["spread"])
        return cls(tuple(tuple((lo, hi) for lo, hi in each) for each in body["ranges"]), RoutingEpoch(body["epoch"]), recreations, spread)

    def _with_cuts_of(self, other: Routing) -> Units:
        return Units.cut_at([*self.units.cuts, *other.units.cuts])

    def _with(self, units: Units, owners: npt.NDArray[np.int64], instances: int) -> Routing:
        ranges = tuple(units.ranges(np.flatnonzero(owners == instance)) for instance in range(instances))
        return self if ranges == self.ranges else Routing(ranges, self.next_epoch, spread=self.spread if instances > 1 else ())


def _check_apart(what: str, ranges: Iterable[SlotRange]) -> None:
    """Raise an error unless the ranges are not empty, lie within the slots and do not overlap."""
    edges = [0.0, *itertools.chain.from_iterable(sorted(ranges)), float(SLOTS)]
    within = all(a <= b for a, b in itertools.pairwise(edges)) and all(lo < hi for lo, hi in zip(edges[1:-1:2], edges[2:-1:2], strict=True))
    require(within, f"{what} lie apart from one another within 0 to {SLOTS}, unlike {ranges}")


@dataclass(frozen=True)
class Targets:
    """Which tasks get a row. The arrays have an entry per unit."""

    units: Units
    first: npt.NDArray[np.int64]
    """The task that gets all rows of the unit."""
    also: npt.NDArray[np.int64]
    """A second task that also gets the rows with sub-keys below ``until``; -1 if there is none."""
    until: npt.NDArray[np.int64]
