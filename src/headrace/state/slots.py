"""Ranges of slots, and references that are restricted to them.

An instance owns a list of slot ranges. Its task gets the references clipped to these ranges, and returns references for the same ranges.
The driver joins the references of all instances again. State is partitioned, merged and moved in this way; no file is changed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from headrace.ids import POSITION_STEP, SLOTS
from headrace.state.run import RunReader, RunRef

SlotRange = tuple[float, float]
"""The positions [lo, hi). Edges are whole numbers, except inside slots that are cut, such as 7.25."""
SlotRanges = tuple[SlotRange, ...]


@dataclass(frozen=True)
class Stack:
    """A slot range, and the references that cover it, newest first."""

    lo: float
    hi: float
    refs: tuple[RunRef, ...]
    has_older: bool = False
    """True if there are older references of the range that are not in ``refs``. Then a merge must keep tombstones."""


def shown(lo: float, hi: float) -> str:
    """A range as text for users: whole slots with both ends included, pieces of slots as positions.

    >>> shown(3, 9), shown(7, 8), shown(7.25, 9), shown(7.5, 7.5 + POSITION_STEP)
    ('3-8', '7', '7.25-9.0', 'one key of 7')
    """
    if hi - lo == POSITION_STEP:
        return f"one key of {int(lo)}"
    if (lo, hi) != (int(lo), int(hi)):
        return f"{float(lo)}-{float(hi)}"
    return f"{int(lo)}-{int(hi) - 1}" if hi - lo > 1 else str(int(lo))


def even_ranges(instances: int) -> tuple[SlotRanges, ...]:
    """One contiguous range per instance, all of about the same size.

    >>> even_ranges(3)
    (((0, 1365),), ((1365, 2730),), ((2730, 4096),))
    """
    edges = [i * SLOTS // instances for i in range(instances + 1)]
    return tuple(((lo, hi),) for lo, hi in itertools.pairwise(edges))


def ranges_of(slots: npt.ArrayLike) -> tuple[tuple[int, int], ...]:
    """Ascending slots as ranges; neighbours are joined.

    >>> ranges_of([1, 2, 3, 7])
    ((1, 4), (7, 8))
    """
    each = np.asarray(slots, dtype=np.int64)
    if not len(each):
        return ()
    breaks = np.flatnonzero(np.diff(each) > 1)
    firsts, lasts = each[np.r_[0, breaks + 1]], each[np.r_[breaks, len(each) - 1]]
    return tuple((int(lo), int(hi) + 1) for lo, hi in zip(firsts, lasts, strict=True))


def clip(refs: Iterable[RunRef], ranges: SlotRanges, reader: RunReader | None = None) -> list[RunRef]:
    """The references, restricted to these slots. Row counts are exact with a reader, and estimated by the share of slots without one."""
    clipped = []
    for ref in refs:
        for lo, hi in ranges:
            part = restrict(ref, lo, hi, reader)
            if part is not None:
                clipped.append(part)
    return clipped


def restrict(ref: RunRef, lo: float, hi: float, reader: RunReader | None = None) -> RunRef | None:
    """One reference, restricted to the slots [lo, hi); None if it covers none of them. For ``reader`` see ``clip``."""
    lo, hi = max(lo, ref.lo), min(hi, ref.hi)
    if lo >= hi:
        return None
    if (lo, hi) == (ref.lo, ref.hi):
        return ref
    part = replace(ref, lo=lo, hi=hi, rows=int(ref.rows * (hi - lo) / (ref.hi - ref.lo)))
    return replace(part, rows=reader.count(part)) if reader else part


def join(parts: Iterable[RunRef]) -> list[RunRef]:
    """The references, with those of one file joined if their slots touch. Sorted by age, newest first, then by slot."""
    joined: list[RunRef] = []
    for ref in sorted(parts, key=lambda r: (r.file, r.lo)):
        last = joined[-1] if joined else None
        if last and last.file == ref.file and last.hi == ref.lo:
            joined[-1] = replace(last, hi=ref.hi, rows=last.rows + ref.rows)
        else:
            joined.append(ref)
    return sorted(joined, key=lambda r: (-r.seq, r.lo))


def stacks(refs: Iterable[RunRef], ranges: SlotRanges, width: int = SLOTS) -> list[Stack]:
    """Divide these slots wherever a reference begins or ends, and give the references of each piece.

    Slots are also divided at every multiple of ``width``. So pieces stay small, and most are the same in every batch.
    """
    refs = list(refs)
    found = []
    for lo, hi in ranges:
        grid = range(int(lo // width + 1) * width, math.ceil(hi), width)
        edges = sorted({lo, hi, *grid, *(e for r in refs for e in (r.lo, r.hi) if lo < e < hi)})
        for a, b in itertools.pairwise(edges):
            over = sorted((r for r in refs if r.lo <= a and b <= r.hi), key=lambda r: -r.seq)
            found.append(Stack(a, b, tuple(over)))
    return found
