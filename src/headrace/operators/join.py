"""The join of two streams: pairs of rows with the same key, whose event times differ by at most a bound.

New rows look for partners in the state of the other side and among the new rows of the other side. For outer joins, a row looks once more
when the watermark has passed its time by the bound; if it finds no partner, it is emitted alone. Its partners may be older than the row by
the other side's bound, so the other side is kept for the sum of both bounds. The same holds for a semi-join, in which a row that finds a
partner looks whether it had one before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headrace.operators.kernel import Applied, Moment, OutputMode, Views
from headrace.operators.lifetime import UntilWatermark
from headrace.operators.matching import Candidates, Needles, candidates
from headrace.operators.pairing import LEFT, NAMES, RIGHT, Pairing, Pairs, Piece, in_time
from headrace.operators.store import Store
from headrace.state.keys import Mask
from headrace.state.layout import subs
from headrace.state.segments import sort_into_segments

BOTH = "rows"
"""The store of a stream that is joined with itself."""


@dataclass(frozen=True)
class StreamJoin(Pairs):
    """``join`` of two streams. The bounds on time follow from how long the rows of either side are kept."""

    keep_us: tuple[int | None, int | None]
    """For each side: its rows have no partner that is newer than themselves by more than this; None: there is no bound.

    A negative number means that all partners are older, by at least so much.
    """
    outer: tuple[bool, bool] = (False, False)
    """For each side, True if its rows are emitted even without a partner."""
    semi: bool = False
    """True if each row of the left side is emitted once, with its first partner, and no pairs are."""
    timed: tuple[bool, bool] = (True, True)
    """For each side, True if its rows have an event time, by which they can be late."""
    forgets_first: bool = False
    """True if, in a semi-join, a new row of the right side that the newest watermark has passed meets no new rows of the left side.

    Such rows come while rows are judged late by an older watermark.
    """

    @classmethod
    def within(cls, pairing: Pairing, within_us: int, outer: tuple[bool, bool] = (False, False)) -> StreamJoin:
        """The join of rows whose event times differ by at most `within_us`."""
        return cls(pairing, (within_us, within_us), outer)

    @cached_property
    def sides(self) -> tuple[Store, Store]:
        return self._side(LEFT), self._side(RIGHT)

    def _side(self, side: int) -> Store:
        # A row that falls due, or a row of a semi-join, looks for partners among older rows of the other side.
        own, other = self._lives_us(side), self._lives_us(1 - side)
        outer, searched = self.outer[side], self.outer[1 - side] and other is not None
        if self.pairing.one_input:
            outer = searched = any(self.outer)
        if self.semi and side == RIGHT:
            searched, own = True, None if other is None else own
        if own is None:
            return Store(self.pairing.layouts[side])
        return Store(self.pairing.layouts[side], lifetime=UntilWatermark(own + (other or 0) if searched else own, own if outer else None))

    def _lives_us(self, side: int) -> int | None:
        """How long after its event time a row may still get a partner; None: for ever."""
        keep = self.keep_us[side]
        return None if keep is None else max(0, keep)

    def looks_back_us(self, mode: OutputMode) -> int | None:
        left, right = self._lives_us(LEFT), self._lives_us(RIGHT)
        return None if left is None or right is None else max(left, right)

    @property
    def store_names(self) -> tuple[str, str]:
        return (BOTH, BOTH) if self.pairing.one_input else (NAMES[LEFT], NAMES[RIGHT])

    def apply(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> Applied:
        result = Applied(rows=rows.num_rows)
        rows = in_time(rows, moment.watermark_us, self.timed)
        result.rows_late = result.rows - rows.num_rows
        if not rows.num_rows:
            return result
        new = [self._sorted(side, part, result) for side, part in enumerate(self.pairing.split(rows))]
        if self.pairing.one_input:
            new[RIGHT] = new[LEFT]
        if self.forgets_first:
            new[RIGHT] = self._remembered(new[RIGHT], views, moment)
        needles = [Needles.of(part, layout) for part, layout in zip(new, self.pairing.layouts, strict=True)]
        result.keys = len(needles[LEFT].firsts) + (0 if self.pairing.one_input else len(needles[RIGHT].firsts))
        # Pairs are computed later, but in the views as they are now: otherwise new rows would meet twice.
        results = self._first_found(needles, new, dict(views), moment) if self.semi else None
        result.computed = results or self.pairing.pairs(self._found(needles, new, dict(views), moment))
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

    def _first_found(self, needles: list[Needles], new: list[pa.RecordBatch], views: Views, moment: Moment) -> Iterator[pa.RecordBatch]:
        """The rows of the left side that have a partner now, and had none before."""
        live_from = self.sides[RIGHT].lifetime.live_from(moment.watermark_ms)
        stored = [run.rows for run in views[self.store_names[RIGHT]].runs(live_from)]
        if new[LEFT].num_rows:
            found = self._any_match(needles[LEFT], [new[RIGHT], *stored], LEFT)
            yield self.pairing.alone(needles[LEFT].rows.filter(pa.array(found)), LEFT)
        if not new[RIGHT].num_rows:
            return
        for run in views[self.store_names[LEFT]].runs(self.sides[LEFT].lifetime.live_from(moment.watermark_ms)):
            rows = np.zeros(run.rows.num_rows, dtype=np.bool_)
            for at, partner in self._candidates(needles[RIGHT], run.rows, LEFT).pairs():
                (good,) = self.pairing.holding([(run.rows, new[RIGHT], partner, at)])
                rows[partner if good is None else partner[good]] = True
            if rows.any():
                waiting = Needles.of(run.rows.filter(pa.array(rows)), self.pairing.layouts[LEFT])
                before = self._any_match(waiting, stored, LEFT)
                yield self.pairing.alone(waiting.rows.filter(pa.array(~before)), LEFT)

    def _remembered(self, rows: pa.RecordBatch, views: Views, moment: Moment) -> pa.RecordBatch:
        """The new rows of the right side that have not expired yet, and those that meet a stored row, which shows that it had a partner."""
        lives_us = self._lives_us(RIGHT)
        if lives_us is None or not rows.num_rows:
            return rows
        kept = subs(rows) + lives_us > moment.fires_ms * 1000
        if not kept.all():
            gone = np.flatnonzero(~kept)
            needles = Needles.of(rows.take(pa.array(gone)), self.pairing.layouts[RIGHT])
            stored = views[self.store_names[LEFT]].runs(self.sides[LEFT].lifetime.live_from(moment.watermark_ms))
            kept[gone] = self._any_match(needles, (run.rows for run in stored), RIGHT)
        return rows.filter(pa.array(kept))

    def _any_match(self, needles: Needles, tables: Iterable[pa.RecordBatch], side: int) -> Mask:
        """For each needle of a side, True if it has a partner in one of the tables of the other side."""
        matched = np.zeros(needles.rows.num_rows, dtype=np.bool_)
        for table in tables:
            matched |= self._matched(self._candidates(needles, table, 1 - side), side)
        return matched

    def _sorted(self, side: int, rows: pa.RecordBatch, result: Applied) -> pa.RecordBatch:
        """Sort the new rows of a side. Rows that can have no partner are taken out, and emitted in an outer join."""
        alone = self.pairing.partnerless(rows, side, by_time=self.keep_us != (None, None))
        if alone.any():
            if self.outer[side]:
                result.emitted.append(self.pairing.alone(rows.filter(pa.array(alone)), side))
            rows = rows.filter(pa.array(~alone))
        return sort_into_segments(rows, self.pairing.layouts[side])[0]

    def _candidates(self, needles: Needles, table: pa.RecordBatch, side: int) -> Candidates:
        """Partners of the needles in a table of the rows of `side`."""
        return candidates(needles, table, self.pairing.layouts[side], self.keep_us[side], self.keep_us[1 - side])

    def close(self, views: Views, moment: Moment, until_ms: int) -> Applied:
        result = Applied()
        for side in (LEFT, RIGHT):
            if self.outer[side]:
                result.emitted.extend(self._left_alone(side, views, moment.watermark_us, until_ms * 1000))
        return result

    def _left_alone(self, side: int, views: Views, after_us: int, until_us: int) -> Iterator[pa.RecordBatch]:
        """The rows that can no longer get a partner, and have none."""
        layout, lives_us = self.pairing.layouts[side], self._lives_us(side)
        if lives_us is None:
            return
        theirs = [run.rows for run in views[self.store_names[1 - side]].runs()]
        for run in views[self.store_names[side]].runs(after_us - lives_us + 1):
            last_chance = subs(run.rows) + lives_us
            due = np.flatnonzero((last_chance > after_us) & (last_chance <= until_us))
            if not len(due):
                continue
            needles = Needles.of(run.rows.take(pa.array(due)), layout)
            matched = self._any_match(needles, theirs, side)
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
