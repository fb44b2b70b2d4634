"""How an instance's rows spread over slots, and over the keys of its heaviest slots; part of every report."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.ids import SLOTS, KeyHash, Slot, slot_of
from headrace.operators.kernel import ROWS
from headrace.state.layout import hashes

HEAVY_SLOT = 1 / 8
"""The part of an instance's rows that makes a slot worth a closer look ..."""
HEAVY_KEYS = 16
"""... at this many of its keys."""


def rows_per_slot(rows: pa.RecordBatch) -> tuple[tuple[Slot, int], ...]:
    if not rows.num_rows:
        return ()
    counts = np.bincount(slot_of(hashes(rows)), weights=_weights(rows), minlength=SLOTS).astype(np.int64)
    slots = np.flatnonzero(counts)
    # Most slots of an instance may have rows, so they are not converted one by one.
    return tuple(zip(cast("list[Slot]", slots.tolist()), counts[slots].tolist(), strict=True))


def rows_per_hash(rows: pa.RecordBatch, per_slot: tuple[tuple[Slot, int], ...]) -> tuple[tuple[KeyHash, int], ...]:
    """The heaviest keys of the slots that are much of all: should such a slot have to be cut, it is around these."""
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
    """How many of the user's rows each is, where they were combined."""
    return rows.column(ROWS).to_numpy() if ROWS in rows.schema.names else None
