"""Spark's order of values, for least and greatest over Arrow columns of any orderable type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.layout import Indices


def is_number_like(kind: pa.DataType) -> bool:
    """True if numpy can compare the values of the type as they are in memory."""
    return bool(
        pa.types.is_integer(kind)
        or (pa.types.is_floating(kind))
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time64(kind)
    )


def extremes(columns: list[pa.Array], starts: Indices, *, greatest: bool) -> Indices:
    """For each segment, the row with the least or greatest first column; ties are decided by the next columns.

    A null never wins against a value. If a segment has only nulls, any of its rows is returned.
    """
    rows = len(columns[0])
    segment = np.zeros(rows, dtype=np.int64)
    segment[starts[1:]] = 1
    segment = np.cumsum(segment)
    named = {f"c{i}": key for i, key in enumerate(key for column in columns for key in sort_keys(column, nulls_first=greatest))}
    table = pa.table({"segment": segment, **named})
    order = pc.sort_indices(table, sort_keys=[("segment", "ascending"), *((name, "ascending") for name in named)])
    order = np.asarray(order.to_numpy(), dtype=np.int64)
    return order[np.append(starts[1:], rows) - 1] if greatest else order[starts]


def sort_keys(column: pa.Array, *, nulls_first: bool) -> list[pa.Array]:
    """Columns that Arrow sorts as Spark sorts this one. Structs are compared field by field, and a null field is less than every value.

    Arrow always puts nulls last, so a column of zeros and ones comes first and puts nulls where Spark does.
    """
    keys = []
    if column.null_count and (nulls_first or pa.types.is_struct(column.type)):
        valid = column.is_valid().cast(pa.uint8())
        keys.append(valid if nulls_first else pc.bit_wise_xor(valid, pa.scalar(1, pa.uint8())))
    if not pa.types.is_struct(column.type):
        return [*keys, _sortable(column)]
    return [*keys, *(key for field in column.flatten() for key in sort_keys(field, nulls_first=True))]


def _sortable(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8())
    if pa.types.is_floating(column.type):
        return _float_ranks(column)
    return column


def _float_ranks(column: pa.Array) -> pa.Array:
    """Integers with the order of the floats: NaN is the greatest, and both zeros are equal. Arrow itself sorts NaN with the nulls."""
    double = column.type.bit_width == 64
    kind: Any = np.int64 if double else np.int32
    # Adding zero turns -0.0 into 0.0.
    values = np.asarray(column.fill_null(0).to_numpy()) + (np.float64(0) if double else np.float32(0))
    values[np.isnan(values)] = np.nan
    bits = values.view(kind)
    # Among negative floats, greater bits mean a lower number.
    ranks = np.where(bits < 0, bits ^ np.iinfo(kind).max, bits)
    mask = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(ranks, mask=mask)
