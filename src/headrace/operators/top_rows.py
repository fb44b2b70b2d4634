"""The first rows of each key by an order: the state of a rank that is filtered, such as ``row_number() <= 3``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.ordering import sort_keys
from headrace.operators.partials import Partial
from headrace.operators.sets import flattened, rebuilt
from headrace.state.layout import Indices


@dataclass(frozen=True)
class TopRows(Partial):
    """Lists of rows, of which the first ones by an order are kept.

    A row is a struct: first the values to order by, then the row's columns. Rows that are equal by the order are ordered by their columns,
    the least first and nulls before all; columns that have no order are passed over.
    """

    element: pa.DataType
    by: int
    """The number of values to order by."""
    descending: int
    nulls_first: int
    """Sets of bits, the lowest for the first value."""
    limit: int
    ties: bool
    """True for ``rank`` and ``dense_rank``: rows that are equal by the order have one number."""
    dense: bool
    """True for ``dense_rank``: numbers have no gaps."""
    columns = ("rows",)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.list_(self.element),)

    def neutral(self) -> tuple[Any, ...]:
        return ([],)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        segment, elements = flattened(columns[0], starts)
        fields = elements.flatten()
        order = [key for at, field in enumerate(fields[: self.by]) for key in self._order(at, field)]
        ties = [(key, False) for field in fields[self.by :] if is_orderable(field.type) for key in sort_keys(field, nulls_first=True)]
        sorted_to = _sorted(pa.array(segment), [*order, *ties])
        segment = segment[sorted_to]
        first = np.ones(len(segment), dtype=np.bool_)
        first[1:] = segment[1:] != segment[:-1]
        kept = self._numbers(first, [key for key, _ in order], sorted_to) <= self.limit
        return [rebuilt(segment[kept], elements.take(pa.array(sorted_to[kept])), len(starts), self.types[0])]

    def _order(self, at: int, column: pa.Array) -> Iterable[tuple[pa.Array, bool]]:
        """The columns to sort by for one of the values, each with True if it descends."""
        descending, nulls_first = bool(self.descending >> at & 1), bool(self.nulls_first >> at & 1)
        if column.null_count:
            valid = column.is_valid().cast(pa.uint8())
            yield (valid, not nulls_first)
        for key in sort_keys(column, nulls_first=True):
            yield (key, descending)

    def _numbers(self, first: Any, order: list[pa.Array], sorted_to: Indices) -> Indices:
        """The number of each row in its key, by the function that is bounded. ``first`` marks the first row of each key."""
        place: Indices = np.arange(len(first))
        begins: Indices = np.maximum.accumulate(np.where(first, place, 0)) if len(first) else place
        if not self.ties:
            return place - begins + 1
        new = first.copy()
        for key in order:
            codes = key.dictionary_encode(null_encoding="encode").indices.to_numpy(zero_copy_only=False)[sorted_to]
            new[1:] |= codes[1:] != codes[:-1]
        if self.dense:
            groups: Indices = np.cumsum(new)
            return groups - groups[begins] + 1
        peers: Indices = np.maximum.accumulate(np.where(new, place, 0)) if len(first) else place
        return peers - begins + 1


def is_orderable(kind: pa.DataType) -> bool:
    """True if values of a type can be compared: atomic types, and structs of such."""
    if pa.types.is_struct(kind):
        return all(is_orderable(field.type) for field in kind)
    return not pa.types.is_nested(kind)


def _sorted(segment: pa.Array, keys: list[tuple[pa.Array, bool]]) -> Indices:
    names = [f"c{at}" for at in range(len(keys))]
    table = pa.table({"segment": segment, **{name: key for name, (key, _) in zip(names, keys, strict=True)}})
    ways = [(name, "descending" if down else "ascending") for name, (_, down) in zip(names, keys, strict=True)]
    return np.asarray(pc.sort_indices(table, sort_keys=[("segment", "ascending"), *ways]).to_numpy(), dtype=np.int64)
