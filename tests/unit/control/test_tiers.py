"""Borealis' three tiers: who looks when, and who acts when two would."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control import elastic_manager
from headrace.control.decisions import Decision, MoveSlots, Nothing, ScaleOut, Shed, owners_after
from headrace.control.tiers import TiersConfig, TiersMemory, decide
from headrace.errors import QueryError
from headrace.ids import SLOTS
from tests.examples import examples
from tests.unit.control.model import NAME, Loop, even, load, observed, slot_costs

CALM = TiersConfig(manager=elastic_manager.ElasticManagerConfig(lower=0.0))


def drive(
    loop: Loop, config: TiersConfig, seconds: int, memory: TiersMemory | None = None
) -> tuple[list[tuple[float, Decision]], TiersMemory]:
    memory, acts = memory or TiersMemory(), []
    for _ in range(seconds):
        decisions, memory = decide(loop.observe(), config, memory)
        loop.perform(decisions)
        acts += [(loop.at_s, decision) for decision in decisions if not isinstance(decision, Nothing)]
    return acts, memory


def test_each_tier_looks_in_its_own_period() -> None:
    memory, looks = TiersMemory(), []
    for second in range(61):
        _, memory = decide(observed(load([0.6, 0.6]), at_s=float(second)), TiersConfig(), memory)
        looks.append(memory.operators[NAME].looked_s)
    assert {int(local) for local, _, _ in looks} == set(range(61))
    assert {int(neighbourhood) for _, neighbourhood, _ in looks} == set(range(0, 61, 5))
    assert {int(whole) for _, _, whole in looks} == {0, 30, 60}


def test_a_skew_within_a_zone_is_mended_in_the_zone() -> None:
    loop = Loop(np.concatenate([np.full(2048, 0.8 / 2048), np.full(2048, 0.3 / 2048)]), 2)
    acts, _ = drive(loop, CALM, 29)
    assert [type(act) for _, act in acts] == [MoveSlots]
    assert acts[0][0] == 6.0, "at the neighbourhood's first look"
    assert acts[0][1].why.startswith("neighbourhood: Utilisation of zone 'x' deviates")


def test_no_slot_leaves_its_zone_by_the_neighbourhood() -> None:
    cpu = [0.9, 0.1, 0.5, 0.2]
    (decision,), _ = decide(observed(load(cpu, zones=("x", "y", "x", "y"))), CALM, _due_now(neighbourhood=True))
    assert isinstance(decision, MoveSlots)
    owners = owners_after(even(4), decision.moves)
    assert set(owners[even(4) == 0]) == {0, 2}
    assert (owners[even(4) == 1] == 1).all(), "the other zone is balanced enough"


def _due_now(neighbourhood: bool = False, whole: bool = False) -> TiersMemory:
    far = float("-inf")
    _, memory = decide(observed(load([0.5] * 4), at_s=-1.0), CALM, TiersMemory())
    state = memory.operators[NAME]
    looked = (state.looked_s[0], far if neighbourhood else state.looked_s[1], far if whole else state.looked_s[2])
    return TiersMemory({NAME: type(state)(looked)})


def test_when_two_would_act_the_wider_one_does() -> None:
    skewed = observed(load([1.0, 0.9, 1.0, 0.8]))
    (alone,), _ = decide(observed(load([0.9, 0.3, 0.5, 0.2])), CALM, _due_now(neighbourhood=True))
    assert isinstance(alone, MoveSlots)
    (both,), _ = decide(skewed, CALM, _due_now(neighbourhood=True, whole=True))
    assert isinstance(both, ScaleOut)
    assert both.why.startswith("global: Utilisation 92.5% > 90%: scale out 4 → ")


def test_an_overload_that_stays_calls_the_next_tier_before_its_time() -> None:
    loop = Loop(np.full(SLOTS, 3.0 / SLOTS), 2)
    acts, _ = drive(loop, TiersConfig(), 60)
    first_s, first = acts[0]
    assert isinstance(first, ScaleOut)
    assert first_s < 15, "not after half a minute"
    assert first.why.startswith("global, called by neighbourhood: ")
    assert loop.loads().max() < 0.9


def test_after_a_move_nobody_acts_until_the_reports_are_new() -> None:
    busy = load([1.0, 1.0])
    memory = _due_now(whole=True)
    acts = []
    for second in range(6):
        (decision,), memory = decide(observed(busy, at_s=float(second)), TiersConfig(), memory)
        acts.append(type(decision).__name__)
    assert acts[:5] == ["ScaleOut", "Nothing", "Nothing", "Nothing", "Nothing"]


def test_rows_are_shed_only_where_that_is_allowed_and_only_until_the_query_has_grown() -> None:
    for allowed in (False, True):
        loop = Loop(np.full(SLOTS, 4.0 / SLOTS), 2)
        acts, _ = drive(loop, TiersConfig(shed=allowed), 90)
        shed = [act for _, act in acts if isinstance(act, Shed)]
        assert bool(shed) == allowed
        assert (loop.keep == 1).all()
        if allowed:
            assert acts[0][0] == 1.0, "relief comes at once"
            assert shed[0].keep == pytest.approx(0.45), "half of the rows is what an instance can take, at 0.9 of its time"
            assert [act.keep for act in shed[-2:]] == [1.0, 1.0]


def test_what_is_shed_does_not_hide_the_load_from_the_wider_tiers() -> None:
    loop = Loop(np.full(SLOTS, 4.0 / SLOTS), 2)
    drive(loop, TiersConfig(shed=True), 90)
    assert loop.instances >= 5


@settings(max_examples=examples(30), deadline=None)
@given(slot_costs(total_max=8.0), st.integers(1, 12), st.booleans(), st.sampled_from(["x", "xy", "xyz"]))
def test_a_steady_load_comes_to_rest(cost: np.ndarray, instances: int, shed: bool, zones: str) -> None:
    loop = Loop(cost, instances)
    loop.zones = zones
    config = TiersConfig(shed=shed)
    _, memory = drive(loop, config, 300)
    acts, _ = drive(loop, config, 120, memory)
    assert acts == []


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(QueryError, match="local_s <= neighbourhood_s <= global_s"):
        TiersConfig(neighbourhood_s=60.0)
