"""Evaluates a condition on every pair of a left and a right row.

    conjuncts of one side   ->  drop rows of that side, before pairs are formed
    parts of one side       ->  are computed once per row, and become columns
    the other conjuncts     ->  are evaluated on tiles of the n x m grid: the first one on all pairs of the tile, the others on all pairs
                                or only on the pairs that are left, whichever costs less

The longer side runs along the rows of a tile, where numpy's inner loops run. Tiles fit into the processor's cache and reuse the same
buffers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from headrace.operators import expressions as E
from headrace.operators.evaluate import Frame, compute, holds, raise_failure, true
from headrace.operators.expressions import Expr
from headrace.operators.scratch import Scratch
from headrace.operators.vectors import Array, Side, Values, Vector, align, bounds_of, is_one_sided, literal_code, remembered

TILE_PAIRS = 524_288
SAMPLE_PAIRS = 2_048
ORDER_PAIRS_MIN = 262_144
"""For grids with fewer pairs, sampling to find the best order of conjuncts is not worth it."""
GATHER_COST = 4.0

Columns: TypeAlias = dict[tuple[str, str], Values]

_COST = {E.Column: 0.0, E.Literal: 0.0, E.CaseWhen: 4.0, E.Coalesce: 3.0, E.TextTest: 3.0, E.Whole: 5.0, E.Math1: 15.0, E.Math2: 30.0}
_CHEAP_MATH = ("sqrt", "radians", "degrees", "rint", "signum")


def evaluate_grid(
    expr: Expr, left: Side, right: Side, *, rows: tuple[int, int] | None = None, tile_pairs: int = TILE_PAIRS, where: str = ""
) -> Iterator[tuple[Array, Array]]:
    """The pairs of a left and a right row for which the condition is true, as indices, tile by tile, each pair once.

    `rows` are the numbers of rows, for sides without columns. `where` names the condition in error messages.
    """
    return Matcher(expr, left, right, rows=rows, where=where).grid(tile_pairs)


def holds_pairs(expr: Expr, left: Side, right: Side, left_rows: Array, right_rows: Array, *, where: str = "") -> Array:
    """For each given pair, True if the condition is true. Pairs are given as indices of left and right rows."""
    sizes = [len(next(iter(side.values()))) if side else 0 for side in (left, right)]
    if len(left_rows) > sum(sizes):
        return Matcher(expr, left, right, rows=(sizes[0], sizes[1]), where=where, drops_rows=False).pairs(left_rows, right_rows)
    sides = {"left": left, "right": right}
    taken: dict[str, dict[str, Vector]] = {"left": {}, "right": {}}
    for column in E.columns(expr):
        taken[column.side][column.name] = sides[column.side][column.name].take(left_rows if column.side == "left" else right_rows)
    return np.broadcast_to(holds(expr, taken, where=where), (len(left_rows),))


class Matcher:
    """A condition that is prepared for the rows of two sides."""

    def __init__(
        self, expr: Expr, left: Side, right: Side, *, rows: tuple[int, int] | None = None, where: str = "", drops_rows: bool = True
    ) -> None:
        self._where = where or str(expr)
        sizes = rows or (len(next(iter(left.values()))), len(next(iter(right.values()))))
        # The rows of each side that can match; None: all of them.
        self._kept: dict[str, Array | None] = {"left": None, "right": None}
        self._size = {"left": sizes[0], "right": sizes[1]}
        named, self._texts = align(expr, {"left": left, "right": right})
        self._columns: Columns = {(s, name): Values(v.values, v.valid, v.bounds) for s, side in named.items() for name, v in side.items()}
        self._scratch = Scratch()
        conjuncts = _conjuncts(expr)
        if any(each.names_texts for each in conjuncts):
            # The rank of a text differs between dictionaries.
            conjuncts = _conjuncts_of(_coded(expr, self._texts))
        with np.errstate(all="ignore"):
            if drops_rows:
                conjuncts = self._drop_rows(conjuncts)
            for each in conjuncts:
                self._hoist(each)
            ready = [each.condition for each in conjuncts]
            self._conditions = self._ordered(ready) if drops_rows else ready

    def grid(self, tile_pairs: int = TILE_PAIRS) -> Iterator[tuple[Array, Array]]:
        outer, inner = ("left", "right") if self._size["left"] <= self._size["right"] else ("right", "left")
        if not self._size[outer]:
            return
        width = min(self._size[inner], tile_pairs)
        height = max(1, tile_pairs // width)
        for start in range(0, self._size[inner], width):
            across = self._slice(inner, start, start + width, (1, -1))
            for top in range(0, self._size[outer], height):
                down = self._slice(outer, top, top + height, (-1, 1))
                shape = min(height, self._size[outer] - top), min(width, self._size[inner] - start)
                with np.errstate(all="ignore"):
                    found, rest = self._tile({**across, **down}, shape)
                    if not len(found):
                        continue
                    row = found // shape[1]
                    places = {outer: row + top, inner: found - row * shape[1] + start}
                    if rest:
                        left = self._flat(places, rest)
                        places = {side: rows[left] for side, rows in places.items()}
                if len(places["left"]):
                    yield self._original("left", places["left"]), self._original("right", places["right"])

    def pairs(self, left_rows: Array, right_rows: Array) -> Array:
        """True for each of these pairs that matches. Only for a matcher that has dropped no rows."""
        result = np.zeros(len(left_rows), dtype=bool)
        for start in range(0, len(left_rows), TILE_PAIRS):
            part = slice(start, start + TILE_PAIRS)
            places = {"left": left_rows[part], "right": right_rows[part]}
            with np.errstate(all="ignore"):
                left = self._flat(places, self._conditions)
            result[start + left] = True
        return result

    def _drop_rows(self, conjuncts: list[_Conjunct]) -> list[_Conjunct]:
        """Drop rows by the conjuncts of one side, and return the others. A conjunct that fails is returned too: no pair may reach it."""
        rest = []
        for each in conjuncts:
            if each.side is None and each.reads:
                rest.append(each)
                continue
            found = compute(each.expr, Frame(self._columns, self._texts))
            if found.failed is not None and found.failed.any():
                rest.append(each)
            elif each.side is not None:
                self._keep(each.side, np.flatnonzero(self._per_row(each.side, true(found))))
            elif not true(found).all():
                self._keep("left", np.empty(0, dtype=np.int64))
        return rest

    def _keep(self, side: str, rows: Array) -> None:
        if len(rows) == self._size[side]:
            return
        self._kept[side] = self._original(side, rows)
        self._size[side] = len(rows)
        for key, column in self._columns.items():
            if key[0] == side:
                self._columns[key] = _take(column, rows)

    def _original(self, side: str, rows: Array) -> Array:
        kept = self._kept[side]
        return rows if kept is None else kept[rows]

    def _hoist(self, conjunct: _Conjunct) -> None:
        """Compute the parts of the conjunct that read one side only, and keep them as columns."""
        for column, part in conjunct.parts:
            if (column.side, column.name) in self._columns:
                continue
            found = compute(part, Frame(self._columns, self._texts))
            values = self._per_row(column.side, found.values)
            valid = None if found.valid is None else self._per_row(column.side, found.valid)
            if valid is not None:
                values = np.where(valid, values, values.dtype.type(0))
            # All values have been computed, so if none has failed, none can fail later.
            failed = self._per_row(column.side, found.failed) if found.failed is not None and found.failed.any() else None
            self._columns[column.side, column.name] = Values(values, valid, bounds_of(values), failed)

    def _per_row(self, side: str, array: Array) -> Array:
        """One value per row. A constant expression gives a single value, which is repeated."""
        return np.broadcast_to(array, (self._size[side],))

    def _ordered(self, conditions: list[_Condition]) -> list[_Condition]:
        """The conditions in the best order: those that drop most pairs for their cost first. If one may fail, the user's order is kept."""
        pairs = self._size["left"] * self._size["right"]
        if len(conditions) < 2 or pairs < ORDER_PAIRS_MIN:
            return conditions
        rng = np.random.default_rng(0)
        places = {side: rng.integers(0, size, SAMPLE_PAIRS) for side, size in self._size.items()}
        ranks = []
        for condition in conditions:
            found = compute(condition.expr, self._gathered(condition, places))
            if found.failed is not None:
                return conditions
            passed = float(np.broadcast_to(true(found), (SAMPLE_PAIRS,)).mean())
            ranks.append(condition.cost / (1.001 - passed))
        return [conditions[at] for at in np.argsort(ranks, kind="stable")]

    def _slice(self, side: str, start: int, stop: int, shape: tuple[int, int]) -> Columns:
        def part(array: Array | None) -> Array | None:
            return None if array is None else array[start:stop].reshape(shape)

        return {
            key: Values(each.values[start:stop].reshape(shape), part(each.valid), each.bounds, part(each.failed))
            for key, each in self._columns.items()
            if key[0] == side
        }

    def _tile(self, columns: Columns, shape: tuple[int, int]) -> tuple[Array, list[_Condition]]:
        """The flat indices of the pairs of a tile that are left, and the conditions that these still have to meet."""
        pairs = shape[0] * shape[1]
        if not self._conditions:
            return np.arange(pairs), []
        mask: Array | None = None
        for at, condition in enumerate(self._conditions, 1):
            frame = Frame(columns, self._texts, self._scratch, condition.shared)
            found = compute(condition.expr, frame)
            if found.failed is not None:
                raise_failure(found.failed if mask is None else found.failed * mask, self._where)
            values = true(found)
            values = values if values.shape == shape else np.array(np.broadcast_to(values, shape))
            mask = values if mask is None else np.logical_and(mask, values, out=values)
            frame.forget()
            rest = self._conditions[at:]
            count = int(np.count_nonzero(mask))
            if not rest or not count or rest[0].is_cheaper_flat(count, pairs):
                places = np.flatnonzero(mask)
                self._scratch.give(mask)
                return places, rest
        raise AssertionError("the last condition returns")

    def _flat(self, places: dict[str, Array], conditions: list[_Condition]) -> Array:
        """The indices of the pairs that meet the conditions."""
        left = np.arange(len(places["left"]))
        for condition in conditions:
            found = compute(condition.expr, self._gathered(condition, places))
            raise_failure(found.failed, self._where)
            passed = np.flatnonzero(np.broadcast_to(true(found), left.shape))
            left, places = left[passed], {side: rows[passed] for side, rows in places.items()}
        return left

    def _gathered(self, condition: _Condition, places: Mapping[str, Array]) -> Frame:
        columns = {key: _take(self._columns[key], places[key[0]]) for key in condition.columns}
        return Frame(columns, self._texts, self._scratch, condition.shared)


@dataclass(frozen=True)
class _Condition:
    """A conjunct, with facts about it that every tile needs."""

    expr: Expr
    cost: float
    """The estimated cost per pair in a grid, in nanoseconds."""
    columns: tuple[tuple[str, str], ...]
    shared: frozenset[int]

    @classmethod
    def of(cls, expr: Expr) -> _Condition:
        seen: set[int] = set()
        shared: set[int] = set()
        _find_shared(expr, seen, shared)
        columns = tuple(sorted((c.side, c.name) for c in E.columns(expr)))
        return cls(expr, sum(_cost(node) for node in E.walk(expr)), columns, frozenset(shared))

    def is_cheaper_flat(self, count: int, pairs: int) -> bool:
        """True if evaluating only the pairs that are left is cheaper than evaluating the whole tile."""
        return count * (self.cost + GATHER_COST * len(self.columns)) < pairs * self.cost


@dataclass(frozen=True)
class _Conjunct:
    """A conjunct, analysed independently of rows."""

    expr: Expr
    side: str | None
    """The side that it reads, if it reads only one."""
    reads: bool
    """True if it reads any column."""
    names_texts: bool
    condition: _Condition
    """The conjunct in which parts of one side are replaced by columns."""
    parts: tuple[tuple[E.Column, Expr], ...]
    """These columns, and the expressions that they hold."""


def _conjuncts_of(expr: Expr) -> list[_Conjunct]:
    hoisted: dict[Expr, E.Column] = {}
    interned: dict[Expr, Expr] = {}
    found = []
    for each in E.conjuncts(expr):
        condition = _Condition.of(_interned(_hoisted(each, hoisted), interned))
        parts = tuple((column, part) for part, column in hoisted.items() if (column.side, column.name) in condition.columns)
        found.append(_Conjunct(each, is_one_sided(each), bool(E.columns(each)), _names_texts(each), condition, parts))
    return found


_conjuncts = remembered(_conjuncts_of)


def _hoisted(expr: Expr, done: dict[Expr, E.Column]) -> Expr:
    """The expression in which each part of one side is replaced by a column; `done` collects these."""
    if isinstance(expr, E.Literal | E.Column):
        return expr
    side = is_one_sided(expr)
    if side is None:
        return E.with_children(expr, lambda child: _hoisted(child, done))
    if expr not in done:
        done[expr] = E.Column(side, f"#{len(done)}")
    return done[expr]


def _names_texts(expr: Expr) -> bool:
    return any(isinstance(node, E.Literal) and isinstance(node.value, bytes) for node in E.walk(expr))


def _coded(expr: Expr, texts: Any) -> Expr:
    """The expression in which texts are replaced by their ranks."""
    if isinstance(expr, E.Literal) and isinstance(expr.value, bytes):
        return E.Literal(literal_code(expr.value, texts), "int32")
    return E.with_children(expr, lambda child: _coded(child, texts))


def _cost(node: Expr) -> float:
    if isinstance(node, E.Math1) and node.function in _CHEAP_MATH:
        return 2.0
    return _COST.get(type(node), 1.0)


def _interned(expr: Expr, table: dict[Expr, Expr]) -> Expr:
    """An equal tree in which equal parts are the same object."""
    return table.setdefault(expr, E.with_children(expr, lambda child: _interned(child, table)))


def _find_shared(expr: Expr, seen: set[int], shared: set[int]) -> None:
    if isinstance(expr, E.Column | E.Literal):
        return
    if id(expr) in seen:
        shared.add(id(expr))
        return
    seen.add(id(expr))
    for child in E.children(expr):
        _find_shared(child, seen, shared)


def _take(column: Values, rows: Array) -> Values:
    valid, failed = (None if each is None else each[rows] for each in (column.valid, column.failed))
    return Values(column.values[rows], valid, column.bounds, failed)
