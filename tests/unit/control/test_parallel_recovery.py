"""Parallel recovery: what is split stays whole, is shared evenly, and can be joined again."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.parallel import Load, heirs, joined, split
from headrace.ids import SLOTS, InstanceId
from headrace.state.routing import Routing

CASES = given(st.integers(1, 8), st.data(), st.integers(1, 6), st.integers(0, 2**32 - 1))


@CASES
def test_every_slot_has_one_owner_and_only_the_lost_instance_gives_slots_away(
    instances: int, data: st.DataObject, parts: int, seed: int
) -> None:
    before = Routing.even(instances)
    lost = InstanceId(data.draw(st.integers(0, instances - 1)))
    weights = np.random.default_rng(seed).pareto(1.0, SLOTS) * 100
    after = split(before, lost, parts, weights)
    assert before.instances <= after.instances <= before.instances + parts - 1
    moved = before.table() != after.table()
    assert (before.table()[moved] == lost).all()
    assert all(after.ranges), "no part is empty"
    again = joined(after, before)
    assert again.ranges == before.ranges
    assert again.epoch > after.epoch


def test_parts_share_the_work_and_not_the_slots() -> None:
    weights = np.ones(SLOTS)
    weights[:100] = 1000.0
    loads = split(Routing.even(2), InstanceId(0), 4, weights).loads(weights)
    shared = [loads[0], *loads[2:]]
    assert max(shared) < 1.1 * sum(shared) / 4


def test_a_single_slot_is_not_split() -> None:
    before = Routing((((0, 1),), ((1, SLOTS),)))
    assert split(before, InstanceId(0), 4) is before


def test_heirs_are_only_those_who_can_read_the_state() -> None:
    one = Load((1.0,))
    loads = {"1": one, "2": one, "3": one, "4": one}
    assert heirs(loads, [], 4) == ()
    assert heirs(loads, ["3"], 4) == ("3",)
    assert set(heirs(loads, ["2", "3"], 4)) == {"2", "3"}
    assert len(heirs(loads, ["1", "2", "3", "4"], 3)) == 3
