"""The routing table: changes are whole, small and even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InvariantError
from headrace.ids import SLOTS
from headrace.state.routing import Routing


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_growing_and_shrinking_is_even_and_moves_no_more_than_it_must(sizes: list[int]) -> None:
    routing = Routing.even(3)
    for size in sizes:
        before, routing = routing, routing.rescaled(size)
        owned = np.bincount(routing.table(), minlength=size)
        assert owned.sum() == SLOTS
        assert owned.max() - owned.min() <= size, "even, but for rounding"
        held = np.bincount(before.table(), minlength=max(size, before.instances))
        share = SLOTS / size
        must = sum(held[size:]) + sum(max(0, each - share) for each in held[:size])
        assert routing.moved_from(before) <= must + size, "only what is too much moves, and what belonged to those that go"
        assert routing.epoch == before.epoch + (routing.ranges != before.ranges)


@given(st.integers(1, 12), st.integers(0, 2**31))
def test_work_is_dealt_out_evenly(instances: int, seed: int) -> None:
    work = np.random.default_rng(seed).zipf(1.5, SLOTS).clip(max=1000).astype(np.float64)
    routing = Routing.even(3).rescaled(instances, work)
    loads = routing.loads(work)
    assert max(loads) <= work.sum() / instances + 2 * work.max()
    assert routing.rescaled(instances, work).moved_from(routing) <= SLOTS // 20, "it comes to rest"


def test_one_heavy_slot_has_an_instance_of_its_own() -> None:
    work = np.ones(SLOTS)
    work[7] = SLOTS
    routing = Routing.even(2).rescaled(2, work)
    loads = routing.loads(work)
    assert abs(loads[0] - loads[1]) < SLOTS * 0.1


def test_idle_slots_are_dealt_out_too() -> None:
    assert Routing.even(4).rescaled(8, np.zeros(SLOTS)).loads(np.ones(SLOTS)) == [SLOTS / 8] * 8


def test_a_table_survives_its_text() -> None:
    routing = Routing.even(3).rescaled(5).moved([(4000, 4096), (0, 3)], to=2)
    assert Routing.from_json(routing.to_json()) == routing
    assert routing.epoch == 2


@pytest.mark.parametrize("ranges", [(), (((0, 10),),), (((0, 4096),), ((5, 6),)), (((0, 4000),), ((4001, 4096),))])
def test_a_slot_without_one_owner_is_refused(ranges: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    with pytest.raises(InvariantError, match="every slot has one owner"):
        Routing(ranges)
