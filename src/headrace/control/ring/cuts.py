"""When a node is overloaded or light, and where its arc is cut if it gives slots away (Floe VI)."""

from __future__ import annotations

import numpy as np

from headrace.control.observation import Floats
from headrace.control.ring.messages import Report, RingConfig
from headrace.control.ring.view import RingArc
from headrace.ids import SLOTS

USEFUL = (0.1, 0.9)
"""The second half of an arc is moved if its share of the load is in this range."""


def is_overloaded(load: Report, config: RingConfig) -> bool:
    """True if both the queue and the CPU of a node have reached their upper limits."""
    return load.queue_rows >= config.queue_high and load.cpu >= config.cpu_high


def is_light(load: Report, config: RingConfig) -> bool:
    """True if neither the queue nor the CPU of a node is above its lower limit."""
    return load.queue_rows <= config.queue_low and load.cpu <= config.cpu_low


def cut(arc: RingArc, load: Report, gain_min: float) -> tuple[int, float] | None:
    """Where to cut an arc, and the utilisation that goes with its second part. None if no cut leaves both sides less busy.

    >>> cut(RingArc(0, 100), Report(0.0, 5000, 0.9), 0.05)
    (50, 0.45)
    >>> rows = np.zeros(SLOTS)
    >>> rows[:4] = 10
    >>> cut(RingArc(0, 100), Report(0.0, 5000, 0.9, rows), 0.05)
    (2, 0.45)
    >>> rows[:4] = 0, 0, 40, 0
    >>> cut(RingArc(0, 100), Report(0.0, 5000, 0.9, rows), 0.05)
    """
    if arc.size < 2:
        return None
    share = _share_behind(arc, load.rows_per_slot)
    at = arc.size // 2
    if not USEFUL[0] <= share[at] <= USEFUL[1]:
        at = 1 + int(np.argmin(np.abs(share[1:] - 0.5)))
    moved = load.cpu * float(share[at])
    return ((arc.lo + at) % SLOTS, moved) if gain_min <= moved <= load.cpu - gain_min else None


def _share_behind(arc: RingArc, rows_per_slot: Floats | None) -> Floats:
    """For every slot of an arc: the share of the arc's load from this slot to the end."""
    rows = np.ones(arc.size) if rows_per_slot is None else rows_per_slot[arc.slots()]
    rows = rows if rows.any() else np.ones(arc.size)
    return np.asarray(np.cumsum(rows[::-1])[::-1] / rows.sum(), dtype=np.float64)
