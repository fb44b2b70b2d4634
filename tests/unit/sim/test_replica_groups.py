"""Replica groups, Fig. 1, and parts of it alone."""

from __future__ import annotations

import pytest

from headrace.control.replicas.model import HandOver, RangeId, ShipCopy
from headrace.sim.scenario import Result
from headrace.sim.scenarios import replica_groups
from headrace.sim.scenarios.replica_groups import COLOURS, OPTIONS, simulate

SHORT = dict(OPTIONS, at_s=5.0, after_s=30.0, state_bytes=5e8)


@pytest.fixture(scope="module")
def fig_1() -> Result:
    return replica_groups.run(SHORT, seed=1)


def test_fig_1_a_failure_an_overload_and_a_new_node_at_once(fig_1: Result) -> None:
    differs = [(claim.what, claim.seen) for claim in fig_1.claims if claim.holds is False]
    assert differs == [("violet's replica", "on the third")], (
        "it was the primary and has the state already, so that nothing need be shipped"
    )
    assert fig_1.violations == ()


def test_fig_1_without_replicas_processing_waits_for_whole_states(fig_1: Result) -> None:
    seen = fig_1.figures
    assert seen["with.light"] == seen["with.handed_over"] == 2
    assert seen["without.light"] == 0
    assert seen["without.bytes_waited_for"] >= SHORT["state_bytes"]
    assert seen["with.caught_up_s"] < seen["without.caught_up_s"] / 2


def test_fig_1_all_is_decided_at_one_report_and_then_there_is_rest() -> None:
    trace, groups = simulate(SHORT, True, seed=1)
    decided = {each.decided_s for each in groups.done}
    assert decided == {6.0}, "the failure is noticed after a second, with the overload"
    assert {type(each.change) for each in groups.done} == {HandOver, ShipCopy}
    assert all(len(groups.replicas[name]) == 1 for name in COLOURS)
    hosts = {groups.primaries[RangeId("yellow")], *groups.replicas[RangeId("yellow")]}
    assert len(hosts) == 2
    assert trace.violations == ()


@pytest.mark.extra
def test_small_states_make_the_difference_small() -> None:
    seen = replica_groups.run(dict(SHORT, state_bytes=1e6), seed=1).figures
    assert seen["without.latency_s"] < seen["with.latency_s"] + 1.0
