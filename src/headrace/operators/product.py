"""The windowed Cartesian product: all pairs of a left and a right row that meet a condition and whose times differ by at most a bound.

Rows are distributed over a grid of cells. A left row goes to all cells of its grid row, a right row to all cells of its grid column. So
every pair meets in exactly one cell:

              right row 7
                   |
    left row 3 --- x --- ---      A cell is a place in the key space, so cells move between instances like any other state.
                   |

Within a cell both sides are sorted by time. New rows are taken in blocks. Some rows of the other side are within the bound of every row of
the block, so their times need not be compared. The rows just before and after these, the fringe, are within the bound of some of the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.ids import SLOTS, slot_of
from headrace.operators import expressions as E
from headrace.operators.grid import evaluate_grid
from headrace.operators.kernel import Applied, Moment, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.matching import Needles, candidates
from headrace.operators.pairing import LEFT, NAMES, RIGHT, SIDE, PairsInTime, in_time
from headrace.operators.store import Store
from headrace.operators.vectors import Side, align, columns_from_arrow
from headrace.state.layout import SUB, Indices, hashes
from headrace.state.merge import merge_rows
from headrace.state.segments import sort_into_segments

BLOCK_ROWS_MIN = 64
BLOCKS_PER_BOUND = 8
"""About this many blocks cover the time bound, unless that makes them too small."""
BLOCK_PAIRS_MIN = 1_000_000
"""A block has at least this many pairs: preparing a condition for fewer is not worth it."""


@dataclass(frozen=True)
class WindowedProduct(PairsInTime):
    """``crossJoin(..., within=...)``. The hash of a row is the place of its cell."""

    grid: tuple[int, int] = (1, 1)
    of_one: bool = False
    """True if one stream is both sides. Its rows come once for each side."""

    @property
    def store_names(self) -> tuple[str, str]:
        return NAMES

    @cached_property
    def sides(self) -> tuple[Store, Store]:
        left, right = (Store(layout, lifetime=UntilWatermark(self.within_us)) for layout in self.pairing.layouts)
        return left, right

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=self._dealt(rows))
        rows = in_time(rows, moment.watermark_us)
        result.rows_late = result.rows - self._dealt(rows)
        new = [sort_into_segments(part, each)[0] for part, each in zip(self.pairing.split(rows), self.pairing.layouts, strict=True)]
        pairs: list[Iterator[pa.RecordBatch]] = []
        for side, rows in enumerate(new):
            if not rows.num_rows:
                continue
            other = self.sides[1 - side]
            # One table for all runs: few large grids are faster than many small ones. New rows of both sides meet once: on the left.
            stored = [run.rows for run in views[NAMES[1 - side]].runs(other.lifetime.live_from(moment.watermark_ms))]
            table = merge_rows([*([new[RIGHT]] if side == LEFT else []), *stored], other.layout)
            pairs.append(self._pairs(rows, table, side))
            result.changed[NAMES[side]] = rows
        result.computed = itertools.chain.from_iterable(pairs)
        return result

    def _dealt(self, rows: pa.RecordBatch) -> int:
        """How many rows these copies stand for: only copies in the first cell of their grid row or column are counted."""
        cells = -(-slot_of(hashes(rows)).astype(np.int64) * self.grid[LEFT] * self.grid[RIGHT] // SLOTS)
        side = np.asarray(rows.column(SIDE).to_numpy())
        left = int(np.sum((side == LEFT) & (cells % self.grid[RIGHT] == 0)))
        return left if self.of_one else left + int(np.sum((side == RIGHT) & (cells < self.grid[RIGHT])))

    def _pairs(self, needles: pa.RecordBatch, table: pa.RecordBatch, side: int) -> Iterator[pa.RecordBatch]:
        """Pairs of a row of this side and a row of the other side, in the columns of the output."""
        if not needles.num_rows or not table.num_rows:
            return
        layout = self.pairing.layouts[side]
        if self.pairing.condition is None:
            found = candidates(Needles.of(needles, layout), table, layout, self.within_us, self.within_us).pairs()
        else:
            found = self._cells(needles, table, side)
        for at, partner in found:
            yield self.pairing.output(*((needles, table, at, partner) if side == LEFT else (table, needles, partner, at)))

    def _cells(self, needles: pa.RecordBatch, table: pa.RecordBatch, side: int) -> Iterator[tuple[Indices, Indices]]:
        """The pairs that meet the condition, cell by cell."""
        assert self.pairing.condition is not None
        # Strings get one common dictionary here, once for all cells and blocks.
        both = {NAMES[side]: self._columns(needles, side), NAMES[1 - side]: self._columns(table, 1 - side)}
        aligned, _ = align(self.pairing.condition, both)
        ours, theirs = ({**both[name], **aligned[name]} for name in (NAMES[side], NAMES[1 - side]))
        h, others = hashes(needles), hashes(table)
        for cell in np.unique(h):
            first, last = np.searchsorted(h, cell, "left"), np.searchsorted(h, cell, "right")
            begin, end = np.searchsorted(others, cell, "left"), np.searchsorted(others, cell, "right")
            if begin < end:
                for at, partner in self._cell(_part(ours, slice(first, last)), _part(theirs, slice(begin, end)), side):
                    yield at + first, partner + begin

    def _cell(self, ours: Side, theirs: Side, side: int) -> Iterator[tuple[Indices, Indices]]:
        time, times, within = ours[SUB].values, theirs[SUB].values, self.within_us
        for begin, end in time_blocks(time, within, len(times)):
            reach = (time[begin] - within, time[end - 1] - within, time[begin] + within + 1, time[end - 1] + within + 1)
            some, every, every_end, some_end = (int(at) for at in np.searchsorted(times, reach, "left"))
            if every >= every_end:
                every = every_end = some
            fringe = np.concatenate([np.arange(some, every), np.arange(every_end, some_end)])
            block = _part(ours, slice(begin, end))
            for places, timed in ((slice(every, every_end), False), (fringe, True)):
                others = _part(theirs, places)
                if count := len(others[SUB]):
                    for at, partner in self._grid(block, others, (end - begin, count), side, timed):
                        yield at + begin, fringe[partner] if timed else partner + every

    @cached_property
    def _timed(self) -> E.Expr:
        """The condition together with the time bound. One object for all blocks, since caches are keyed by the object."""
        assert self.pairing.condition is not None
        return E.And((_near(self.within_us), *E.conjuncts(self.pairing.condition)))

    def _columns(self, rows: pa.RecordBatch, side: int) -> Side:
        assert self.pairing.condition is not None
        wanted = {c.name for c in E.columns(self.pairing.condition) if c.side == NAMES[side]}
        return columns_from_arrow(rows, sorted(wanted | {SUB}))

    def _grid(self, block: Side, others: Side, sizes: tuple[int, int], side: int, timed: bool) -> Iterator[tuple[Indices, Indices]]:
        """The pairs of a block and other rows that meet the condition. If `timed`, times are compared too."""
        assert self.pairing.condition is not None
        condition = self._timed if timed else self.pairing.condition
        left, right, rows = (block, others, sizes) if side == LEFT else (others, block, sizes[::-1])
        for at_left, at_right in evaluate_grid(condition, left, right, rows=rows, where=self.pairing.where):
            yield (at_left, at_right) if side == LEFT else (at_right, at_left)


def time_blocks(time: Indices, within_us: int, others: int) -> Iterator[tuple[int, int]]:
    """Cut ascending times into blocks, each a small fraction of the bound, but not too small to be worth evaluating."""
    span = int(time[-1] - time[0])
    wanted = -(-span * BLOCKS_PER_BOUND // max(1, within_us))
    count = max(1, min(wanted, len(time) // BLOCK_ROWS_MIN, len(time) * others // BLOCK_PAIRS_MIN))
    edges = [i * len(time) // count for i in range(count + 1)]
    yield from itertools.pairwise(edges)


def _near(within_us: int) -> E.Expr:
    apart = E.Abs(E.Arithmetic("subtract", E.Column(NAMES[LEFT], SUB), E.Column(NAMES[RIGHT], SUB), "legacy"), "legacy")
    return E.Compare("le", apart, E.Literal(within_us, "int64"))


def _part(side: Side, rows: Indices | slice) -> Side:
    return {name: vector.take(rows) for name, vector in side.items()}
