"""Stages that run one after another: the query is as busy as all of them together, and the largest share grows first."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from headrace.control import bottleneck, elastic_manager, rates
from headrace.control.batch_report import BatchReport, InstanceWork, sources_of
from headrace.control.bottleneck import BottleneckConfig, BottleneckMemory
from headrace.control.critical_path import fixed_s, sized
from headrace.control.decisions import Nothing, Rescale, ScaleIn, ScaleOut
from headrace.control.elastic_manager import ElasticManagerConfig
from headrace.control.observation import Observation, Path
from headrace.control.observing import Batch, observe
from headrace.ids import OperatorId, Version
from headrace.state.routing import Routing

SLOTS_WITH_ROWS = tuple((slot, 10) for slot in range(0, 4096, 41))
A, B, C = (OperatorId(name) for name in "abc")


def batch(version: int, begin_s: float, busy: dict[OperatorId, tuple[float, ...]], around_s: float, rest_s: float, **other: Any) -> Batch:
    """A batch whose stages run one after another. `around_s` is scan and combine, `rest_s` planning and committing."""
    names = list(busy)
    tasks = tuple(InstanceWork(op, at, 1000, 1000, s, 7, SLOTS_WITH_ROWS, "1") for op, each in busy.items() for at, s in enumerate(each))
    work_s = around_s + sum(max(each) for each in busy.values())
    return Batch.of(
        BatchReport(
            version=Version(version),
            replayed=False,
            begin_s=begin_s,
            end_s=begin_s + work_s + rest_s,
            instances=tasks,
            routing={op: Routing.even(len(each)) for op, each in busy.items()},
            inputs={op: (names[at - 1],) if at else (sources_of(op),) for at, op in enumerate(names)},
            rows_left=other.get("left", 0.0),
            trigger_s=other.get("trigger_s", 0.0),
            work_s=work_s,
        )
    )


def falling_behind(share: float, operators: tuple[OperatorId, ...], count: int = 8) -> list[Batch]:
    """Batches of which each operator takes this share of the time in which the rows came. They follow one another and grow."""
    found, begin_s, span_s = [], 0.0, 2.0
    for version in range(count):
        found.append(batch(version, begin_s, dict.fromkeys(operators, (share * span_s,)), 0.02 * span_s, 0.05))
        span_s = found[-1].end_s - begin_s
        begin_s = found[-1].end_s
    return found


def seen(batches: list[Batch], period_s: float = 2.0) -> Observation:
    observation = observe(batches, batches[-1].end_s, period_s)
    assert observation is not None
    return observation


def test_three_operators_one_after_another_that_fall_behind_are_not_scaled_in() -> None:
    """Each is busy 45% of the time, and batches grow from 3 s to 20 s. Each on its own would be scaled in."""
    batches = falling_behind(0.45, (A, B, C))
    took = [each.end_s - each.begin_s for each in batches]
    assert all(b > 1.2 * a for a, b in pairwise(took))
    assert took[-1] > 15
    observation = seen(batches)
    assert observation.path is not None
    assert observation.path.utilisation == pytest.approx(1.37, abs=0.03)
    alone = [elastic_manager.decide_one(load, ElasticManagerConfig()) for load in observation.operators]
    assert all(not isinstance(each, ScaleOut) for each in alone)
    together = elastic_manager.decide(observation, ElasticManagerConfig(instances_max=8))
    assert all(isinstance(each, ScaleOut) for each in together)
    assert "Utilisation 13" in together[0].why
    assert "delivery 1.7%" in together[0].why
    # With the sizes decided, the query keeps up.
    counts = [each.instances for each in together if isinstance(each, Rescale)]
    assert sum(0.45 / count for count in counts) + 0.02 <= 0.6


def test_the_other_policies_see_the_query_too() -> None:
    observation = seen(falling_behind(0.45, (A, B, C)))
    decisions, _memory = bottleneck.decide(observation, BottleneckConfig(reports=1), BottleneckMemory())
    assert [isinstance(each, ScaleOut) for each in decisions].count(True) == 1, "the one with the largest share"
    wanted = rates.decide(observation, rates.RatesConfig(instances_max=8))
    assert all(isinstance(each, ScaleOut) for each in wanted)


def test_the_largest_share_grows_and_what_would_not_help_does_not() -> None:
    batches = [batch(at, 2.0 * at, {A: (1.7,), B: (0.02,)}, 0.3, 0.0) for at in range(5)]
    decisions = elastic_manager.decide(seen(batches), ElasticManagerConfig(instances_max=4))
    assert isinstance(decisions[0], ScaleOut)
    assert decisions[0].operator == A
    assert isinstance(decisions[1], Nothing)
    assert "b has 1.0% of the path" in decisions[1].why


def test_where_scan_and_combine_take_the_time_no_operator_grows() -> None:
    batches = [batch(at, 2.0 * at, {A: (0.03,)}, 1.9 + 0.05 * (at % 2), 0.02) for at in range(6)]
    (decision,) = elastic_manager.decide(seen(batches), ElasticManagerConfig(instances_max=4))
    assert isinstance(decision, Nothing)
    assert "scan, combine and delivery 9" in decision.why


def test_an_operator_that_is_busy_2_percent_of_the_time_reads_2_percent_if_rows_are_left() -> None:
    batches = [batch(at, 1.0 * at, {A: (0.80,), B: (0.02,)}, 0.08, 0.10, left=1000) for at in range(6)]
    observation = seen(batches)
    loads = {load.operator: float(load.cpu[0]) for load in observation.operators}
    assert loads[B] == pytest.approx(0.024, abs=0.005)
    assert loads[A] > 0.9
    assert observation.path is not None
    assert observation.path.utilisation == pytest.approx(1.0)


def test_operators_in_jobs_of_their_own_share_the_time_that_passed() -> None:
    """Both work for 0.8 s in one second, because their jobs run at the same time."""
    found = []
    for at in range(5):
        one = batch(at, 1.0 * at, {A: (0.8,), B: (0.8,)}, 0.0, 0.0)
        found.append(Batch(one.version, 1.0 * at, 1.0 * at + 1, one.operators, one.inputs, work_s=0.9))
    path = seen(found).path
    assert path is not None
    assert path.utilisation == pytest.approx(0.9)


@pytest.mark.parametrize("trigger_s", [0.0, 0.5])
def test_small_batches_leave_room_to_scale_in_whatever_a_batch_costs(trigger_s: float) -> None:
    batches = [batch(at, 0.5 * at, {A: (0.01, 0.01), B: (0.01, 0.01)}, 0.08, 0.12, trigger_s=trigger_s) for at in range(9)]
    decisions = elastic_manager.decide(seen(batches), ElasticManagerConfig(instances_max=4))
    assert all(isinstance(each, ScaleIn) and each.instances == 1 for each in decisions)


def test_after_a_decision_a_steady_load_rests() -> None:
    """Whatever is decided for a load is the right size for it: the next decision changes nothing."""
    for share in (0.1, 0.3, 0.45, 0.8, 1.5):
        path, work, now = Path(0.05, {A: share, B: share / 3}), {A: share, B: share / 3}, {A: 1, B: 1}
        config = ElasticManagerConfig(instances_max=16)
        for _ in range(3):
            if config.lower <= path.utilisation <= config.upper:
                break
            after = sized(path, work, now, config.target, (1, 16))
            if dict(after.instances) == now:
                break
            assert now == {A: 1, B: 1}, "one decision is enough"
            now = dict(after.instances)
            path = Path(0.05, {name: work[name] / count for name, count in now.items()})


def test_the_fixed_cost_is_what_a_batch_without_rows_would_take() -> None:
    rows = [1000.0, 5000.0, 20_000.0]
    assert fixed_s(rows, [0.15 + 1e-5 * each for each in rows]) == pytest.approx(0.15)
    assert fixed_s(rows, [0.4, 0.1, 0.2]) <= 0.1, "never more than a batch has taken"
    assert fixed_s([], []) == 0.0


def test_rows_that_were_dropped_count_as_load() -> None:
    """Half of the rows of `a` were dropped, and it was busy 45% of the time. It is to be sized for all of them."""
    tasks = tuple(InstanceWork(op, 0, 1000, 1000, 0.45, 7, SLOTS_WITH_ROWS, "1") for op in (A, B))
    routing = {op: Routing.even(1) for op in (A, B)}
    inputs = {op: (sources_of(op),) for op in (A, B)}
    reports = [
        BatchReport(Version(at), False, at, at + 1.0, tasks, routing, inputs, work_s=0.92, offered={A: 2.0, B: 1.0}) for at in range(5)
    ]
    observation = seen([Batch.of(each) for each in reports])
    assert observation.path is not None
    assert observation.path.operators == {A: pytest.approx(0.9), B: pytest.approx(0.45)}
    assert observation.path.around == pytest.approx(0.0)
    decisions = elastic_manager.decide(observation, ElasticManagerConfig(instances_max=8))
    sizes = [each.instances for each in decisions if isinstance(each, ScaleOut)]
    assert sizes == [3, 2], "0.9 / 3 + 0.45 / 2 is within the target of 0.6"
