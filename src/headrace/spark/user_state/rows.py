"""The rows interface: PySpark ``Row`` objects in and out, as ``transformWithState`` has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import Row

from headrace.errors import ProcessorError


class RowGroups:
    """The rows of a batch as Row objects, one group per key."""

    def __init__(self, names: list[str], columns: list[pa.Array], keys: list[pa.Array], starts: Any, zone: str) -> None:
        lists = [python_values(column, zone) for column in columns]
        self._rows = [_row(names, values) for values in zip(*lists, strict=True)]
        self._keys = keys
        self._zone = zone
        self._ends = [*starts.tolist(), len(self._rows)]

    def keys(self) -> list[Any]:
        """The key of each group: a tuple."""
        return list(zip(*[python_values(column, self._zone) for column in self._keys], strict=True))

    def of(self, group: int) -> Iterator[Any]:
        """The rows of a group."""
        return iter(self._rows[self._ends[group] : self._ends[group + 1]])


class RowOutput:
    """Collects the rows that the user's code emits."""

    def __init__(self, schema: pa.Schema, name: str, where: str) -> None:
        self._schema, self._names = schema, list(schema.names)
        self._name, self._where = name, where
        self._nested = any(pa.types.is_nested(f.type) for f in schema)
        self._rows: list[tuple[Any, ...]] = []

    def add(self, emitted: Any) -> None:
        """Take what a call returned: an iterator of rows."""
        names, append, nested = self._names, self._rows.append, self._nested
        for row in iterated(emitted, "Row objects", self._name, self._where):
            if not nested and getattr(row, "__fields__", None) == names:
                append(row)
            else:
                append(self._in_order(row))

    def columns(self) -> list[pa.Array]:
        """All rows, as columns of the output."""
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * len(self._schema)
        found = []
        for values, f in zip(columns, self._schema, strict=True):
            try:
                found.append(pa.array(values, f.type))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as refused:
                kind = str(f.type).replace("large_", "")
                raise self._refused(f"{kind} in column {f.name!r}", str(refused)) from None
        return found

    def _in_order(self, row: Any) -> tuple[Any, ...]:
        if isinstance(row, Row) and hasattr(row, "__fields__"):
            values = row.asDict(True)
            return tuple(values.get(name) for name in self._names)
        if isinstance(row, tuple | list) and len(row) == len(self._names) and not self._nested:
            return tuple(row)
        raise self._refused(f"a Row with the fields {', '.join(self._names)}", repr(row))

    def _refused(self, wanted: str, found: str) -> ProcessorError:
        return ProcessorError(f"{self._name}: a row to emit", where=self._where, wanted=wanted, found=found)


def iterated(emitted: Any, of: str, name: str, where: str) -> Iterator[Any]:
    """An iterator over what a call returned."""
    try:
        return iter(emitted)
    except TypeError:
        found = "None" if emitted is None else type(emitted).__name__
        hint = "yield the rows, or return iter([])" if emitted is None else ""
        raise ProcessorError(f"{name}: what it gives back", where=where, wanted=f"an iterator of {of}", found=found, hint=hint) from None


def python_values(column: pa.Array, zone: str) -> list[Any]:
    """A column's values as PySpark gives them to Python: timestamps in the session's time zone."""
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        found: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return found
    return list(
        (column if not pa.types.is_timestamp(kind) and not pa.types.is_nested(kind) else column.cast(in_zone(kind, zone))).to_pylist()
    )


def in_zone(kind: pa.DataType, zone: str) -> pa.DataType:
    """A type whose timestamps have this time zone, also inside nested types."""
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp("us", zone)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, in_zone(f.type, zone), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(in_zone(kind.key_type, zone), in_zone(kind.item_type, zone))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", in_zone(kind.value_type, zone)))
    return kind


def _row(names: list[str], values: tuple[Any, ...]) -> Row:
    row = tuple.__new__(Row, values)
    # Several times faster than the attribute, which Row guards.
    row.__dict__["__fields__"] = names
    return row
