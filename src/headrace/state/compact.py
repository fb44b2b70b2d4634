"""Compaction: merges runs into fewer, larger ones, with a bounded amount of work per batch.

The runs that cover a slot range form a stack, newest first. When a stack has more than ``depth_max`` runs, neighbours of similar size are
merged, as in size-tiered compaction of an LSM store. Sizes grow geometrically with age. So the depth is logarithmic in the number of
versions, and so is the number of times that a row is rewritten.

A fixed grid divides the slots into regions. A region is so small that all its rows can be merged within the budget of a batch. Regions are
merged one by one, the deepest first, and the rest waits for the next batch. The grid does not move, so merges do not make files smaller.

Changes of routing do: each one divides the slots at other positions, and the pieces between them are then merged separately. A region that
has many such small pieces (splinters) is merged as a whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.ids import SLOTS, Version
from headrace.state.fragments import same_fragment
from headrace.state.layout import Combine, Layout
from headrace.state.merge import merge_rows, without_expired
from headrace.state.run import RunReader, RunRef, write_run
from headrace.state.slots import SlotRanges, Stack, restrict, stacks

SPLINTERS_MAX = 4
SPLINTER_SHARE = 1 / 100
"""A piece with fewer rows than this share of the budget is a splinter. A region with more than ``SPLINTERS_MAX`` splinters is merged."""
SIMILAR = 1.5
"""A run joins a merge if it is at most this many times larger than all newer ones in it together."""


@dataclass(frozen=True)
class Merge:
    """A merge to perform: of the runs ``refs`` (neighbours in age, newest first) over the slots [lo, hi)."""

    lo: float
    hi: float
    refs: tuple[RunRef, ...]
    reaches_oldest: bool
    """True if no older run covers the slots. Then tombstones are dropped."""


@dataclass(frozen=True)
class Compactor:
    """Compacts a store of one instance."""

    directory: Path
    layout: Layout
    combine: Combine
    reader: RunReader
    depth_max: int
    sync: bool
    new_file: Callable[[], str]
    boundaries: tuple[Version, ...] = ()
    """Versions whose state was captured by a checkpoint. Runs up to one of them are never merged with later ones."""
    unexpired: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
    """Returns the rows without those that have expired by a rule other than the sub-key."""

    def compact(self, refs: list[RunRef], ranges: SlotRanges, rows_max: int, expired_below: int | None) -> tuple[list[RunRef], int]:
        """Merge until no stack is too deep or ``rows_max`` rows are merged; returns the new references and the number of rows merged.

        Rows with sub-keys below ``expired_below`` are dropped in the merge.
        """
        spent = 0
        width = region_width(sum(ref.rows for ref in refs), sum(hi - lo for lo, hi in ranges), rows_max)
        while spent < rows_max and (merge := self._next(self._stacks(refs, ranges, width), rows_max, rows_max - spent, width)) is not None:
            parts = [self.reader.open(part) for ref in merge.refs if (part := restrict(ref, merge.lo, merge.hi)) is not None]
            spent += sum(part.rows.num_rows for part in parts) + 1
            rows = merge_rows([p.rows for p in parts], self.layout, self.combine, keep_deleted=not merge.reaches_oldest)
            rows = self.unexpired(without_expired(rows, expired_below))
            merged = []
            if rows.num_rows:
                seq = max(ref.seq for ref in merge.refs)
                file = self.new_file()
                merged = [write_run(self.directory, file, rows, self.layout, seq=seq, lo=merge.lo, hi=merge.hi, sync=self.sync)]
                self.reader.keep(file)
            refs = merged + [rest for ref in refs for rest in self._outside(ref, merge)]
        return refs, spent

    def _next(self, piled: list[Stack], budget: int, left: int, width: int) -> Merge | None:
        """The next merge: of a stack that is too deep, since every look-up reads all its runs; else of a region with splinters."""
        return choose_merge(piled, self.depth_max, left) or mend(piled, width, left, SPLINTER_SHARE * budget)

    def _stacks(self, refs: list[RunRef], ranges: SlotRanges, width: int) -> list[Stack]:
        cut: list[Stack] = []
        for stack in stacks(refs, ranges, width):
            parts = same_fragment(list(stack.refs), self.boundaries) or [[]]
            cut.extend(Stack(stack.lo, stack.hi, tuple(part), has_older=part is not parts[-1]) for part in parts)
        return cut

    def _outside(self, ref: RunRef, merge: Merge) -> list[RunRef]:
        """The parts of a reference that a merge does not replace."""
        if not any(ref.file == m.file and m.lo <= ref.lo and ref.hi <= m.hi for m in merge.refs):
            return [ref]
        sides = (restrict(ref, ref.lo, merge.lo, self.reader), restrict(ref, merge.hi, ref.hi, self.reader))
        return [side for side in sides if side is not None and side.rows]


def choose_merge(piled: list[Stack], depth_max: int, rows_max: int) -> Merge | None:
    """The merge of the deepest stack, and of the next stacks with the same runs, within the budget; None if no stack is too deep."""
    deep = [at for at, stack in enumerate(piled) if len(stack.refs) > depth_max]
    if not deep:
        return None
    at = max(deep, key=lambda i: (len(piled[i].refs), -piled[i].lo))
    stack = piled[at]
    sizes = [_rows_in(ref, stack) for ref in stack.refs]
    begin, end = similar_neighbours(sizes, depth_max)
    total, hi, has_older = sum(sizes[begin:end]), stack.hi, stack.has_older
    for right in piled[at + 1 :]:
        more = sum(_rows_in(ref, right) for ref in right.refs[begin:end])
        if right.lo != hi or right.refs != stack.refs or total + more > rows_max:
            break
        total, hi, has_older = total + more, right.hi, has_older or right.has_older
    return Merge(stack.lo, hi, stack.refs[begin:end], reaches_oldest=end == len(stack.refs) and not has_older)


def mend(piled: list[Stack], width: int, rows_max: int, splinter_rows: float) -> Merge | None:
    """The merge of a whole region with many splinters, if the budget allows it and no older references cover the region."""
    for _, each in itertools.groupby(_by_neighbours(piled), key=lambda pair: (pair[0], pair[1].lo // width)):
        region = [stack for _, stack in each]
        sizes = [sum(_rows_in(ref, stack) for ref in stack.refs) for stack in region]
        splinters = sum(1 for stack, size in zip(region, sizes, strict=True) if stack.refs and size < splinter_rows)
        if splinters > SPLINTERS_MAX and sum(sizes) <= rows_max and not any(stack.has_older for stack in region):
            refs = {(ref.file, ref.lo): ref for stack in region for ref in stack.refs}
            newest_first = sorted(refs.values(), key=lambda ref: -ref.seq)
            return Merge(region[0].lo, region[-1].hi, tuple(newest_first), reaches_oldest=True)
    return None


def _by_neighbours(piled: list[Stack]) -> Iterator[tuple[int, Stack]]:
    """Each stack with the number of the contiguous slot range that contains it."""
    number, end = 0, None
    for stack in piled:
        number, end = number + (end is not None and stack.lo != end), stack.hi
        yield number, stack


def region_width(rows: int, slots: float, rows_max: int) -> int:
    """The number of slots per region: the largest power of two for which a region has at most half as many rows as the budget.

    >>> region_width(rows=1_000_000, slots=2048, rows_max=200_000)
    128
    >>> region_width(rows=1000, slots=4096, rows_max=200_000)
    4096
    """
    width = SLOTS
    while width > 1 and rows * width > slots * rows_max / 2:
        width //= 2
    return width


def _rows_in(ref: RunRef, stack: Stack) -> float:
    return ref.rows * (stack.hi - stack.lo) / (ref.hi - ref.lo)


def similar_neighbours(sizes: list[float], depth_max: int) -> tuple[int, int]:
    """Which runs [begin, end) of a stack to merge, given their sizes, newest first.

    They are the first neighbours of similar size. If there are none, the newest runs are merged, as many as are too many.

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
