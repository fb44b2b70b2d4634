"""Sorting rows into state order and finding where each key begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.state import keys
from headrace.state.layout import Hashes, Indices, Layout, hashes, subs


def sort_into_segments(rows: pa.RecordBatch, layout: Layout, *, presorted: bool = False) -> tuple[pa.RecordBatch, Indices]:
    """The rows in (h, key, sub) order, and the index at which each distinct (key, sub) begins.

    Rows of one (key, sub) keep their order. ``presorted`` says that the rows are sorted pieces behind one another.
    """
    h = hashes(rows)
    order = np.argsort(h, kind="stable") if presorted else hash_order(h)
    if layout.has_sub:
        order = _then_by_sub(order, h, subs(rows))
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


def hash_order(h: Hashes) -> Indices:
    """A stable argsort of hashes, several times as fast as numpy's.

    Sorting numbers is much faster than sorting indices by them, so the low bits of each hash give way to its index. Hashes that differ
    in the low bits only may come out in the wrong order; that is rare, is seen, and then the slow way is taken.
    """
    bits = max(len(h) - 1, 1).bit_length()
    if bits <= 26:
        low = np.uint64((1 << bits) - 1)
        packed = (h & ~low) | np.arange(len(h), dtype=np.uint64)
        packed.sort()
        order = (packed & low).astype(np.int64)
        ordered = h[order]
        if not bool(np.any(ordered[1:] < ordered[:-1])):
            return order
    return np.argsort(h, kind="stable")


def _then_by_sub(order: Indices, h: Hashes, sub: Indices) -> Indices:
    """Refine an order by hash: rows of one hash by their sub-key."""
    if not len(order):
        return order
    ordered_h, ordered_sub = h[order], sub[order]
    group = np.zeros(len(order), dtype=np.int64)
    np.cumsum(ordered_h[1:] != ordered_h[:-1], out=group[1:])
    lowest = int(ordered_sub.min())
    width = int(ordered_sub.max()) - lowest + 1
    if width * (int(group[-1]) + 1) >= 2**63:
        return np.lexsort((sub, h))
    # One number per row, already sorted but within groups, which a merge sort is quick with.
    return order[np.argsort(group * width + (ordered_sub - lowest), kind="stable")]


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
