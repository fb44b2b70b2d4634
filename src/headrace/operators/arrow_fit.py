"""Casting a user's Arrow columns to the declared types, if that loses nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.errors import ProcessorError
from headrace.operators.shape import Named, columns_text, type_text


def fitted(table: Any, schema: pa.Schema, shape: Named, what: str) -> list[pa.Array]:
    """The table's columns that the schema names, in the schema's types. `what` names the table in error messages."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    if not isinstance(table, pa.Table):
        raise _misfit(shape, what, f"a pyarrow Table with the columns {columns_text(schema)}", type(table).__name__)
    names = table.schema.names
    if any(names.count(f.name) != 1 for f in schema):
        raise _misfit(shape, what, f"the columns {columns_text(schema)}", columns_text(table.schema))
    return [fit(table.column(f.name), f, shape, what) for f in schema]


def fit(column: Any, field: pa.Field, shape: Named, what: str) -> pa.Array:
    """The column as one array of the field's type."""
    if not compatible(column.type, field.type):
        raise _misfit(shape, what, f"column {field.name!r} of type {type_text(field.type)}", type_text(column.type))
    try:
        column = column if column.type == field.type else column.cast(field.type)
        # Chunks are joined after the cast: a string array with 32-bit offsets may be too small for all of them.
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as refused:
        raise _misfit(shape, what, f"column {field.name!r} of type {type_text(field.type)}", str(refused)) from None


def python_column(values: list[Any], field: pa.Field, shape: Named, what: str) -> pa.Array:
    """A column of Python values."""
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as refused:
        raise _misfit(shape, what, f"{type_text(field.type)} in column {field.name!r}", str(refused)) from None


def compatible(given: pa.DataType, wanted: pa.DataType) -> bool:
    """True if values of one type may be used as values of the other.

    >>> compatible(pa.int64(), pa.float64()), compatible(pa.float64(), pa.int64()), compatible(pa.string(), pa.int64())
    (True, False, False)
    """
    t = pa.types
    if given == wanted or t.is_null(given):
        return True
    if t.is_dictionary(given):
        return compatible(given.value_type, wanted)
    if t.is_integer(given):
        return bool(t.is_integer(wanted) or t.is_floating(wanted) or t.is_decimal(wanted))
    families = (_is_text, _is_bytes, t.is_floating, t.is_decimal, t.is_timestamp, t.is_duration, t.is_date, t.is_time)
    for family in families:
        if family(given):
            return bool(family(wanted))
    if t.is_struct(given) and t.is_struct(wanted):
        pairs = list(zip(given, wanted, strict=False))
        return given.num_fields == wanted.num_fields and all(a.name == b.name and compatible(a.type, b.type) for a, b in pairs)
    if t.is_map(given) and t.is_map(wanted):
        return compatible(given.key_type, wanted.key_type) and compatible(given.item_type, wanted.item_type)
    if _is_list(given) and _is_list(wanted):
        return compatible(given.value_type, wanted.value_type)
    return False


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(is_kind(kind) for is_kind in types)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _misfit(shape: Named, what: str, wanted: str, found: str) -> ProcessorError:
    return ProcessorError(f"{shape.name}: {what}", where=shape.where, wanted=wanted, found=found)
