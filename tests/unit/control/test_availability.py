"""Availability (Borealis 5.2): checkpoint scheduling in idle time, and backups away from the worst point of failure.

What comes of the schedules over time, the paper's Fig. 9, is in `tests/unit/sim/test_borealis.py`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.availability.backups import BackupConfig, Burden, reassign, reassigned
from headrace.control.availability.scheduling import FIRST, ScheduleConfig, next_task
from headrace.control.availability.units import HaUnit, recovery_times_s
from headrace.control.network import Node
from headrace.errors import QueryError
from tests.examples import examples

NODES = [Node(name) for name in "abcd"]


def test_the_capture_that_saves_most_per_second_is_done_first() -> None:
    units = [HaUnit("large", "a", "b", redo_s=10, capture_s=5), HaUnit("cheap", "a", "b", redo_s=6, capture_s=1)]
    task, _ = next_task("a", units, NODES)
    assert task is not None
    assert (task.kind, task.units) == ("capture", ("cheap",))


def test_the_slowest_backup_is_helped_before_a_better_ratio_elsewhere() -> None:
    units = [
        HaUnit("u1", "a", "b", redo_s=4, capture_s=2),
        HaUnit("u2", "a", "b", redo_s=4, capture_s=2),
        HaUnit("v", "a", "c", redo_s=5, capture_s=1),
    ]
    task, _ = next_task("a", units, NODES)
    assert task is not None
    assert task.units == ("u1",)


def test_a_slow_server_counts_as_slow() -> None:
    nodes = [Node("a"), Node("b"), Node("c", capacity=0.25)]
    units = [HaUnit("u", "a", "b", redo_s=4, capture_s=1), HaUnit("v", "a", "c", redo_s=2, capture_s=1)]
    task, _ = next_task("a", units, nodes)
    assert task is not None
    assert task.units == ("v",)


def test_a_paste_for_a_primary_that_would_wait_longer_comes_before_the_own_capture() -> None:
    units = [HaUnit("mine", "a", "b", redo_s=2, capture_s=0.1), HaUnit("theirs", "c", "a", paste_s=3, redo_s=1)]
    task, _ = next_task("a", units, NODES)
    assert task is not None
    assert (task.kind, task.units) == ("paste", ("theirs",))
    assert "4 s for c" in task.reason


def test_pastes_help_the_unit_with_the_largest_recovery_load() -> None:
    units = [HaUnit("small", "c", "a", paste_s=2), HaUnit("large", "c", "a", paste_s=1, redo_s=5)]
    task, _ = next_task("a", units, NODES)
    assert task is not None
    assert task.units == ("large",)


def test_a_capture_that_costs_more_to_paste_than_it_saves_is_not_done() -> None:
    assert next_task("a", [HaUnit("u", "a", "b", redo_s=1, capture_s=2)], NODES) == (None, FIRST)


def test_round_robin_takes_all_tasks_in_turn() -> None:
    units = [HaUnit(name, "a", "b", redo_s=2, capture_s=1) for name in ("u1", "u2", "u3")] + [HaUnit("v", "c", "a", paste_s=1)]
    turn, done = FIRST, []
    for _ in range(6):
        task, turn = next_task("a", units, NODES, ScheduleConfig(method="round-robin"), turn)
        assert task is not None
        done.append((task.kind, *task.units))
    assert done == [("capture", "u1"), ("capture", "u2"), ("capture", "u3"), ("paste", "v"), ("capture", "u1"), ("capture", "u2")]


def test_whole_checkpoints_capture_everything_when_the_interval_is_over() -> None:
    config = ScheduleConfig(method="whole", interval_s=10)
    young = [HaUnit(name, "a", "b", redo_s=1, capture_s=1, age_s=9) for name in ("u", "v")]
    assert next_task("a", young, NODES, config)[0] is None
    task, _ = next_task("a", [replace(unit, age_s=10) for unit in young], NODES, config)
    assert task is not None
    assert task.units == ("u", "v")


def random_units(seed: int, servers: int, count: int) -> tuple[list[HaUnit], list[Node]]:
    rng = np.random.default_rng(seed)
    nodes = [Node(f"s{at}", capacity=float(rng.uniform(0.5, 2)), zone=f"z{at // 2}") for at in range(servers)]
    units = []
    for at in range(count):
        primary = int(rng.integers(servers))
        others = [other for other in range(servers) if nodes[other].zone != nodes[primary].zone]
        backup = int(rng.choice(others))
        units.append(HaUnit(f"u{at}", f"s{primary}", f"s{backup}", redo_s=float(rng.exponential()), paste_s=float(rng.exponential(0.2))))
    return units, nodes


@settings(max_examples=examples(80), deadline=None)
@given(st.integers(0, 2**31), st.integers(3, 8), st.integers(1, 40))
def test_reassigning_on_a_steady_load_comes_to_rest_and_never_lengthens_the_longest_recovery(seed: int, servers: int, count: int) -> None:
    units, nodes = random_units(seed, servers, count)
    zone = {node.name: node.zone for node in nodes}
    for _ in range(300):
        changes = reassign(units, nodes)
        if not changes:
            return
        after = reassigned(units, changes)
        assert max(recovery_times_s(after, nodes).values()) <= max(recovery_times_s(units, nodes).values()) + 1e-9
        assert Burden.of(after, nodes).unevenness < Burden.of(units, nodes).unevenness
        assert all(zone[unit.primary] != zone[unit.backup] for unit in after)
        units = list(after)
    pytest.fail("it never came to rest")


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.integers(3, 6), st.integers(1, 12))
def test_the_gain_of_a_change_is_what_the_unevenness_falls_by(seed: int, servers: int, count: int) -> None:
    units, nodes = random_units(seed, servers, count)
    burden = Burden.of(units, nodes)
    for change in reassign(units, nodes, BackupConfig(changes_max=1)):
        unit = next(each for each in units if each.name == change.unit)
        after = Burden.of(reassigned(units, [change]), nodes)
        assert burden.gain(unit, change.target) == pytest.approx(burden.unevenness - after.unevenness)
        assert burden.wait_s(unit, change.target) == pytest.approx(
            after.pairs_s[unit.primary, change.target] / after.capacity[change.target]
        )


def test_one_backup_for_all_units_of_a_server_becomes_many() -> None:
    nodes = [Node(f"s{at}") for at in range(5)]
    units = [HaUnit(f"u{at}.{number}", f"s{at}", f"s{(at + 1) % 5}", redo_s=1) for at in range(5) for number in range(16)]
    assert max(recovery_times_s(units, nodes).values()) == 16
    for _ in range(100):
        units = list(reassigned(units, reassign(units, nodes, BackupConfig(gain_min=0.001))))
    assert max(recovery_times_s(units, nodes).values()) <= 6, "4 would be even"


def test_a_server_that_backs_up_too_much_is_relieved() -> None:
    nodes = [Node(name) for name in "abcd"]
    units = [HaUnit(f"{name}{at}", name, "a", redo_s=0.5) for name in "bcd" for at in range(4)] + [HaUnit("a0", "a", "b", redo_s=9)]
    changes = reassign(units, nodes)
    assert {change.source for change in changes} == {"a"}
    assert "a would take 9 s" in changes[0].reason


@pytest.mark.parametrize("servers", [5, 100])
def test_the_worst_point_of_failure_is_relieved_however_many_other_servers_there_are(servers: int) -> None:
    nodes = [Node(f"s{at}") for at in range(servers)]
    others = [
        HaUnit(f"o{at}.{number}", f"s{at}", f"s{(at + 1 + number) % servers}", redo_s=1) for at in range(1, servers) for number in range(3)
    ]
    worst = [HaUnit(f"w{number}", "s0", "s1", redo_s=1) for number in range(8)]
    changes = reassign(worst + others, nodes)
    assert changes
    assert {change.unit[0] for change in changes} == {"w"}


@pytest.mark.parametrize("wrong", [{"method": "best"}, {"interval_s": 0}, {"paste_factor": -1}, {"gain_min_s": -1}])
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(QueryError, match=next(iter(wrong))):
        ScheduleConfig(**wrong)


def test_a_backup_on_the_primary_itself_is_refused() -> None:
    with pytest.raises(QueryError, match="a backup that is not its primary"):
        HaUnit("u", "a", "a")
    with pytest.raises(QueryError, match="servers among a, b, c, d"):
        next_task("a", [HaUnit("u", "a", "z")], NODES)
    with pytest.raises(QueryError, match="gain_min between 0 and 1"):
        BackupConfig(gain_min=0)
