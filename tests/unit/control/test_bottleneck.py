"""SEEP's bottleneck detector."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.bottleneck import BottleneckConfig, BottleneckMemory, decide
from headrace.control.decisions import Decision, Nothing, ScaleOut, owners_after
from headrace.control.observation import loads_of
from headrace.errors import QueryError
from headrace.ids import SLOTS
from tests.examples import examples
from tests.unit.control.model import Model, even, load, observed, slot_costs


def reports(*cpus: list[float], config: BottleneckConfig | None = None, every_s: float = 5.0) -> list[Decision]:
    memory, found = BottleneckMemory(), []
    for number, cpu in enumerate(cpus):
        (decision,), memory = decide(observed(load(cpu), at_s=number * every_s), config or BottleneckConfig(), memory)
        found.append(decision)
    return found


def test_a_single_report_is_no_bottleneck() -> None:
    assert all(isinstance(decision, Nothing) for decision in reports([0.9], [0.6], [0.9], [0.7]))


def test_two_reports_in_a_row_are() -> None:
    first, second = reports([0.3, 0.71], [0.3, 0.95])
    assert isinstance(first, Nothing)
    assert isinstance(second, ScaleOut)
    assert (second.instances, [move.to for move in second.moves]) == (3, [2])
    assert owners_after(even(2), second.moves)[:2048].max() == 0, "the idle instance keeps its slots"


def test_reports_that_come_too_often_do_not_count() -> None:
    decisions = reports([0.9], [0.9], [0.9], every_s=1.0)
    assert all(isinstance(decision, Nothing) for decision in decisions)
    assert "Only 1 s since the last report" in decisions[1].why


def test_after_a_split_counting_starts_again() -> None:
    memory, owners, instances = BottleneckMemory(), even(1), 1
    splits = []
    for number in range(6):
        (decision,), memory = decide(observed(load([0.9] * instances, owners), at_s=number * 5.0), BottleneckConfig(), memory)
        splits.append(isinstance(decision, ScaleOut))
        if isinstance(decision, ScaleOut):
            owners, instances = owners_after(owners, decision.moves), decision.instances
    assert splits == [False, True] * 3


def test_a_split_that_was_not_performed_is_decided_again_at_the_next_report() -> None:
    """A cool-down refuses it, for instance. SEEP's two reports in a row have been seen, and stay seen."""
    assert [isinstance(each, ScaleOut) for each in reports([0.9], [0.9], [0.9], [0.9])] == [False, True, True, True]
    assert [isinstance(each, ScaleOut) for each in reports([0.9], [0.9], [0.5], [0.9])] == [False, True, False, False]


def test_every_bottleneck_is_split_the_busiest_first_when_there_is_no_room_for_all() -> None:
    busy = [0.8, 0.95, 0.9]
    (_, decision) = reports(busy, busy)
    assert isinstance(decision, ScaleOut)
    assert decision.instances == 6
    (_, decision) = reports(busy, busy, config=BottleneckConfig(instances_max=4))
    assert isinstance(decision, ScaleOut)
    assert decision.instances == 4
    assert "split instance 1 (95.0%) into 2" in decision.why
    (_, decision) = reports(busy, busy, config=BottleneckConfig(instances_max=3))
    assert "the most allowed" in decision.why


def test_a_low_threshold_makes_more_parts_at_once() -> None:
    (decision,) = reports([0.9], config=BottleneckConfig(threshold=0.3, reports=1))
    assert isinstance(decision, ScaleOut)
    assert decision.instances == 3


def test_one_hot_slot_is_not_given_a_machine_for_nothing() -> None:
    rows = np.ones(SLOTS)
    rows[5] = 100 * SLOTS
    (decision,), _ = decide(observed(load([0.95], rows=rows)), BottleneckConfig(reports=1), BottleneckMemory())
    assert isinstance(decision, Nothing)
    assert "Instance 0 is above 70%, but one slot has over 90% of its load" in decision.why


def test_an_instance_of_one_slot_is_never_split_whatever_the_settings() -> None:
    owners = np.where(np.arange(SLOTS) == 9, 1, 0)
    (decision,), _ = decide(observed(load([0.2, 0.95], owners)), BottleneckConfig(reports=1, hot_slot_share=1.0), BottleneckMemory())
    assert isinstance(decision, Nothing)


def test_a_skewed_instance_is_cut_by_load_and_not_by_slots() -> None:
    rows = np.ones(SLOTS)
    rows[:100] = 100
    before = load([0.95], rows=rows)
    (decision,), _ = decide(observed(before), BottleneckConfig(reports=1), BottleneckMemory())
    assert isinstance(decision, ScaleOut)
    assert loads_of(owners_after(before.owners, decision.moves), before.slot_cpu(), 2) == pytest.approx([0.475, 0.475], abs=0.01)


@settings(max_examples=examples(60), deadline=None)
@given(slot_costs(), st.integers(1, 10))
def test_a_steady_load_comes_to_rest(cost: np.ndarray, instances: int) -> None:
    model, memory = Model(cost, instances), BottleneckMemory()
    quiet = 0
    for _ in range(100):
        before = model.instances
        decisions, memory = decide(model.observe(), BottleneckConfig(), memory)
        quiet = 0 if model.perform(decisions) else quiet + 1
        assert model.instances >= before
        if quiet > 4:
            break
    assert quiet > 4
    heaviest = np.zeros(model.instances)
    np.maximum.at(heaviest, model.owners, cost)
    over = model.loads() > 0.7
    assert (heaviest[over] >= 0.85 * model.loads()[over]).all(), "what is left over the threshold is a single slot"


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 0.9])
def test_fig_9_a_higher_threshold_takes_fewer_machines(threshold: float) -> None:
    def machines(threshold: float) -> int:
        model, memory = Model(np.full(SLOTS, 8.0 / SLOTS), 1), BottleneckMemory()
        for _ in range(40):
            decisions, memory = decide(model.observe(), BottleneckConfig(threshold=threshold), memory)
            model.perform(decisions)
        assert model.loads().max() <= threshold
        return model.instances

    assert machines(threshold) >= machines(threshold + 0.09)


@pytest.mark.parametrize("wrong", [{"threshold": 70}, {"reports": 0}, {"period_s": -1}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(QueryError, match="bottleneck detector: wanted"):
        BottleneckConfig(**wrong)  # type: ignore[arg-type]
