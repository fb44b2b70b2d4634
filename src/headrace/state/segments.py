"""Sorting rows into state order and finding where each key begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.state import keys
from headrace.state.layout import Hashes, Indices, Layout, hashes, subs


def sort_into_segments(rows: pa.RecordBatch, layout: Layout, *, stable: bool = True) -> tuple[pa.RecordBatch, Indices]:
    """The rows in (h, key, sub) order, and the index at which each distinct (key, sub) begins.

    Rows of one (key, sub) keep their order if ``stable``; a batch whose order means nothing is sorted faster without.
    """
    h = hashes(rows)
    if layout.has_sub:
        order = np.lexsort((subs(rows), h))
    else:
        order = np.argsort(h, kind="stable" if stable else "quicksort")
    ordered = rows.take(pa.array(order))
    changed_hash, changed_key = _changes(ordered, layout)
    if bool(np.any(changed_key & ~changed_hash)):
        ordered = _separate_collisions(ordered, layout, changed_hash)
        changed_hash, changed_key = _changes(ordered, layout)
    changed = changed_hash | changed_key
    if layout.has_sub:
        sub = subs(ordered)
        changed |= sub[1:] != sub[:-1]
    return ordered, _begins(changed, rows.num_rows)


def key_starts(rows: pa.RecordBatch, layout: Layout) -> Indices:
    """In sorted rows: the index at which each distinct key begins, whatever its sub-keys."""
    changed_hash, changed_key = _changes(rows, layout)
    return _begins(changed_hash | changed_key, rows.num_rows)


def _begins(changed: keys.Mask, rows: int) -> Indices:
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(changed) + 1])


def _changes(rows: pa.RecordBatch, layout: Layout) -> tuple[keys.Mask, keys.Mask]:
    h: Hashes = hashes(rows)
    return h[1:] != h[:-1], keys.changes([rows.column(name) for name in layout.key_names], rows.num_rows)


def _separate_collisions(rows: pa.RecordBatch, layout: Layout, changed_hash: keys.Mask) -> pa.RecordBatch:
    """Different keys with one hash lie mixed: order those stretches by the key as well. Rare, so it need not be fast."""
    group = np.concatenate([[0], np.cumsum(changed_hash)])
    collided = np.flatnonzero(np.bincount(group)[group] > 1)
    part = rows.take(pa.array(collided))
    sort_keys = keys.ranks([part.column(name) for name in layout.key_names])
    if layout.has_sub:
        sort_keys.append(subs(part))
    order = np.arange(rows.num_rows)
    order[collided] = collided[np.lexsort((*reversed(sort_keys), group[collided]))]
    return rows.take(pa.array(order))
