"""Decisions and the routing they lead to."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control import elastic_manager
from headrace.control.decisions import Move, MoveSlots, Nothing, Rescale, ScaleIn, owners_after, routed
from headrace.control.observation import OperatorLoad
from headrace.errors import InvariantError
from headrace.ids import SLOTS, InstanceId
from headrace.state.routing import Routing
from tests.examples import examples
from tests.unit.control.model import NAME, load, observed


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_a_decision_leads_to_a_routing_with_one_owner_for_every_slot(cpu: list[float]) -> None:
    before = Routing.even(len(cpu))
    for decision in elastic_manager.decide(observed(load(cpu, before.table())), elastic_manager.ElasticManagerConfig()):
        if isinstance(decision, Rescale | MoveSlots):
            after = routed(before, decision)
            assert (after.table() == owners_after(before.table(), decision.moves)).all()
            assert after.instances == (decision.instances if isinstance(decision, Rescale) else len(cpu))
            assert after.epoch == before.epoch + 1


def test_without_moves_the_routing_deals_the_slots_out_itself() -> None:
    assert routed(Routing.even(3), Rescale(operator=NAME, instances=4, why="asked for")) == Routing.even(3).rescaled(4)


def test_an_instance_that_goes_must_be_empty() -> None:
    half = (Move(((2048, 3000),), InstanceId(0)),)
    with pytest.raises(InvariantError, match="after the moves all slots belong to instances 0 to 0"):
        routed(Routing.even(2), ScaleIn(operator=NAME, instances=1, moves=half, why="idle"))


def test_what_goes_in_and_out_is_frozen() -> None:
    seen = load([0.5, 0.5])
    with pytest.raises(ValueError, match="read-only"):
        seen.cpu[0] = 1.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        Nothing(why="all is well").why = "it is not"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu": np.zeros(0)},
        {"cpu": np.array([0.5, np.nan])},
        {"owners": np.full(SLOTS, 2)},
        {"owners": np.zeros(7, dtype=np.int64)},
        {"queue_rows": np.zeros(3)},
        {"zones": ("x",)},
    ],
)
def test_an_observation_that_does_not_fit_together_is_refused(wrong: dict[str, object]) -> None:
    fields: dict[str, object] = {"operator": NAME, "cpu": np.array([0.5, 0.5]), "owners": np.arange(SLOTS) % 2}
    with pytest.raises(InvariantError):
        OperatorLoad(**(fields | wrong))  # type: ignore[arg-type]
