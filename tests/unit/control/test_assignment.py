"""Slots dealt out to instances: none lost, few moved, loads close together."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.assignment import relieved
from headrace.control.decisions import moves_between, owners_after
from headrace.control.observation import loads_of
from headrace.ids import SLOTS
from headrace.state.levelling import levelled_owners, ranges_by_owner
from headrace.state.slots import ranges_of
from tests.examples import examples
from tests.unit.control.model import even, slot_costs


@settings(max_examples=examples(80), deadline=None)
@given(slot_costs(), st.integers(1, 60), st.integers(1, 60))
def test_rescaling_levels_the_load_and_keeps_every_slot(cost: np.ndarray, before: int, after: int) -> None:
    owners = levelled_owners(even(before), cost, after)
    loads = loads_of(owners, cost, after)
    assert owners.min() >= 0
    assert owners.max() < after
    assert loads.max() <= cost.sum() / after + 1.5 * cost.max() + 1e-6 * cost.sum()
    if after <= before:
        assert len(set(owners.tolist())) == after, "nobody who stays is left without slots"


@settings(max_examples=examples(40), deadline=None)
@given(slot_costs(), st.integers(1, 40), st.integers(1, 40))
def test_rescaling_keeps_neighbours_together(cost: np.ndarray, before: int, after: int) -> None:
    """Each range costs something at every batch; dealt out one by one, the heaviest first, there would be thousands."""
    owners = levelled_owners(even(before), cost, after)
    assert sum(map(len, ranges_by_owner(owners, after))) <= 3 * (before + after)


@given(st.integers(0, 2**31), st.integers(1, 50))
def test_ranges_are_those_of_each_owner_alone(seed: int, instances: int) -> None:
    rng = np.random.default_rng(seed)
    owners = np.repeat(rng.integers(0, instances, SLOTS // 8), 8)
    some = np.flatnonzero(rng.random(SLOTS) < 0.9)
    alone = tuple(ranges_of(np.flatnonzero(owners == instance)) for instance in range(instances))
    assert ranges_by_owner(owners, instances) == alone
    mine = tuple(ranges_of(some[owners[some] == instance]) for instance in range(instances))
    assert ranges_by_owner(owners, instances, some) == mine


def test_idle_slots_are_dealt_out_evenly() -> None:
    assert np.bincount(levelled_owners(even(4), np.zeros(SLOTS), 8)).tolist() == [512] * 8


def test_what_is_level_already_stays() -> None:
    assert (levelled_owners(even(8), np.ones(SLOTS), 8) == even(8)).all()


@settings(max_examples=examples(80), deadline=None)
@given(slot_costs(), st.integers(1, 60))
def test_a_sweep_never_makes_the_deviation_larger(cost: np.ndarray, instances: int) -> None:
    owners = even(instances)
    for _ in range(5):
        loads = loads_of(owners, cost, instances)
        owners = relieved(owners, cost, loads)
        assert loads_of(owners, cost, instances).std() <= loads.std() * (1 + 1e-9)


@given(st.integers(0, 2**31), st.integers(1, 50))
def test_moves_lead_from_one_table_to_the_other(seed: int, instances: int) -> None:
    before, after = np.random.default_rng(seed).integers(0, instances, (2, SLOTS))
    moves = moves_between(before, after)
    assert (owners_after(before, moves) == after).all()
    assert len({move.to for move in moves}) == len(moves), "one move per taker"
