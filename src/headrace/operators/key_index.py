"""Finding rows of Arrow tables by key, many at a time, whatever types and however many columns the key has.

The distinct values of each column are numbered, and the numbers of a row's columns are combined into one number. Null is a value like any
other. A struct is treated as its fields, and a flag that says if it is null.

>>> index = KeyIndex([pa.array(["a", "b", None]), pa.array([1, 2, 3])])
>>> index.find([pa.array([None, "b", "b"]), pa.array([3, 2, 9])]).tolist()
[2, 1, -1]
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.layout import Indices

_CODES_MAX = 2**62


class KeyIndex:
    """An index over distinct keys, given column by column."""

    def __init__(self, columns: list[pa.Array]) -> None:
        self._rows = len(columns[0])
        leaves = _leaves(columns)
        self._only = leaves[0] if len(leaves) == 1 else None
        self._values: list[pa.Array] = []
        self._folded: list[Indices | None] = []
        if self._only is None:
            codes, exact = self._numbered(leaves, build=True)
            assert exact.all()
            self._order = np.argsort(codes, kind="stable")
            self._codes = codes[self._order]

    def find(self, columns: list[pa.Array]) -> Indices:
        """For each row the position of its key in the index, or -1."""
        if self._only is not None:
            return _numbers(_leaves(columns)[0], self._only)
        codes, known = self._numbered(_leaves(columns), build=False)
        if not self._rows:
            return np.full(len(codes), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._codes, codes), self._rows - 1)
        known &= self._codes[at] == codes
        return np.where(known, self._order[at], -1)

    def _numbered(self, leaves: list[pa.Array], build: bool) -> tuple[Indices, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """One number per row, and True if all its parts are known. If `build`, the numbers are assigned; otherwise they are looked up."""
        codes = np.zeros(len(leaves[0]), dtype=np.int64)
        known = np.ones(len(codes), dtype=np.bool_)
        size = 1
        for i, leaf in enumerate(leaves):
            if build:
                self._values.append(pc.unique(leaf))
            number = _numbers(leaf, self._values[i])
            known &= number >= 0
            codes = codes * max(1, len(self._values[i])) + np.maximum(number, 0)
            size *= max(1, len(self._values[i]))
            if build:
                # Before the combined numbers overflow, those that occur are renumbered.
                self._folded.append(np.unique(codes) if size * max(1, self._rows) >= _CODES_MAX else None)
            folded = self._folded[i]
            if folded is not None:
                at = np.minimum(np.searchsorted(folded, codes), max(len(folded) - 1, 0))
                known &= folded[at] == codes if len(folded) else False
                codes, size = at, len(folded)
        return codes, known


def _numbers(leaf: pa.Array, values: pa.Array) -> Indices:
    """The position of each value of `leaf` in `values`, or -1."""
    if pa.types.is_null(leaf.type):
        return np.zeros(len(leaf), dtype=np.int64)
    found = pc.index_in(leaf, value_set=values)
    return np.asarray(pc.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _leaves(columns: list[pa.Array]) -> list[pa.Array]:
    found: list[pa.Array] = []
    for column in columns:
        if pa.types.is_struct(column.type):
            found.append(column.is_valid())
            found.extend(_leaves(column.flatten()))
        else:
            found.append(column)
    return found
