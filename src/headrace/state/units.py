"""What a routing deals out: slots, and the pieces of those that are cut.

    slots      | 6 |      7      | 8 |
    cuts                7.25 7.5
    units      | 6 | 7 |  8 |  9 | 10|        unit 8 is [7.25, 7.5)

A slot with more work than an instance can do is cut, down to one key of it if need be (SEEP's split guided by the key distribution).
Few slots are ever cut, so a unit's number is its slot's and the number of cuts before it.
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
    """All slots, cut at some positions."""

    cuts: tuple[float, ...] = ()
    """Ascending, none of them a slot's edge."""

    @classmethod
    def cut_at(cls, edges: Iterable[float]) -> Units:
        """Cut wherever these edges are not slots' own.

        >>> Units.cut_at([7.5, 8.0, 7.25, 7.5]).cuts
        (7.25, 7.5)
        """
        return cls(tuple(sorted({float(edge) for edge in edges if edge != int(edge)})))

    @cached_property
    def edges(self) -> npt.NDArray[np.float64]:
        """Unit u is [edges[u], edges[u + 1])."""
        return np.sort(np.concatenate([np.arange(SLOTS + 1, dtype=np.float64), self.cuts]))

    @cached_property
    def widths(self) -> npt.NDArray[np.float64]:
        return np.diff(self.edges)

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The slot that each unit lies in."""
        return self.edges[:-1].astype(np.int64)

    def __len__(self) -> int:
        return SLOTS + len(self.cuts)

    def between(self, lo: float, hi: float) -> slice[Any, Any, Any]:
        """The units of a range whose edges are units' own."""
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
        """Ascending units as ranges of slots, neighbours joined."""
        return tuple(_plain(self.edges[int(lo)], self.edges[int(hi)]) for lo, hi in ranges_of(units))


def union(ranges: Iterable[SlotRange]) -> SlotRanges:
    """The slots that any of these ranges has.

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
    """Edges of whole slots as whole numbers: they are what people read nearly always."""
    return (int(lo) if lo == int(lo) else float(lo), int(hi) if hi == int(hi) else float(hi))
