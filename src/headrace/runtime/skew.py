"""Counts an instance's rows per slot, and per key in its heaviest slots. The counts are part of every report."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ids import SLOTS, KeyHash, Slot, slot_of
from headrace.operators.kernel import ROWS
from headrace.state.layout import hashes

HEAVY_SLOT = 1 / 8
"""Keys are counted in slots that have more than this share of the instance's rows."""
HEAVY_KEYS = 16
"""At most this many keys of a slot are reported."""


def rows_per_slot(rows: pa.RecordBatch) -> tuple[tuple[Slot, int], ...]:
    """(slot, rows) for each slot that has rows. Combined rows count as the rows that they stand for."""
    if not rows.num_rows:
        return ()
    counts = np.bincount(slot_of(hashes(rows)), weights=_weights(rows), minlength=SLOTS).astype(np.int64)
    slots = np.flatnonzero(counts)
    # Most slots of an instance may have rows, so they are not converted one by one.
    return tuple(zip(cast("list[Slot]", slots.tolist()), counts[slots].tolist(), strict=True))


def rows_per_hash(rows: pa.RecordBatch, per_slot: tuple[tuple[Slot, int], ...]) -> tuple[tuple[KeyHash, int], ...]:
    """(hash, rows) of the heaviest keys in heavy slots. If such a slot must be cut, it is cut around these keys."""
    total, weights = sum(count for _, count in per_slot), _weights(rows)
    heavy = [slot for slot, count in per_slot if count > HEAVY_SLOT * total]
    if not heavy:
        return ()
    h, heaviest = hashes(rows), []
    slots = slot_of(h)
    for slot in heavy:
        mine = np.flatnonzero(slots == slot)
        each, which = np.unique(h[mine], return_inverse=True)
        counts = np.bincount(which, weights=None if weights is None else weights[mine])
        heaviest += [(KeyHash(int(each[at])), int(counts[at])) for at in np.argsort(-counts)[:HEAVY_KEYS]]
    return tuple(heaviest)


def _weights(rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """How many of the user's rows each row stands for; None if rows were not combined."""
    return rows.column(ROWS).to_numpy() if ROWS in rows.schema.names else None
