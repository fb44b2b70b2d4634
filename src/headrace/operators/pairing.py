"""Two streams side by side: how their rows come in, and what a pair of them looks like.

in     h | k0 .. | sub | side | v0 v1 ..     both streams in one; columns of one type share a place
kept   h | k0 .. | sub | p0 p1 ..            each side by itself
out    k0 .. | lt rt | l0 .. | r0 ..         the key, both event times, both sides' values
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.operators import expressions as E
from headrace.operators.buffer import NEVER, RowBuffer
from headrace.operators.expressions import Expr
from headrace.operators.grid import holds_pairs
from headrace.operators.kernel import ClosesRowByRow, OutputMode, Store
from headrace.operators.vectors import columns_from_arrow
from headrace.state.keys import Mask
from headrace.state.layout import HASH, SUB, Indices, Layout, subs

SIDE = "side"
LEFT, RIGHT = 0, 1
NAMES = ("left", "right")
TIMES = ("lt", "rt")

GROUP_PAIRS = 250_000
"""How many pairs, at least, a condition is evaluated on together, where there are so many."""

Piece = tuple[pa.RecordBatch, pa.RecordBatch, Indices, Indices]
"""A left and a right table, and the places of pairs in them."""
Sides = tuple[pa.RecordBatch, pa.RecordBatch]


@dataclass(frozen=True)
class Pairing:
    """The columns of both sides, and the condition that a pair must meet."""

    layouts: tuple[Layout, Layout]
    places: tuple[tuple[str, ...], tuple[str, ...]]
    """Per side and value the column that it comes in."""
    one_input: bool
    """One stream is both sides: its rows come in once."""
    condition: Expr | None = None
    where: str = ""
    """Where the user wrote it."""

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
        """Each side's rows as they are kept; the same twice, where one stream is both."""
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

    def partnerless(self, rows: pa.RecordBatch, side: int) -> Mask:
        """Rows that can have no partner: without a time, or with a key that is null, which equals nothing."""
        alone = subs(rows) == NEVER
        for name in self.layouts[side].key_names:
            column = rows.column(name)
            # The key itself: a null inside a struct is a value like any other.
            if column.null_count:
                alone |= column.is_null().to_numpy(zero_copy_only=False)
        return np.asarray(alone, dtype=np.bool_)

    def pairs(self, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        """Those pairs that meet the condition, as they are emitted."""
        for group in self._groups(pieces):
            for (left, right, at_left, at_right), good in zip(group, self.holding(group), strict=True):
                if good is not None:
                    at_left, at_right = at_left[good], at_right[good]
                if len(at_left):
                    yield self.output(left, right, at_left, at_right)

    def _groups(self, pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
        """Preparing a condition takes its time, so pairs of several tables are looked at together, up to a bound."""
        group: list[Piece] = []
        for piece in pieces:
            group.append(piece)
            if self.condition is None or sum(len(at) for _, _, at, _ in group) >= GROUP_PAIRS:
                yield group
                group = []
        if group:
            yield group

    def holding(self, group: list[Piece]) -> list[Mask | None]:
        """Which of the pairs of each piece meet the condition; None: all."""
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
        """Pairs of rows."""
        taken = [(left, pa.array(at_left)), (right, pa.array(at_right))]
        keys = [left.column(name).take(taken[LEFT][1]) for name in self.layouts[LEFT].key_names]
        times = [rows.column(SUB).take(at) for rows, at in taken]
        values = [rows.column(name).take(at) for (rows, at), each in zip(taken, self.layouts, strict=True) for name in each.value_names]
        return pa.RecordBatch.from_arrays([*keys, *times, *values], schema=self.output_schema)

    def alone(self, rows: pa.RecordBatch, side: int) -> pa.RecordBatch:
        """Rows of one side without a partner."""
        time = subs(rows)
        times = [pa.array(time, mask=time == NEVER) if which == side else pa.nulls(len(time), pa.int64()) for which in (LEFT, RIGHT)]
        keys = [rows.column(name) for name in self.layouts[side].key_names]
        values = [
            rows.column(name) if which == side else pa.nulls(len(time), kind)
            for which, each in enumerate(self.layouts)
            for name, kind in each.values
        ]
        return pa.RecordBatch.from_arrays([*keys, *times, *values], schema=self.output_schema)


def in_time(rows: pa.RecordBatch, watermark_us: int) -> pa.RecordBatch:
    """Rows that the watermark has not passed."""
    good = subs(rows) > watermark_us
    return rows if bool(good.all()) else rows.filter(pa.array(good))


def _used(tables: list[tuple[pa.RecordBatch, Indices]], wanted: list[str]) -> tuple[pa.Table, Indices]:
    """The wanted columns of all rows that are in a pair, each once, and where in them the rows of the pairs are."""
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
class PairsInTime(ClosesRowByRow, ABC):
    """What operators have in common that pair rows within a bound of each other's time, as soon as both are there."""

    pairing: Pairing
    within_us: int

    @property
    @abstractmethod
    def store_names(self) -> tuple[str, str]:
        """The stores of the left and of the right side's rows."""

    @property
    @abstractmethod
    def buffers(self) -> tuple[RowBuffer, RowBuffer]:
        """How long each side's rows are kept."""

    @property
    def stores(self) -> dict[str, Store]:
        return dict(zip(self.store_names, self.buffers, strict=True))

    @property
    def input_schema(self) -> pa.Schema:
        return self.pairing.input_schema

    @property
    def output_schema(self) -> pa.Schema:
        return self.pairing.output_schema

    def emits_at_once(self, mode: OutputMode) -> bool:
        return True
