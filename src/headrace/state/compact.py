"""Compaction: fewer, larger runs, a bounded amount of work at a time.

Runs over a slot range form a stack, newest on top. When a stack is deeper than ``depth_max``, neighbours of similar size are merged,
as in a size-tiered log-structured store: sizes grow geometrically with age, so the depth stays logarithmic and a row is rewritten a
logarithmic number of times. A merge larger than the budget is done for as many slots as the budget allows; the rest keeps its deeper
stack and comes next time. So no batch ever waits for a big merge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headrace.state.layout import Combine, Layout
from headrace.state.merge import merge_rows, without_expired
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.slots import SlotRanges, Stack, restrict, stacks

SIMILAR = 1.5
"""A run joins a merge if it is at most this many times larger than all newer ones in it together."""


@dataclass(frozen=True)
class Merge:
    """Merge the runs ``refs`` (neighbours in age, newest first) over the slots [lo, hi)."""

    lo: int
    hi: int
    refs: tuple[RunRef, ...]
    reaches_oldest: bool


@dataclass(frozen=True)
class Compactor:
    """Performs merges for one instance."""

    directory: Path
    layout: Layout
    combine: Combine
    reader: RunReader
    depth_max: int
    sync: bool
    new_file: Callable[[], str]

    def compact(self, refs: list[RunRef], ranges: SlotRanges, rows_max: int, expired_below: int | None) -> tuple[list[RunRef], int]:
        """Merge until no stack is too deep or the budget is spent; returns the references and the rows merged."""
        spent = 0
        while spent < rows_max and (merge := choose(stacks(refs, ranges), self.depth_max, rows_max - spent)) is not None:
            parts = [self.reader.open(part) for ref in merge.refs if (part := restrict(ref, merge.lo, merge.hi)) is not None]
            spent += sum(part.rows.num_rows for part in parts) + 1
            rows = merge_rows([p.rows for p in parts], self.layout, self.combine, keep_deleted=not merge.reaches_oldest)
            rows = without_expired(rows, expired_below)
            merged = []
            if rows.num_rows:
                seq = max(ref.seq for ref in merge.refs)
                merged = [write_run(self.directory, self.new_file(), rows, self.layout, seq=seq, lo=merge.lo, hi=merge.hi, sync=self.sync)]
            refs = merged + [rest for ref in refs for rest in self._outside(ref, merge)]
        return refs, spent

    def _outside(self, ref: RunRef, merge: Merge) -> list[RunRef]:
        """What of a reference a merge leaves as it was."""
        if not any(ref.file == m.file and m.lo <= ref.lo and ref.hi <= m.hi for m in merge.refs):
            return [ref]
        sides = (restrict(ref, ref.lo, merge.lo, self.reader), restrict(ref, merge.hi, ref.hi, self.reader))
        return [side for side in sides if side is not None and side.rows]


def choose(piled: list[Stack], depth_max: int, rows_max: int) -> Merge | None:
    """The next merge: in the deepest stack, cut to the slots that the budget allows."""
    deep = [stack for stack in piled if len(stack.refs) > depth_max]
    if not deep:
        return None
    stack = max(deep, key=lambda s: (len(s.refs), -s.lo))
    sizes = [ref.rows * (stack.hi - stack.lo) / (ref.hi - ref.lo) for ref in stack.refs]
    begin, end = similar_neighbours(sizes, depth_max)
    total = sum(sizes[begin:end])
    width = stack.hi - stack.lo
    if total > rows_max:
        width = max(1, int(width * rows_max / total))
    return Merge(stack.lo, stack.lo + width, stack.refs[begin:end], reaches_oldest=end == len(stack.refs))


def similar_neighbours(sizes: list[float], depth_max: int) -> tuple[int, int]:
    """Which neighbours (newest first) to merge: the first that are alike in size, else just enough of the newest.

    >>> similar_neighbours([1, 1, 1, 1], 3)
    (0, 4)
    >>> similar_neighbours([1, 1, 1, 90], 3)
    (0, 3)
    >>> similar_neighbours([1, 10, 14, 1000], 3)
    (1, 3)
    >>> similar_neighbours([1, 10, 100, 1000], 3)
    (0, 2)
    """
    for begin in range(len(sizes) - 1):
        together, end = sizes[begin], begin + 1
        while end < len(sizes) and sizes[end] <= SIMILAR * together:
            together += sizes[end]
            end += 1
        if end - begin > 1:
            return begin, end
    return 0, len(sizes) - depth_max + 1
