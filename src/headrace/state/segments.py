"""Sorting rows by (hash, key, sub-key), and finding where each key begins. The rows of one (key, sub-key) are a *segment*."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headrace.state import keys
from headrace.state.keys import Mask
from headrace.state.layout import Hashes, Indices, Layout, hashes, subs


def sort_into_segments(rows: pa.RecordBatch, layout: Layout, *, presorted: bool = False) -> tuple[pa.RecordBatch, Indices]:
    """The rows sorted by (hash, key, sub-key), and the index at which each segment begins."""
    order, starts = segment_order(rows, layout, presorted=presorted)
    return rows.take(pa.array(order)), starts


def segment_order(rows: pa.RecordBatch, layout: Layout, *, presorted: bool = False) -> tuple[Indices, Indices]:
    """The order that sorts rows by (hash, key, sub-key), and the index in it at which each segment begins.

    The sort is stable. ``presorted`` says that the rows are several sorted batches, one after the other, which sort faster.
    """
    h = hashes(rows)
    order = np.argsort(h, kind="stable") if presorted else hash_order(h)
    if layout.has_sub:
        order = _then_by_sub(order, h, subs(rows))
    changed, collided = _changes(rows, layout, h, order)
    if collided:
        order = _separate_collisions(rows, layout, h, order)
        changed, _ = _changes(rows, layout, h, order)
    return order, _begins(changed, rows.num_rows)


def key_starts(rows: pa.RecordBatch, layout: Layout) -> Indices:
    """The index at which each distinct key begins in sorted rows; sub-keys are ignored."""
    changed, _ = _changes(rows, replace(layout, has_sub=False), hashes(rows), np.arange(rows.num_rows))
    return _begins(changed, rows.num_rows)


def hash_order(h: Hashes) -> Indices:
    """A stable argsort of hashes, several times faster than numpy's.

    Sorting numbers is much faster than sorting indices. So the low bits of each hash are replaced by its index, and the numbers are sorted.
    Hashes that differ only in the low bits may end up in the wrong order. This is rare, is detected, and then numpy's argsort is used.
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


def int_order(values: Indices) -> Indices:
    """A stable argsort of integers, several times faster than numpy's if their range is small enough.

    >>> int_order(np.array([3, -1, 3, 2])).tolist()
    [1, 3, 0, 2]
    """
    if len(values) < 2:
        return np.arange(len(values))
    # The difference of two signed numbers always fits into an unsigned one.
    above = values.view(np.uint64) - values.min().view(np.uint64)
    bits = (len(values) - 1).bit_length()
    if int(above.max()).bit_length() + bits > 64:
        return np.argsort(values, kind="stable")
    packed = (above << np.uint64(bits)) | np.arange(len(values), dtype=np.uint64)
    packed.sort()
    order: Indices = (packed & np.uint64((1 << bits) - 1)).astype(np.int64)
    return order


def _then_by_sub(order: Indices, h: Hashes, sub: Indices) -> Indices:
    """Refine an order by hash: rows with the same hash are sorted by their sub-key."""
    if not len(order):
        return order
    ordered_h, ordered_sub = h[order], sub[order]
    group = np.zeros(len(order), dtype=np.int64)
    np.cumsum(ordered_h[1:] != ordered_h[:-1], out=group[1:])
    lowest = int(ordered_sub.min())
    width = int(ordered_sub.max()) - lowest + 1
    if width * (int(group[-1]) + 1) >= 2**63:
        return np.lexsort((sub, h))
    # One number per row. The groups are in order already, which makes the stable sort fast.
    return order[np.argsort(group * width + (ordered_sub - lowest), kind="stable")]


def _begins(changed: Mask, rows: int) -> Indices:
    if rows == 0:
        return np.zeros(0, dtype=np.int64)
    return np.concatenate([np.zeros(1, dtype=np.int64), np.flatnonzero(changed) + 1])


def _changes(rows: pa.RecordBatch, layout: Layout, h: Hashes, order: Indices) -> tuple[Mask, bool]:
    """For rows 1 to n-1 in this order: whether a row begins a segment. Second: whether any neighbours have one hash but different keys."""
    ordered = h[order]
    changed = ordered[1:] != ordered[:-1]
    # Keys are compared only where the hashes are equal.
    same = np.flatnonzero(~changed)
    if not len(same):
        return changed, False
    left, right = order[same], order[same + 1]
    columns = [rows.column(name) for name in layout.key_names]
    other_key = ~keys.equal([c.take(pa.array(left)) for c in columns], [c.take(pa.array(right)) for c in columns], len(same))
    changed[same] = other_key
    if layout.has_sub:
        sub = subs(rows)
        changed[same] |= sub[left] != sub[right]
    return changed, bool(np.any(other_key))


def _separate_collisions(rows: pa.RecordBatch, layout: Layout, h: Hashes, order: Indices) -> Indices:
    """Sort rows that share a hash but not the key by their keys as well. This is rare, so it need not be fast."""
    ordered = h[order]
    group = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    collided = np.flatnonzero(np.bincount(group)[group] > 1)
    part = rows.take(pa.array(order[collided]))
    sort_keys = keys.ranks([part.column(name) for name in layout.key_names])
    if layout.has_sub:
        sort_keys.append(subs(part))
    separated = order.copy()
    separated[collided] = order[collided][np.lexsort((*reversed(sort_keys), group[collided]))]
    return separated
