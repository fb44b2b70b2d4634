"""Floe's ring on the simulator: balance, scale out, and failures at the same moment."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.control.network import NodeId
from headrace.control.ring.messages import RingConfig, Ship
from headrace.control.ring.view import RingArc
from headrace.ids import SLOTS, OperatorId
from headrace.sim import model, workload
from headrace.sim.ring import Ring
from headrace.sim.scenarios import floe_balance, floe_failures, floe_hour
from headrace.sim.scenarios.floe_balance import WORDS_PER_S, simulate
from headrace.sim.scenarios.floe_failures import apart, blocks, fail
from headrace.sim.simulator import Simulator

SHORT = dict(floe_balance.OPTIONS, shift_s=10.0, after_s=30.0, words_per_s_max=9_000.0, ramp_s=40.0, tick_s=0.1, checkpoints_s="1 5")
FAILING = dict(floe_failures.OPTIONS, after_s=20.0, tick_s=0.1)


def test_fig_6_balances_around_the_ring_scales_out_and_replays_less_with_frequent_checkpoints() -> None:
    result = floe_balance.run(SHORT, seed=1)
    assert [(claim.what, claim.seen) for claim in result.claims if claim.holds is False] == []
    assert result.violations == ()
    assert result.figures["a.givers"] == 2, "the neighbour has no room, and hands on"
    assert result.figures["c.1.rows"] < result.figures["c.5.rows"]


def test_fig_6b_the_ring_shrinks_again_when_the_rate_falls() -> None:
    rate = workload.steps((0.0, 3_000.0), (5.0, 7_000.0), (25.0, 1_500.0))
    found = simulate(rate, 100.0, 3, RingConfig(nodes_min=2), seed=1, spare=6, tick_s=0.1)
    kinds = [change.kind for change in found.ring.changes]
    assert "scale out" in kinds
    assert "scale in" in kinds
    assert len(found.ring.nodes) == 2
    assert found.ring.settled()
    assert found.trace.violations == ()


@pytest.mark.parametrize("count", [1, 3])
def test_fig_8b_nodes_that_are_no_neighbours_fail_at_once_and_nothing_is_lost(count: int) -> None:
    places = apart(6, count, np.random.default_rng(count))
    found = fail(places, 6, 1, 0.3, FAILING, seed=1)
    assert found.lost_slots == 0
    assert found.whole
    assert 5.0 <= found.noticed_s <= 9.0, "2.5 checkpoints missed, and a question without an answer"
    assert found.replayed_s <= 2.0, "at most what came between two checkpoints"
    assert found.trace.violations == ()


@pytest.mark.parametrize("replicas", [1, 2])
def test_as_many_as_n_r_by_r_plus_1_may_fail_and_one_neighbour_more_may_not(replicas: int) -> None:
    assert len(blocks(6, replicas)) == 6 * replicas // (replicas + 1)
    best = fail(blocks(6, replicas), 6, replicas, 0.15, FAILING, seed=1)
    assert best.whole
    assert best.lost_slots == 0
    assert fail(tuple(range(replicas + 1)), 6, replicas, 0.15, FAILING, seed=1).lost_slots > 0


def test_the_same_seed_gives_the_same_trace() -> None:
    digests = [fail((1,), 4, 1, 0.3, FAILING, seed).trace.digest() for seed in (3, 3, 4)]
    assert digests[0] == digests[1] != digests[2]


def test_a_failure_is_over_only_when_the_rows_that_waited_for_the_take_over_are_processed() -> None:
    found = fail((1,), 4, 1, 0.4, FAILING, seed=1)
    # The dead node's 0.4 s of work per second wait for about 6 s. The taker has its own 0.4 to do besides.
    assert found.caught_up_s > 0.4 * found.noticed_s * 0.8
    assert found.caught_up_s > 2 * found.replayed_s


@pytest.mark.parametrize("dies", [False, True])
def test_a_shipment_whose_sender_dies_on_the_way_does_not_arrive(dies: bool) -> None:
    word = OperatorId("word")
    state = model.SimulatedState(bytes_per_row=100, bytes_max=1e6)
    plan = model.SimulationPlan(
        model.SimulatedQuery({"words": workload.constant(400.0)}, (model.SimulatedOperator(word, {"words": 1.0}, 1e-3, state=state),)),
        duration_s=20.0,
        instances={word: 4},
        machines=model.MachineModel(network_bytes_per_s=1e5),
        settings=model.SimulationSettings(recovery="none", replicas=0),
        faults=(model.Fault(6.0, machines=(1,)),) if dies else (),
    )
    ring = Ring(word, RingConfig(nodes_min=4))
    sim = Simulator(plan, seed=1, listeners=[ring])
    ring.attach(sim)
    # Half of 200,000 bytes take a second. Otherwise n3 holds no copy of n1.
    half = RingArc(0, SLOTS // 2)
    sim.clock.at(5.5, lambda: ring._post(sim, NodeId("n1"), NodeId("n3"), Ship(half, half, 999)))
    sim.run()
    assert (NodeId("n1") in ring.nodes[NodeId("n3")].holds) is not dies


@pytest.mark.parametrize("count", [1, 3, 6])
def test_fig_8b_a_slot_lost_with_any_number_of_failures_is_noticed(count: int) -> None:
    seen = dict.fromkeys([f"m{each}.{name}" for each in range(1, 7) for name in ("noticed_s", "replayed_s", "caught_up_s")], 1.0)
    seen |= {f"m{each}.lost": 0.0 for each in range(1, 7)} | {f"most.r{r}.lost": 0.0 for r in (1, 2, 3)}
    seen |= {f"most.r{r}.whole": 1.0 for r in (1, 2, 3)} | {"over.r1.lost": 1.0, "over.r2.lost": 1.0}
    seen |= {"half.lost": 0.0, "half.whole": 1.0, "half.replayed_s": 1.0}
    wrong = [
        [claim.what for claim in floe_failures._claims(each, 12, 200) if not claim.holds] for each in (seen, seen | {f"m{count}.lost": 9.0})
    ]
    assert wrong == [[], ["8b: slots lost"]]


def test_places_apart_are_no_neighbours() -> None:
    rng = np.random.default_rng(5)
    for count in range(1, 7):
        for _ in range(20):
            chosen = set(apart(12, count, rng))
            assert len(chosen) == count
            assert not any((place + 1) % 12 in chosen for place in chosen)


def test_a_failed_node_costs_only_what_came_since_its_last_checkpoint() -> None:
    fault = (model.Fault(20.0, machines=(1,)),)
    rows = {}
    for checkpoint_s in (1.0, 4.0):
        config = RingConfig(nodes_min=4, silence_s=2.5 * checkpoint_s)
        found = simulate(workload.constant(WORDS_PER_S), 50.0, 4, config, 1, checkpoint_s=checkpoint_s, faults=fault, tick_s=0.1)
        (taken,) = [change for change in found.ring.changes if change.kind == "take-over"]
        rows[checkpoint_s] = taken.rows_replayed
        assert taken.rows_replayed <= checkpoint_s * WORDS_PER_S / 4 * 1.05
    assert rows[1.0] < rows[4.0]


@pytest.mark.extra
def test_fig_8b_as_printed() -> None:
    result = floe_failures.run(floe_failures.OPTIONS, seed=1)
    assert [(claim.what, claim.seen) for claim in result.claims if claim.holds is False] == []
    assert result.violations == ()


def test_a_larger_ring_mends_itself_again_and_again() -> None:
    options = dict(floe_hour.OPTIONS, nodes=40, duration_s=140.0, every_s=30.0, failing=3)
    result = floe_hour.run(options, seed=1)
    assert [claim.what for claim in result.claims if claim.holds is False] == []
    assert result.violations == ()
    assert result.figures["taken"] == result.figures["failed"] > 3
