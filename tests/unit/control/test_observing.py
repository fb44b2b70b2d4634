"""What policies observe of micro-batches: the utilisation of instances, relative to the time available."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headrace.control.batch_report import BatchReport, InstanceWork, sources_of
from headrace.control.observing import DRAIN_S, UTILISATION_MAX, Batch, observe
from headrace.ids import OperatorId, Version
from headrace.state.recreation import Recreation
from headrace.state.routing import Routing
from tests.unit.control.engine import NAME, Engine

HALVES = Routing.even(2)


def batch(version: int, begin_s: float, end_s: float, busy: tuple[float, ...], **other: Any) -> Batch:
    """A batch in which every instance took a hundred rows."""
    tasks = tuple(InstanceWork(NAME, at, 100, 50, each, 7, ((2048 * (at % 2), 100),), "3") for at, each in enumerate(busy))
    report = BatchReport(
        version=Version(version),
        replayed=False,
        begin_s=begin_s,
        end_s=end_s,
        instances=tasks,
        routing={NAME: other.get("routing", HALVES)},
        inputs={NAME: (sources_of(NAME),)},
        rows_left=other.get("left", 0),
        trigger_s=other.get("trigger_s", 0.0),
    )
    return Batch.of(report)


def seen(batches: list[Batch], at_s: float | None = None, period_s: float = 1.0) -> Any:
    return observe(batches, batches[-1].end_s if at_s is None else at_s, period_s)


def test_the_pause_until_the_trigger_is_idle_time() -> None:
    # Batches of 0.6 s, of which instances work 0.4 s and 0.2 s, one a second.
    batches = [batch(at, at, at + 0.6, (0.4, 0.2), trigger_s=1.0) for at in range(6)]
    load = seen(batches, period_s=4.0).operators[0]
    assert load.cpu.tolist() == pytest.approx([0.4, 0.2])
    assert load.rows_in_per_s.tolist() == pytest.approx([100, 100])
    assert load.rows_out_per_s.tolist() == pytest.approx([50, 50])
    assert load.rows_per_slot[[0, 2048]].tolist() == pytest.approx([100, 100])
    assert load.hosts == ("3", "3")


def test_without_a_trigger_what_the_batch_does_besides_is_idle_time_of_instances() -> None:
    batches = [batch(at, at * 0.5, at * 0.5 + 0.5, (0.1, 0.2)) for at in range(9)]
    assert seen(batches, period_s=3.0).operators[0].cpu.tolist() == pytest.approx([0.2, 0.4])


def test_without_a_trigger_utilisation_follows_the_rate_and_not_the_batches() -> None:
    """A batch always follows a batch; four times the rows make instances about four times as busy, and at the limit fully."""

    def average(rate: float) -> float:
        engine = Engine(lambda _: rate, noise=0.0)
        batches = [Batch.of(engine.batch().report()) for _ in range(12)]
        observation = observe(batches, batches[-1].end_s, 2.0)
        assert observation is not None
        return float(observation.operators[0].cpu.mean())

    # 20 microseconds a row: 50,000 rows/s are all that one instance can do. Each batch costs its task 20 ms more.
    assert average(10_000) == pytest.approx(0.2, abs=0.06)
    assert average(40_000) == pytest.approx(0.8, abs=0.03)
    # What it would need, by what it has: batches double from one to the next.
    assert average(100_000) == pytest.approx(2.0, abs=0.1)


def test_where_batches_leave_rows_behind_the_busiest_instance_has_no_time_left() -> None:
    batches = [batch(at, at * 0.5, at * 0.5 + 0.5, (0.1, 0.2), left=1000 * at) for at in range(9)]
    observation = seen(batches, period_s=3.0)
    assert observation.operators[0].cpu.tolist() == pytest.approx([0.5, 1.0])
    # 6 batches took 1,200 rows in 3 s; another 5,000 came meanwhile, and 8,000 are to be worked off.
    assert observation.source_rows_per_s[sources_of(NAME)] == pytest.approx((1200 + 5000) / 3 + 8000 / DRAIN_S)


def test_rows_that_a_slow_trigger_leaves_behind_are_not_the_instances_fault() -> None:
    """maxFilesPerTrigger and a trigger limit the rate on purpose: more instances would not help."""
    batches = [batch(at, at, at + 0.5, (0.1, 0.2), left=1000, trigger_s=1.0) for at in range(9)]
    assert seen(batches, period_s=4.0).operators[0].cpu.max() < 0.3


def test_a_stream_that_went_quiet_is_idle() -> None:
    batches = [batch(at, at, at + 1, (0.9, 0.9)) for at in range(3)]
    assert seen(batches, at_s=3.9, period_s=1.0).operators[0].cpu.tolist() == [0.9, 0.9]
    quiet = seen(batches, at_s=4.0, period_s=1.0)
    assert quiet.operators[0].cpu.tolist() == [0.0, 0.0]
    assert quiet.source_rows_per_s == {sources_of(NAME): 0.0}


def test_only_what_the_present_routing_did_is_seen_and_its_first_batch_is_not() -> None:
    old = [batch(at, at, at + 1, (0.9, 0.9)) for at in range(5)]
    new = HALVES.rescaled(3)
    then = [batch(5 + at, 5 + at, 6 + at, (0.8 if at == 0 else 0.3,) * 3, routing=new) for at in range(3)]
    assert seen([*old, then[0]]) is None
    after = seen([*old, *then], period_s=2.0)
    assert after.operators[0].cpu.tolist() == pytest.approx([0.3] * 3)
    assert seen([*old, *then], period_s=2.1) is None


def test_a_batch_that_was_held_up_counts_by_the_period_and_not_alone() -> None:
    batches = [batch(at, at, at + 0.5, (0.2, 0.2)) for at in range(6)]
    batches.append(batch(6, 6, 10, (4.0, 0.2)))
    assert seen(batches, period_s=5.0).operators[0].cpu.tolist() == pytest.approx([(4 * 0.2 + 4.0) / 5, 0.2])


def test_while_it_catches_up_a_query_is_as_busy_as_its_rows_will_make_it() -> None:
    """The batch before took ten seconds; its successor's five seconds of work are for the rows that came in those."""
    batches = [batch(0, 0, 1, (0.5, 0.5)), batch(1, 1, 11, (0.5, 0.5)), batch(2, 11, 17, (5.0, 5.0))]
    assert seen(batches, period_s=5.0).operators[0].cpu.tolist() == pytest.approx([0.5, 0.5])


def test_while_windows_are_recreated_both_sides_are_work_of_their_owners() -> None:
    moving = Routing(HALVES.ranges, 1, (Recreation(((0, 10),), 2, 1, 1, 0, 2, 6),))
    # Tasks: instance 0, instance 1, the old side (of an instance that is gone, done by 0), the new side (by 1).
    batches = [batch(at, at, at + 1, (0.1, 0.2, 0.3, 0.4), routing=moving) for at in range(3)]
    assert seen(batches).operators[0].cpu.tolist() == pytest.approx([0.4, 0.6])


def test_more_than_four_times_what_can_be_done_is_not_believed() -> None:
    assert seen([batch(at, at, at + 1, (9.0, 3.0)) for at in range(3)]).operators[0].cpu.tolist() == [UTILISATION_MAX, 3.0]


def test_what_an_operator_reads_from_others_is_not_offered_by_its_sources() -> None:
    first = batch(0, 0, 1, (0.5, 0.5))
    inputs = {NAME: (sources_of(NAME),), "next": (NAME, sources_of("next"))}
    two = [
        Batch(at, at, at + 1.0, (first.operators[0], _renamed(first, "next")), inputs)  # type: ignore[arg-type]
        for at in range(3)
    ]
    rates = seen(two).source_rows_per_s
    # Both take 200 rows a second; 100 of the second's come from the first.
    assert rates == {sources_of(NAME): pytest.approx(200), sources_of("next"): pytest.approx(100)}


def _renamed(source: Batch, name: str) -> Any:
    return replace(source.operators[0], operator=OperatorId(name), owners=np.zeros(4096, dtype=np.int64) + 1)
