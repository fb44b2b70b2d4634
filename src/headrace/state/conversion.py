"""Runs of an earlier layout: how their rows are read under the layout that the store has now.

When a query is changed, its state may get other columns. Runs are never rewritten for that. A run says which layout it was written with,
and a *conversion* says how each value column of the present layout comes from such a row: from a column of the run, widened if need be, or
as a constant. Keys and sub-keys are the same, so the order of rows is too. Compaction writes the present layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.errors import require
from headrace.state.layout import DELETED, Layout


@dataclass(frozen=True)
class ColumnFrom:
    """Where a value column comes from."""

    name: str
    """The column of the present layout."""
    source: str | None
    """The column of the earlier layout; None if it had none."""
    fill: Any = None
    """The value of a column that the earlier layout did not have."""


@dataclass(frozen=True)
class Conversion:
    """From an earlier layout to the present one."""

    fingerprint: str
    """That of the earlier layout."""
    columns: tuple[ColumnFrom, ...]
    """For each value column of the present layout."""

    def apply(self, rows: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
        """Rows of the earlier layout as rows of the present one."""
        require([column.name for column in self.columns] == layout.value_names, "a conversion gives every value column")
        fixed = [name for name in layout.schema.names if name not in layout.value_names]
        arrays = [rows.column(name) for name in fixed]
        for (_, kind), column in zip(layout.values, self.columns, strict=True):
            arrays.append(_column(rows, column, kind))
        names = [*fixed, *layout.value_names]
        if DELETED in rows.schema.names:
            arrays.append(rows.column(DELETED))
            names.append(DELETED)
        return pa.RecordBatch.from_arrays(arrays, names=names)

    def then(self, later: Conversion) -> Conversion:
        """This conversion and a later one in one step.

        >>> first = Conversion("a", (ColumnFrom("p0", "p0"), ColumnFrom("p1", None, 0)))
        >>> both = first.then(Conversion("b", (ColumnFrom("p0", "p1"), ColumnFrom("p1", "p0"))))
        >>> [(column.name, column.source, column.fill) for column in both.columns]
        [('p0', None, 0), ('p1', 'p0', None)]
        """
        mine = {column.name: column for column in self.columns}
        columns = (each if each.source is None else replace(mine[each.source], name=each.name) for each in later.columns)
        return Conversion(self.fingerprint, tuple(columns))

    @property
    def changes_nothing(self) -> bool:
        """True if every column stays where it is."""
        return all(column.source == column.name for column in self.columns)

    def to_json(self) -> dict[str, Any]:
        return {"fingerprint": self.fingerprint, "columns": [{"name": c.name, "from": c.source, "fill": c.fill} for c in self.columns]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Conversion:
        return cls(str(data["fingerprint"]), tuple(ColumnFrom(c["name"], c["from"], c["fill"]) for c in data["columns"]))


def _column(rows: pa.RecordBatch, column: ColumnFrom, kind: pa.DataType) -> pa.Array:
    if column.source is None:
        return pa.repeat(pa.scalar(column.fill, kind), rows.num_rows)
    found = rows.column(column.source)
    return found if found.type == kind else found.cast(kind)


def can_widen(old: pa.DataType, new: pa.DataType) -> bool:
    """True if every value of the old type is one of the new type: larger whole numbers, double for float, decimals with more digits.

    >>> can_widen(pa.int32(), pa.int64()), can_widen(pa.int64(), pa.int32()), can_widen(pa.float32(), pa.float64())
    (True, False, True)
    >>> can_widen(pa.decimal128(10, 2), pa.decimal128(12, 2)), can_widen(pa.decimal128(10, 2), pa.decimal128(11, 4))
    (True, False)
    """
    whole = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    if old in whole and new in whole:
        return whole.index(old) < whole.index(new)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        whole_digits = new.precision - new.scale >= old.precision - old.scale
        return bool(old != new and whole_digits and new.scale >= old.scale)
    return bool(old == pa.float32() and new == pa.float64())
