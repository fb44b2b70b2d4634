"""The columns of a join or product of two streams: of its input, of its state, and of the pairs that it emits.

in     h | k0 .. | sub | side | v0 v1 ..     rows of both streams; values of one type share a column
state  h | k0 .. | sub | p0 p1 ..            each side in a store of its own
out    k0 .. | lt rt | l0 .. | r0 ..         the key, both event times, the values of both sides
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators import expressions as E
from headrace.operators.expressions import Expr
from headrace.operators.grid import holds_pairs
from headrace.operators.kernel import Operator, OutputMode
from headrace.operators.lifetime import NEVER
from headrace.operators.store import Store
from headrace.operators.vectors import columns_from_arrow
from headrace.state.keys import Mask
from headrace.state.layout import HASH, SUB, Indices, Layout, subs

SIDE = "side"
"""Input column: `LEFT` or `RIGHT`."""
LEFT, RIGHT = 0, 1
NAMES = ("left", "right")
"""The names of the stores."""
TIMES = ("lt", "rt")
"""Output columns: the event times of both rows, in microseconds."""

GROUP_PAIRS = 250_000
"""A condition is evaluated on at least this many pairs together, if there are as many."""

Piece = tuple[pa.RecordBatch, pa.RecordBatch, Indices, Indices]
"""A left and a right table, and for each pair the index of its row in either."""
Sides = tuple[pa.RecordBatch, pa.RecordBatch]


@dataclass(frozen=True)
class Pairing:
    """The columns of both sides, and the condition on pairs."""

    layouts: tuple[Layout, Layout]
    places: tuple[tuple[str, ...], tuple[str, ...]]
    """For each side and value, the input column that holds it."""
    one_input: bool
    """True if one stream is both sides. Its rows come in once."""
    condition: Expr | None = None
    where: str = ""
    """The user's line, for error messages."""

    @property
    def input_schema(self) -> pa.Schema:
        fixed = [(HASH, pa.uint64()), *self.layouts[LEFT].keys, (SUB, pa.int64())]
        side = [] if self.one_input else [(SIDE, pa.int8())]
        typed = zip((*self.places[LEFT], *self.places[RIGHT]), (*self.layouts[LEFT].values, *self.layouts[RIGHT].values), strict=True)
        return pa.schema([*fixed, *side, *{place: kind for place, (_, kind) in typed}.items()])

    @property
    def output_schema(self) -> pa.Schema:
        values = [(f"{side}{i}", kind) for side, each in zip("lr", self.layouts, strict=True) for i, (_, kind) in enumerate(each.values)]
        return pa.schema([*self.layouts[LEFT].keys, *((name, pa.int64()) for name in TIMES), *values])

    def split(self, rows: pa.RecordBatch) -> Sides:
        """The rows of each side in the columns of its store. If one stream is both sides, the same rows twice."""
        if self.one_input:
            left = self._kept(rows, LEFT)
            return left, left
        side = np.asarray(rows.column(SIDE).to_numpy())
        left, right = (self._kept(rows.filter(pa.array(side == which)), which) for which in (LEFT, RIGHT))
        return left, right

    def _kept(self, rows: pa.RecordBatch, side: int) -> pa.RecordBatch:
        layout = self.layouts[side]
        fixed = [rows.column(name) for name in (HASH, *layout.key_names, SUB)]
        return pa.RecordBatch.from_arrays([*fixed, *(rows.column(place) for place in self.places[side])], schema=layout.schema)

    def partnerless(self, rows: pa.RecordBatch, side: int, by_time: bool = True) -> Mask:
        """True for rows that can have no partner: those with a null key, and without an event time if pairs are found `by_time`."""
        alone = (subs(rows) == NEVER) & by_time
        for name in self.layouts[side].key_names:
            column = rows.column(name)
            # Only the key itself counts: a null inside a struct equals another one.
            if column.null_count:
                alone |= column.is_null().to_numpy(zero_copy_only=False)
        return np.asarray(alone, dtype=np.bool_)

    def pairs(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """The pairs that meet the condition, in the columns of the output."""
        for group in self._groups(pieces):
            for (left, right, at_left, at_right), good in zip(group, self.holding(group), strict=True):
                if good is not None:
                    at_left, at_right = at_left[good], at_right[good]
                if len(at_left):
                    yield self.output(left, right, at_left, at_right)

    def _groups(self, pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
        """Group pieces until they have `GROUP_PAIRS` pairs: preparing a condition for evaluation is expensive."""
        group: list[Piece] = []
        for piece in pieces:
            group.append(piece)
            if self.condition is None or sum(len(at) for _, _, at, _ in group) >= GROUP_PAIRS:
                yield group
                group = []
        if group:
            yield group

    def holding(self, group: list[Piece]) -> list[Mask | None]:
        """For each piece, which of its pairs meet the condition; None: all."""
        if self.condition is None:
            return [None] * len(group)
        places = []
        sides = []
        for side, name in enumerate(NAMES):
            wanted = sorted({c.name for c in E.columns(self.condition) if c.side == name})
            rows, at = _used([(piece[side], piece[2 + side]) for piece in group], wanted)
            sides.append(columns_from_arrow(rows, wanted) if wanted else {})
            places.append(at)
        good = np.asarray(holds_pairs(self.condition, sides[0], sides[1], places[0], places[1], where=self.where), dtype=np.bool_)
        return list(np.split(good, np.cumsum([len(at) for _, _, at, _ in group])[:-1]))

    def output(self, left: pa.RecordBatch, right: pa.RecordBatch, at_left: Indices, at_right: Indices) -> pa.RecordBatch:
        """Pairs of rows in the columns of the output."""
        taken = [(left, pa.array(at_left)), (right, pa.array(at_right))]
        keys = [left.column(name).take(taken[LEFT][1]) for name in self.layouts[LEFT].key_names]
        times = [rows.column(SUB).take(at) for rows, at in taken]
        values = [rows.column(name).take(at) for (rows, at), each in zip(taken, self.layouts, strict=True) for name in each.value_names]
        return pa.RecordBatch.from_arrays([*keys, *times, *values], schema=self.output_schema)

    def alone(self, rows: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Rows without a partner in the columns of the output. The other side is null."""
        time = subs(rows)
        times = [pa.array(time, mask=time == NEVER) if which == side else pa.nulls(len(time), pa.int64()) for which in (LEFT, RIGHT)]
        keys = [rows.column(name) for name in self.layouts[side].key_names]
        values = [
            rows.column(name) if which == side else pa.nulls(len(time), kind)
            for which, each in enumerate(self.layouts)
            for name, kind in each.values
        ]
        return pa.RecordBatch.from_arrays([*keys, *times, *values], schema=self.output_schema)


def in_time(rows: pa.RecordBatch, watermark_us: int, timed: tuple[bool, bool] = (True, True)) -> pa.RecordBatch:
    """The rows that are not late. Rows of a side that is not `timed` never are."""
    if not any(timed):
        return rows
    good = subs(rows) > watermark_us
    if not all(timed):
        good |= np.asarray(rows.column(SIDE).to_numpy()) == (LEFT if timed[RIGHT] else RIGHT)
    return rows if bool(good.all()) else rows.filter(pa.array(good))


def _used(tables: list[tuple[pa.RecordBatch, Indices]], wanted: list[str]) -> tuple[pa.Table, Indices]:
    """The wanted columns of all rows that are in a pair, each row once, and for each pair the index of its row."""
    parts: list[pa.RecordBatch] = []
    offsets: dict[int, tuple[int, Indices]] = {}
    total = 0
    for rows, _ in tables:
        if id(rows) in offsets:
            continue
        used = np.zeros(rows.num_rows, dtype=np.bool_)
        for other, at in tables:
            if other is rows:
                used[at] = True
        which = np.flatnonzero(used)
        if wanted:
            parts.append(rows.select(wanted).take(pa.array(which)).replace_schema_metadata(None))
        offsets[id(rows)] = (total, np.cumsum(used) - 1)
        total += len(which)
    places = [offsets[id(rows)][1][at] + offsets[id(rows)][0] for rows, at in tables]
    return pa.Table.from_batches(parts) if parts else pa.table({}), np.concatenate(places)


@dataclass(frozen=True)
class Pairs(Operator):
    """Base of operators that pair rows of two sides. A pair is emitted once both rows have come."""

    pairing: Pairing

    @property
    @abstractmethod
    def store_names(self) -> tuple[str, str]:
        """The names of the left and of the right side's store."""

    @property
    @abstractmethod
    def sides(self) -> tuple[Store, Store]:
        """The left and the right side's store."""

    @property
    def stores(self) -> dict[str, Store]:
        return dict(zip(self.store_names, self.sides, strict=True))

    @property
    def input_schema(self) -> pa.Schema:
        return self.pairing.input_schema

    @property
    def output_schema(self) -> pa.Schema:
        return self.pairing.output_schema


@dataclass(frozen=True)
class PairsInTime(Pairs):
    """Base of operators that pair rows whose event times differ by at most `within_us`."""

    within_us: int

    def looks_back_us(self, mode: OutputMode) -> int | None:
        return self.within_us
