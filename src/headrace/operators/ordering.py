"""Spark's order of values, for least and greatest over Arrow columns of any orderable type."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.layout import Indices


def is_number_like(kind: pa.DataType) -> bool:
    """Whether numpy can compare the type's values as they lie in memory."""
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
    """Per segment, the row with the least or greatest first column (ties by the next); any row where all of it is null.

    Arrow sorts ascending as Spark does: numbers, then NaN, then (put last here) nulls; strings by their bytes.
    """
    rows = len(columns[0])
    segment = np.zeros(rows, dtype=np.int64)
    segment[starts[1:]] = 1
    segment = np.cumsum(segment)
    named = {f"c{i}": _sortable(column) for i, column in enumerate(columns)}
    table = pa.table({"segment": segment, **named})
    order = pc.sort_indices(table, sort_keys=[("segment", "ascending"), *((name, "ascending") for name in named)])
    order = np.asarray(order.to_numpy(), dtype=np.int64)
    if not greatest:
        return order[starts]
    valid = columns[0].is_valid().to_numpy(zero_copy_only=False)
    present = np.add.reduceat(valid.astype(np.int64), starts)
    # Nulls of the first column lie last within a segment; the greatest is the row before them.
    chosen = order[starts + np.maximum(present - 1, 0)]
    return _prefer_values(columns, order, starts, present, chosen) if len(columns) > 1 else chosen


def _prefer_values(columns: list[pa.Array], order: Indices, starts: Indices, present: Indices, chosen: Indices) -> Indices:
    """A null value sorts last and would win a tie for the greatest order; take it only if nothing else ties."""
    value = columns[1]
    if not value.null_count:
        return chosen
    null = value.is_null().to_numpy(zero_copy_only=False)
    for at in np.flatnonzero(null[chosen] & (present > 1)):
        first = columns[0]
        best = first[int(chosen[at])]
        place = int(starts[at] + present[at] - 1)
        while place >= starts[at] and first[int(order[place])].equals(best):
            if not null[order[place]]:
                chosen[at] = order[place]
                break
            place -= 1
    return chosen


def _sortable(column: pa.Array) -> pa.Array:
    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8())
    return column
