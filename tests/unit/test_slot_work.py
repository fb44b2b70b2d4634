"""Slots are levelled by what they cost, not by how many rows they have."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.control.hot import levelled_routing
from headrace.ids import SLOTS, InstanceId, OperatorId
from headrace.runtime.reports import InstanceReport
from headrace.runtime.slot_work import SlotWork
from headrace.state.routing import Routing

NAME = OperatorId("sum")
HALVES = {NAME: Routing.even(2)}


def reports(busy_s: tuple[float, float], rows: int = 2048) -> dict[OperatorId, list[InstanceReport]]:
    """Each instance has as many rows as the other, evenly over its slots."""
    each = []
    for at, wall_s in enumerate(busy_s):
        slots = tuple((2048 * at + slot, rows // 2048) for slot in range(2048))
        each.append(InstanceReport(InstanceId(at), NAME, {}, rows=rows, rows_per_slot=slots, wall_s=wall_s))
    return {NAME: each}


def test_with_equal_rows_slots_leave_the_busy_instance() -> None:
    work = SlotWork()
    for _ in range(6):
        work.observe(reports((0.9, 0.3)), HALVES)
    cost = work.slots[NAME]
    assert cost[:2048].sum() / cost[2048:].sum() == pytest.approx(3.0, rel=0.3)
    after = levelled_routing(HALVES[NAME], 2, cost, spreads=False)
    moved = np.flatnonzero(after.table() != HALVES[NAME].table())
    assert len(moved)
    assert (HALVES[NAME].table()[moved] == 0).all()
    assert 400 < len(moved) < 700


def test_times_that_say_nothing_are_not_compared() -> None:
    work = SlotWork()
    # The first batch of a routing fetches state; batches of a few milliseconds are noise.
    work.observe(reports((9.0, 0.3)), HALVES)
    work.observe(reports((0.009, 0.002)), HALVES)
    assert work.slots[NAME].std() == pytest.approx(0.0)
    assert len(work.slots[NAME]) == SLOTS
