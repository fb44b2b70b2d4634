"""What happens to decisions: cool-down, dry run, override; and the log, in which repeated decisions are one entry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.control.decisions import Decision, Move, MoveSlots, Nothing, ReleaseExecutors, RequestExecutors, ScaleIn, ScaleOut, Shed
from headrace.control.elastic import Elastic
from headrace.control.governor import ENTRIES_MAX, Entry, Governor, Outcome, entry_of, logged
from headrace.ids import InstanceId, OperatorId

SUM, JOIN = OperatorId("sum"), OperatorId("join")
GROW = ScaleOut(operator=SUM, instances=4, why="busy")
SHRINK = ScaleIn(operator=SUM, instances=1, why="idle")
MOVE = MoveSlots(operator=SUM, moves=(Move(((0, 10), (20, 25)), InstanceId(1)),), why="uneven")
DROP = Shed(operator=SUM, instance=InstanceId(1), keep=0.75, why="overloaded")
MORE = RequestExecutors(total=3, why="growing")
LESS = ReleaseExecutors(count=1, why="idle")
STAY = Nothing(operator=SUM, why="all is well")


def test_a_change_is_followed_by_a_cool_down_of_that_operator() -> None:
    governor = Governor(Elastic(cooldown_s=10)).changed(SUM, 100.0)
    assert governor.judge(SHRINK, 109.9) is Outcome.COOLING_DOWN
    assert governor.judge(MOVE, 109.9) is Outcome.COOLING_DOWN
    assert governor.judge(replace(SHRINK, operator=JOIN), 101.0) is Outcome.PERFORMED
    assert governor.judge(SHRINK, 110.0) is Outcome.PERFORMED


def test_an_operator_changed_by_hand_is_left_alone_until_it_is_given_back() -> None:
    governor = Governor(Elastic()).override([SUM])
    assert governor.judge(GROW, 1e9) is Outcome.OVERRIDDEN
    assert governor.judge(replace(GROW, operator=JOIN), 1e9) is Outcome.PERFORMED
    assert governor.resume([SUM]).judge(GROW, 1e9) is Outcome.PERFORMED


def test_a_dry_run_performs_nothing() -> None:
    governor = Governor(Elastic(dry_run=True))
    assert {governor.judge(each, 0.0) for each in (GROW, SHRINK, MOVE)} == {Outcome.DRY_RUN}
    assert governor.judge(STAY, 0.0) is Outcome.STEADY


def test_a_decision_that_no_running_query_performs_is_not_taken_for_one_to_change_nothing() -> None:
    assert {Governor(Elastic()).judge(each, 0.0) for each in (DROP, MORE, LESS)} == {Outcome.UNSUPPORTED}


@pytest.mark.parametrize(
    ("decision", "what", "instances"),
    [
        (GROW, "scale out", 4),
        (SHRINK, "scale in", 1),
        (MOVE, "move 15 slots", 2),
        (DROP, "keep 75.0% of the rows of instance 1", 2),
        (MORE, "have 3 executors", 2),
        (LESS, "release 1 executor", 2),
        (STAY, "nothing", 2),
    ],
)
def test_an_entry_says_what_was_decided_and_why(decision: Decision, what: str, instances: int) -> None:
    entry = entry_of(decision, Outcome.PERFORMED, 2, 5.0)
    assert (entry.what, entry.instances_before, entry.instances, entry.why) == (what, 2, instances, decision.why)
    assert Entry.from_json(entry.to_json()) == entry


def test_the_same_again_and_again_is_one_entry_also_between_those_of_others() -> None:
    log: tuple[Entry, ...] = ()
    for at in range(100):
        for name in (SUM, JOIN):
            log = logged(log, entry_of(replace(STAY, operator=name, why=f"CPU 0.{at:02d}"), Outcome.STEADY, 2, float(at)))
    assert [(entry.operator, entry.times, entry.at_s, entry.last_s, entry.why) for entry in log] == [
        (SUM, 100, 0.0, 99.0, "CPU 0.99"),
        (JOIN, 100, 0.0, 99.0, "CPU 0.99"),
    ]


def test_performed_changes_are_entries_each_and_a_dry_run_s_if_they_differ() -> None:
    log: tuple[Entry, ...] = ()
    for at in range(3):
        log = logged(log, entry_of(GROW, Outcome.PERFORMED, 2, float(at)))
    assert len(log) == 3
    for wanted in (4, 4, 5):
        log = logged(log, entry_of(replace(GROW, instances=wanted), Outcome.DRY_RUN, 2, 9.0))
    assert [(entry.instances, entry.times) for entry in log[3:]] == [(4, 2), (5, 1)]


def test_the_log_forgets_its_oldest_entries() -> None:
    log: tuple[Entry, ...] = ()
    for at in range(ENTRIES_MAX + 10):
        log = logged(log, entry_of(GROW, Outcome.PERFORMED, 2, float(at)))
    assert (len(log), log[0].at_s) == (ENTRIES_MAX, 10.0)
