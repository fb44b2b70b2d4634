"""Finds, for many rows at once, the rows of the other side with the same key and an event time within a bound.

Both sides are sorted by (h, key, time). The rows of a key are found by its hash, and the times within the bound by bisection, for all rows
at the same time. If two keys share a hash, all rows with that hash are candidates, and each pair is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.state import keys
from headrace.state.keys import Mask
from headrace.state.layout import Indices, Layout, hashes, subs
from headrace.state.segments import key_starts

CHUNK_PAIRS = 500_000
"""The most pairs that are compared at a time."""

Pairs = tuple[Indices, Indices]


@dataclass(frozen=True)
class Needles:
    """Sorted rows that look for partners."""

    rows: pa.RecordBatch
    firsts: Indices
    """The index of the first row of each key."""
    key_of: Indices
    """The number of each row's key."""

    @classmethod
    def of(cls, rows: pa.RecordBatch, layout: Layout) -> Needles:
        firsts = key_starts(rows, layout)
        lengths = np.diff(np.append(firsts, rows.num_rows))
        return cls(rows, firsts, np.repeat(np.arange(len(firsts)), lengths))


@dataclass(frozen=True)
class Candidates:
    """For each needle a range [begin, end) of rows of the other side."""

    needles: pa.RecordBatch
    table: pa.RecordBatch
    begin: Indices
    end: Indices
    certain: Mask
    """True if all rows of the range have the needle's key and a time within the bound."""
    key_names: list[str]
    back_us: int | None
    ahead_us: int | None

    def pairs(self, chunk: int = CHUNK_PAIRS) -> Iterator[Pairs]:
        """The pairs as indices of needles and of partners, at most `chunk` at a time."""
        for which, where in expand(self.begin, self.end, chunk):
            if not self.certain.all():
                unsure = np.flatnonzero(~self.certain[which])
                good = np.ones(len(which), dtype=np.bool_)
                good[unsure] = self._match(which[unsure], where[unsure])
                which, where = which[good], where[good]
            if len(which):
                yield which, where

    def found(self) -> Mask:
        """True for needles that have a partner."""
        result = (self.end > self.begin) & self.certain
        if not self.certain.all():
            for which, _ in self.pairs():
                result[which] = True
        return result

    def _match(self, which: Indices, where: Indices) -> Mask:
        ours, theirs = pa.array(which), pa.array(where)
        columns = [[rows.column(n).take(at) for n in self.key_names] for rows, at in ((self.needles, ours), (self.table, theirs))]
        same: Mask = keys.equal(columns[0], columns[1], len(which))
        later = subs(self.table)[where] - subs(self.needles)[which]
        if self.back_us is not None:
            same = same & (later >= -self.back_us)
        if self.ahead_us is not None:
            same = same & (later <= self.ahead_us)
        return same


def candidates(needles: Needles, table: pa.RecordBatch, layout: Layout, back_us: int | None, ahead_us: int | None) -> Candidates:
    """For each needle the rows of its key in `table`, which is sorted, that are in reach.

    They are at most `back_us` older than the needle, and at most `ahead_us` newer. A negative bound asks for a distance; None is no bound.
    """
    names = layout.key_names
    h = hashes(needles.rows)[needles.firsts]
    theirs = hashes(table)
    begin = np.searchsorted(theirs, h, "left")
    end = np.searchsorted(theirs, h, "right")
    certain = np.ones(len(h), dtype=np.bool_)
    some = np.flatnonzero(end > begin)
    if len(some) and names:
        # Rows of a key are neighbours. So if the first and the last row of a hash have the key, all of them have it.
        wanted = [needles.rows.column(n).take(pa.array(needles.firsts[some])) for n in names]
        for edge in (begin[some], end[some] - 1):
            certain[some] &= keys.equal([table.column(n).take(pa.array(edge)) for n in names], wanted, len(some))
    begin, end, certain = begin[needles.key_of], end[needles.key_of], certain[needles.key_of]
    time, times = subs(needles.rows), subs(table)
    first = begin if back_us is None else np.where(certain, bisect(times, begin, end, time - back_us), begin)
    last = end if ahead_us is None else np.where(certain, bisect(times, first, end, time + ahead_us + 1), end)
    return Candidates(needles.rows, table, first, last, certain, names, back_us, ahead_us)


def bisect(values: Indices, begin: Indices, end: Indices, wanted: Indices) -> Indices:
    """For each range [begin, end) of ascending values, the first index whose value is not below the wanted one.

    >>> bisect(np.array([1, 3, 5, 2, 4]), np.array([0, 0, 3]), np.array([3, 3, 5]), np.array([3, 9, 0])).tolist()
    [1, 3, 3]
    """
    low, high = begin.copy(), end.copy()
    if not len(values):
        return low
    while (open_ := low < high).any():
        middle = np.minimum((low + high) >> 1, len(values) - 1)
        below = open_ & (values[middle] < wanted)
        low = np.where(below, middle + 1, low)
        high = np.where(open_ & ~below, middle, high)
    return low


def expand(begin: Indices, end: Indices, chunk: int) -> Iterator[Pairs]:
    """All (i, at) with begin[i] <= at < end[i], at most `chunk` at a time.

    >>> [(i.tolist(), at.tolist()) for i, at in expand(np.array([4, 0, 7]), np.array([6, 0, 10]), chunk=3)]
    [([0, 0, 2], [4, 5, 7]), ([2, 2], [8, 9])]
    """
    ends = np.cumsum(end - begin)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, chunk):
        number = np.arange(start, min(start + chunk, total))
        first, last = np.searchsorted(ends, (number[0], number[-1]), "right")
        upto = np.minimum(ends[first : last + 1], number[-1] + 1)
        which = np.repeat(np.arange(first, last + 1), np.diff(np.concatenate([[start], upto])))
        yield which, number - ends[which] + end[which]
