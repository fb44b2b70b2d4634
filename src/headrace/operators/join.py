"""The windowed equijoin: pairs of rows with the same key, whose event times differ by at most a bound.

New rows look for partners in the state of the other side and among the new rows of the other side. For outer joins, a row looks once more
when the watermark has passed its time by the bound; if it finds no partner, it is emitted alone. Its partners may be older than the row by
the bound, so the other side is kept for twice the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import Applied, Moment, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.matching import Candidates, Needles, candidates
from headrace.operators.pairing import LEFT, NAMES, RIGHT, PairsInTime, Piece, in_time
from headrace.operators.store import Store
from headrace.state.keys import Mask
from headrace.state.layout import subs
from headrace.state.segments import sort_into_segments

BOTH = "rows"
"""The store of a stream that is joined with itself."""


@dataclass(frozen=True)
class WindowedJoin(PairsInTime):
    """``join(..., within=...)``."""

    outer: tuple[bool, bool] = (False, False)
    """For each side, True if its rows are emitted even without a partner."""

    @cached_property
    def sides(self) -> tuple[Store, Store]:
        return self._side(LEFT), self._side(RIGHT)

    def _side(self, side: int) -> Store:
        # A row of an outer side falls due, and looks for partners among older rows of the other side.
        outer, other_outer = self.outer[side], self.outer[1 - side]
        if self.pairing.one_input:
            outer = other_outer = any(self.outer)
        lifetime = UntilWatermark(self.within_us * (2 if other_outer else 1), self.within_us if outer else None)
        return Store(self.pairing.layouts[side], lifetime=lifetime)

    @property
    def store_names(self) -> tuple[str, str]:
        return (BOTH, BOTH) if self.pairing.one_input else (NAMES[LEFT], NAMES[RIGHT])

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        rows = in_time(rows, moment.watermark_us)
        result.rows_late = result.rows - rows.num_rows
        if not rows.num_rows:
            return result
        new = [self._sorted(side, part, result) for side, part in enumerate(self.pairing.split(rows))]
        if self.pairing.one_input:
            new[RIGHT] = new[LEFT]
        needles = [Needles.of(part, layout) for part, layout in zip(new, self.pairing.layouts, strict=True)]
        result.keys = len(needles[LEFT].firsts) + (0 if self.pairing.one_input else len(needles[RIGHT].firsts))
        # Pairs are computed later, but in the views as they are now: otherwise new rows would meet twice.
        result.computed = self.pairing.pairs(self._found(needles, new, dict(views), moment))
        for side, name in enumerate(self.store_names):
            if new[side].num_rows:
                result.changed[name] = new[side]
        return result

    def _found(self, needles: list[Needles], new: list[pa.RecordBatch], views: Views, moment: Moment) -> Iterator[Piece]:
        """Pairs of new rows, and pairs of a new row and a stored row of the other side."""
        for at, partner in self._candidates(needles[LEFT], new[RIGHT], RIGHT).pairs():
            yield new[LEFT], new[RIGHT], at, partner
        for side in (LEFT,) if self.pairing.one_input else (LEFT, RIGHT):
            if not new[side].num_rows:
                continue
            other = 1 - side
            for run in views[self.store_names[other]].runs(self.sides[other].lifetime.live_from(moment.watermark_ms)):
                for at, partner in self._candidates(needles[side], run.rows, other).pairs():
                    if side == LEFT:
                        yield new[LEFT], run.rows, at, partner
                    # If one stream is both sides, a pair counts in either order.
                    if side == RIGHT or self.pairing.one_input:
                        yield run.rows, new[side], partner, at

    def _sorted(self, side: int, rows: pa.RecordBatch, result: Applied) -> pa.RecordBatch:
        """Sort the new rows of a side. Rows that can have no partner are taken out, and emitted in an outer join."""
        alone = self.pairing.partnerless(rows, side)
        if alone.any():
            if self.outer[side]:
                result.emitted.append(self.pairing.alone(rows.filter(pa.array(alone)), side))
            rows = rows.filter(pa.array(~alone))
        return sort_into_segments(rows, self.pairing.layouts[side])[0]

    def _candidates(self, needles: Needles, table: pa.RecordBatch, side: int) -> Candidates:
        return candidates(needles, table, self.pairing.layouts[side], self.within_us)

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        result = Applied()
        for side in (LEFT, RIGHT):
            if self.outer[side]:
                result.emitted.extend(self._left_alone(side, views, moment.watermark_us, until_ms * 1000))
        return result

    def _left_alone(self, side: int, views: Views, after_us: int, until_us: int) -> Iterator[pa.RecordBatch]:
        """The rows that can no longer get a partner, and have none."""
        layout, other = self.pairing.layouts[side], 1 - side
        theirs = views[self.store_names[other]].runs()
        for run in views[self.store_names[side]].runs(after_us - self.within_us + 1):
            last_chance = subs(run.rows) + self.within_us
            due = np.flatnonzero((last_chance > after_us) & (last_chance <= until_us))
            if not len(due):
                continue
            needles = Needles.of(run.rows.take(pa.array(due)), layout)
            matched = np.zeros(len(due), dtype=np.bool_)
            for each in theirs:
                matched |= self._matched(self._candidates(needles, each.rows, other), side)
            if not matched.all():
                yield self.pairing.alone(needles.rows.filter(pa.array(~matched)), side)

    def _matched(self, found: Candidates, side: int) -> Mask:
        if self.pairing.condition is None:
            return found.found()
        matched = np.zeros(found.needles.num_rows, dtype=np.bool_)
        for at, partner in found.pairs():
            piece = (found.needles, found.table, at, partner) if side == LEFT else (found.table, found.needles, partner, at)
            (good,) = self.pairing.holding([piece])
            matched[at if good is None else at[good]] = True
        return matched
