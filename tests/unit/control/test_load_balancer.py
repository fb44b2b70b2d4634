"""StreamCloud's load balancer."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.decisions import MoveSlots, Nothing, owners_after
from headrace.control.load_balancer import LoadBalancerConfig, decide
from headrace.control.observation import loads_of
from headrace.errors import QueryError
from headrace.ids import SLOTS
from tests.examples import examples
from tests.unit.control.model import Model, even, load, observed, slot_costs


def test_balanced_instances_are_left_alone() -> None:
    (decision,) = decide(observed(load([0.6, 0.55, 0.65])), LoadBalancerConfig())
    assert isinstance(decision, Nothing)
    assert "Utilisation deviates by 4.1%, at most 10%" in decision.why


def test_the_most_loaded_gives_its_heaviest_slots_to_the_least_loaded() -> None:
    rows = np.ones(SLOTS)
    rows[:4] = 400
    (decision,) = decide(observed(load([0.9, 0.5, 0.1], rows=rows)), LoadBalancerConfig())
    assert isinstance(decision, MoveSlots)
    assert {move.to for move in decision.moves} == {2}
    assert sum(hi - lo for move in decision.moves for lo, hi in move.slots if lo < 4) >= 1, "few heavy slots instead of many light ones"


def test_one_slot_that_is_too_heavy_for_anybody_is_not_passed_round() -> None:
    rows = np.zeros(SLOTS)
    rows[0] = 1000
    (decision,) = decide(observed(load([0.9, 0.0], rows=rows)), LoadBalancerConfig())
    assert isinstance(decision, Nothing)
    assert "no move lowers that by 5%" in decision.why


def test_lighter_slots_leave_an_instance_with_a_hot_one() -> None:
    rows = np.ones(SLOTS)
    rows[0] = 3 * SLOTS
    (decision,) = decide(observed(load([0.9, 0.1], rows=rows)), LoadBalancerConfig())
    assert isinstance(decision, MoveSlots)
    assert not any(lo == 0 for move in decision.moves for lo, _ in move.slots)


def test_a_gain_below_the_least_is_not_worth_it() -> None:
    rows = np.zeros(SLOTS)
    rows[:2] = 1.0, 0.3  # Moving the second takes the deviation from 0.40 to 0.22.
    skewed = observed(load([0.8, 0.0], rows=rows))
    assert isinstance(decide(skewed, LoadBalancerConfig(gain_min=0.4))[0], MoveSlots)
    assert isinstance(decide(skewed, LoadBalancerConfig(gain_min=0.5))[0], Nothing)


@pytest.mark.parametrize(("mean", "deviation"), [(2000, 1000), (4000, 1000), (6000, 1000), (8000, 1000), (5000, 100), (5000, 25)])
def test_fig_20_a_shifting_key_distribution_stays_within_the_imbalance_allowed(mean: float, deviation: float) -> None:
    """15 instances, 10,000 phone numbers drawn from a normal distribution, hashed to slots."""
    rng = np.random.default_rng(7)
    slot_of_key = rng.integers(0, SLOTS, 10_000)
    calls = rng.normal(mean, deviation, 150_000).round().clip(0, 9_999).astype(np.int64)
    cost = np.bincount(slot_of_key[calls], minlength=SLOTS) / 150_000 * 15 * 0.6
    model = Model(cost, 15)
    for _ in range(5):
        model.perform(decide(model.observe(), LoadBalancerConfig()))
    assert model.loads().std() <= 0.1


@settings(max_examples=examples(60), deadline=None)
@given(slot_costs(), st.integers(1, 40))
def test_a_steady_load_comes_to_rest(cost: np.ndarray, instances: int) -> None:
    model = Model(cost, instances)
    deviations, saturated = [model.loads().std()], model.loads().max() > 1
    for _ in range(60):
        if not model.perform(decide(model.observe(), LoadBalancerConfig())):
            break
        deviations.append(model.loads().std())
    assert not model.perform(decide(model.observe(), LoadBalancerConfig())), "it stays at rest"
    # An instance that uses all its CPU hides how much more it needs, and so what a plan will bring.
    if not saturated:
        assert all(b < a for a, b in itertools.pairwise(deviations)), "every plan is better than the last"


@settings(max_examples=examples(60), deadline=None)
@given(slot_costs(total_max=5.0), st.integers(6, 30))
def test_the_deviation_promised_is_the_one_that_comes(cost: np.ndarray, instances: int) -> None:
    before = load(loads_of(even(instances), cost, instances), rows=cost * 100)
    for decision in decide(observed(before), LoadBalancerConfig()):
        if isinstance(decision, MoveSlots):
            after = loads_of(owners_after(before.owners, decision.moves), cost, instances).std()
            assert decision.why.endswith(f"(expected {after:.1%})")
            assert after < before.cpu.std() * 0.95


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(QueryError, match="wanted gain_min in"):
        LoadBalancerConfig(gain_min=0)
