"""Merging sorted slices of runs into one sorted batch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import require
from headrace.state.layout import DELETED, Combine, Indices, Layout, Policy, never_combined, subs
from headrace.state.segments import segment_order


def merge_rows(
    newest_first: list[pa.RecordBatch], layout: Layout, combine: Combine = never_combined, *, keep_deleted: bool = False
) -> pa.RecordBatch:
    """Merge sorted batches by the policy of the layout: keep the newest row per (key, sub), combine them, or keep them all.

    ``keep_deleted`` keeps tombstones, for a merge that does not include the oldest run.
    """
    parts = [part.replace_schema_metadata(None) for part in newest_first if part.num_rows]
    if not parts:
        return layout.empty()
    deletions = any(DELETED in part.schema.names for part in parts)
    if deletions:
        require(layout.policy is Policy.REPLACE, "a tombstone stands for a whole state, so state that is kept in parts has none")
        parts = [_with_deleted(part) for part in parts]
    if len(parts) == 1:
        merged = parts[0]
    else:
        rows = pa.concat_batches(parts)
        order, starts = segment_order(rows, layout, presorted=True)
        if layout.policy is Policy.REPLACE:
            # The newest row of a key comes first, since the sort is stable.
            merged = rows.take(pa.array(order[starts]))
        elif layout.policy is Policy.KEEP:
            merged = rows.take(pa.array(order))
        else:
            merged = reduce_segments(rows.take(pa.array(order)), starts, layout, combine)
    if deletions and not keep_deleted:
        alive = ~merged.column(DELETED).to_numpy(zero_copy_only=False)
        merged = merged.filter(pa.array(alive)).select(layout.schema.names)
    return merged


def reduce_segments(ordered: pa.RecordBatch, starts: Indices, layout: Layout, combine: Combine) -> pa.RecordBatch:
    """Combine the rows of each segment into one. Segments of the sorted rows begin at the indices ``starts``."""
    if len(starts) == ordered.num_rows:
        return ordered
    firsts = ordered.take(pa.array(starts))
    values = combine([ordered.column(name) for name in layout.value_names], starts)
    fixed = [firsts.column(name) for name in firsts.schema.names if name not in set(layout.value_names)]
    return pa.RecordBatch.from_arrays([*fixed, *values], schema=layout.schema)


def without_expired(rows: pa.RecordBatch, expired_below: int | None) -> pa.RecordBatch:
    """The rows without those whose sub-key is below ``expired_below``; all rows if that is None."""
    if expired_below is None or not rows.num_rows:
        return rows
    alive = subs(rows) >= expired_below
    return rows if bool(np.all(alive)) else rows.filter(pa.array(alive))


def _with_deleted(part: pa.RecordBatch) -> pa.RecordBatch:
    if DELETED in part.schema.names:
        return part
    return part.append_column(DELETED, pa.array(np.zeros(part.num_rows, dtype=np.bool_)))
