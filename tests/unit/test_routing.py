"""The routing table: changes are whole, small and even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.hot import levelled_routing, unit_work
from headrace.errors import InvariantError, QueryError
from headrace.ids import SLOTS, hash_at, position_of
from headrace.runtime.elastic import slot_ranges
from headrace.state.routing import Routing
from headrace.state.units import Units


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


CUTS = st.lists(st.floats(0, SLOTS, exclude_max=True).map(lambda at: position_of(hash_at(at))), max_size=6)


@given(CUTS, st.integers(1, 9), st.integers(0, 2**31))
def test_every_key_has_one_owner_also_where_slots_are_cut(cuts: list[float], instances: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    units = Units.cut_at(cuts)
    routing = Routing.even(2).rescaled(instances, random.random(len(units)), units)
    h = np.concatenate([random.integers(0, 2**64, 200, dtype=np.uint64), np.array([hash_at(cut) for cut in units.cuts], dtype=np.uint64)])
    owners = routing.owners[routing.units.of_hashes(h)]
    for at, instance in zip(h.tolist(), owners.tolist(), strict=True):
        assert [i for i, ranges in enumerate(routing.ranges) if any(hash_at(lo) <= at < hash_at(hi) for lo, hi in ranges)] == [instance]
    assert Routing.from_json(routing.to_json()) == routing
    assert sum(routing.loads(np.ones(SLOTS))) == pytest.approx(SLOTS)


@given(CUTS, st.integers(1, 9), st.integers(0, 2**31))
def test_side_by_side_each_instance_has_one_range(cuts: list[float], instances: int, seed: int) -> None:
    units = Units.cut_at(cuts)
    work = np.random.default_rng(seed).random(len(units))
    routing = Routing.even(2).rescaled(5).side_by_side(instances, work, units)
    assert all(len(ranges) == 1 for ranges in routing.ranges)
    loads = np.bincount(routing.owners_of(units), weights=work, minlength=instances)
    assert loads.max() <= work.sum() / instances + work.max()


def test_a_slot_of_two_heavy_keys_is_cut_between_them() -> None:
    work = np.ones(SLOTS)
    work[7] = 8 * SLOTS
    keys = {hash_at(7.3): 4.0 * SLOTS, hash_at(7.6): 3.9 * SLOTS}
    before = Routing.even(4)
    after = levelled_routing(before, 4, work, spreads=False, keys=keys)
    first, second = (int(after.owners[after.units.of_hashes(np.array([h], dtype=np.uint64))][0]) for h in keys)
    assert first != second
    loads = np.bincount(after.owners, weights=unit_work(after.units, work, keys))
    assert loads.max() < 4.5 * SLOTS, "the slot's two keys lie on two instances"
    assert after.moved_from(before) < SLOTS
    healed = levelled_routing(after, 4, np.ones(SLOTS), spreads=False, keys=keys)
    assert not healed.units.cuts, "a slot that is hot no longer is whole again"


def test_a_slot_of_one_key_is_not_cut() -> None:
    work = np.ones(SLOTS)
    work[7] = 8 * SLOTS
    assert not levelled_routing(Routing.even(4), 4, work, spreads=False, keys={hash_at(7.3): 8.0 * SLOTS}).units.cuts


def test_a_slot_of_many_keys_is_cut_evenly() -> None:
    work = np.zeros(SLOTS)
    work[7] = 1000.0
    after = levelled_routing(Routing.even(4), 4, work, spreads=False)
    assert after.units.cuts == (7.25, 7.5, 7.75), "neighbouring pieces of one owner are one"
    assert max(after.loads(work)) == pytest.approx(250)


def test_ends_that_no_hash_can_tell_apart_are_refused() -> None:
    assert slot_ranges((7.25, 7.5)) == [(7.25, 7.5)]
    assert slot_ranges((7 + 1e-15, 8)) == [(7.0, 8)]
    for each in ((1e-20, 2e-20), (7.5, 7.5 + 1e-16), (float("nan"), 3.0), (0.0, float("inf"))):
        with pytest.raises(QueryError, match="slots: numbers"):
            slot_ranges(each)
