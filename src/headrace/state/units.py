"""Units: what a routing assigns to instances. A unit is a whole slot, or a piece of a slot that is cut.

    slots      | 6 |      7      | 8 |
    cuts                7.25 7.5
    units      | 6 | 7 |  8 |  9 | 10|        unit 8 is [7.25, 7.5)

A slot with more work than one instance can do is cut, if necessary down to a single key (SEEP splits by the key distribution). The number
of a unit is the number of its slot plus the number of cuts before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import require
from headrace.ids import SLOTS, hash_at, slot_of
from headrace.state.slots import SlotRange, SlotRanges, ranges_of


@dataclass(frozen=True)
class Units:
    """All units, given by the positions at which slots are cut."""

    cuts: tuple[float, ...] = ()
    """Ascending positions, none of which is the edge of a slot."""

    @classmethod
    def cut_at(cls, edges: Iterable[float]) -> Units:
        """Units that are cut at these positions. Positions that are edges of slots are ignored.

        >>> Units.cut_at([7.5, 8.0, 7.25, 7.5]).cuts
        (7.25, 7.5)
        """
        return cls(tuple(sorted({float(edge) for edge in edges if edge != int(edge)})))

    @cached_property
    def edges(self) -> npt.NDArray[np.float64]:
        """The edges of all units: unit u is [edges[u], edges[u + 1])."""
        return np.sort(np.concatenate([np.arange(SLOTS + 1, dtype=np.float64), self.cuts]))

    @cached_property
    def widths(self) -> npt.NDArray[np.float64]:
        """The width of each unit in slots; 1 for a whole slot."""
        return np.diff(self.edges)

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The slot that each unit lies in."""
        return self.edges[:-1].astype(np.int64)

    def __len__(self) -> int:
        return SLOTS + len(self.cuts)

    def between(self, lo: float, hi: float) -> slice[Any, Any, Any]:
        """The units of the range [lo, hi), both of which must be edges of units."""
        begin, end = (int(at) for at in np.searchsorted(self.edges, [lo, hi]))
        require(self.edges[begin] == lo and self.edges[end] == hi, f"slots are not cut at the ends of [{lo}, {hi})")
        return slice(begin, end)

    def of_hashes(self, h: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The unit of each hash."""
        slots = slot_of(h)
        if not self.cuts:
            return slots
        return slots + np.searchsorted(np.array([hash_at(cut) for cut in self.cuts], dtype=np.uint64), h, "right")

    def ranges(self, units: npt.ArrayLike) -> SlotRanges:
        """Ascending units as ranges of slots; neighbours are joined."""
        return tuple(_plain(self.edges[int(lo)], self.edges[int(hi)]) for lo, hi in ranges_of(units))


def union(ranges: Iterable[SlotRange]) -> SlotRanges:
    """The union of these ranges.

    >>> union([(7.25, 9), (3, 4), (8, 12)])
    ((3, 4), (7.25, 12))
    """
    ranges = list(ranges)
    units = Units.cut_at(edge for each in ranges for edge in each)
    covered = np.zeros(len(units), dtype=np.bool_)
    for lo, hi in ranges:
        covered[units.between(lo, hi)] = True
    return units.ranges(np.flatnonzero(covered))


def _plain(lo: float, hi: float) -> SlotRange:
    """The range with edges of slots as integers, so that ranges of whole slots print without decimals."""
    return (int(lo) if lo == int(lo) else float(lo), int(hi) if hi == int(hi) else float(hi))
