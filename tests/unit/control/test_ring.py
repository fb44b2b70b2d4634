"""Floe's ring: balance, cascade, scale out and in, failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.decisions import Nothing
from headrace.control.network import NodeId
from headrace.control.ring.messages import (
    Alive,
    Announce,
    Deal,
    Help,
    Known,
    Left,
    NodeCheckpoint,
    Probe,
    Received,
    Refuse,
    Report,
    RequestNode,
    RingConfig,
    RingNode,
    Send,
    Ship,
    TakeOver,
)
from headrace.control.ring.protocol import decide
from headrace.control.ring.view import Peer, RingArc, RingView, even_ring
from headrace.errors import QueryError
from headrace.ids import SLOTS
from tests.examples import examples
from tests.unit.control.model import slot_costs
from tests.unit.control.ring_model import Ring, assert_settled


def costs(*cpus: float) -> np.ndarray:
    """One quarter, third, ... of the ring costs this much CPU each."""
    parts = [np.full((i + 1) * SLOTS // len(cpus) - i * SLOTS // len(cpus), 1.0) for i in range(len(cpus))]
    return np.concatenate([part * cpu / len(part) for part, cpu in zip(parts, cpus, strict=True)])


def ring_of(*cpus: float, zones: str = "xyz", config: RingConfig | None = None, seed: int = 0) -> Ring:
    view = even_ring([zones[i % len(zones)] for i in range(len(cpus))])
    return Ring(view, costs(*cpus), config or RingConfig(), seed, zones)


def test_fig_10_the_next_node_takes_half_of_the_interval_of_one_that_is_overloaded() -> None:
    ring = ring_of(0.95, 0.2, 0.6, 0.6)
    ring.run(30)
    assert_settled(ring)
    tokens = {node: ring.nodes[node].me.token for node in ring.members()}
    assert tokens == {"n0": 0, "n1": 512, "n2": 2048, "n3": 3072}
    assert not ring.decisions(RequestNode)
    assert ring.stale == [], "no state was shipped for it: the next node held the copy"


def test_fig_6a_a_neighbour_without_room_asks_its_own_neighbour_first() -> None:
    ring = ring_of(0.95, 0.6, 0.1)
    ring.run(40)
    assert_settled(ring)
    assert [ring.nodes[NodeId(f"n{i}")].me.token for i in range(3)] == [0, 682, 2048 - 1]
    assert max(ring.cpu(node) for node in ring.members()) < 0.8


def test_a_neighbour_may_hand_on_more_than_makes_it_even_if_all_end_up_below_the_overloaded_one() -> None:
    ring = ring_of(1.0, 0.55, 0.36)
    ring.run(40)
    assert_settled(ring)
    assert not ring.decisions(RequestNode)
    assert max(ring.cpu(node) for node in ring.members()) < 0.8


def test_fig_11_when_nobody_has_room_a_new_node_comes_half_way_between() -> None:
    ring = ring_of(0.95, 0.7, 0.7, 0.7)
    ring.run(60)
    assert_settled(ring)
    assert len(ring.members()) == 5
    assert ring.nodes[NodeId("n4")].me.token == 512
    assert ring.stale == [], "its state came before its slots"


def test_a_single_node_scales_out() -> None:
    ring = ring_of(3.0)
    ring.run(200)
    assert_settled(ring)
    assert max(ring.cpu(node) for node in ring.members()) <= 0.9


def test_fig_12_a_node_with_little_to_do_leaves_it_to_a_neighbour_with_little_to_do() -> None:
    ring = ring_of(0.2, 0.3, 0.7, 0.7)
    ring.run(40)
    assert_settled(ring)
    assert ring.members() == ["n1", "n2", "n3"]
    assert ring.nodes[NodeId("n1")].me.token == 0
    assert [node for node, _ in ring.decisions(Left)] == ["n0"]


def test_a_ring_full_of_idle_nodes_shrinks_to_what_the_copies_need() -> None:
    ring = ring_of(*[0.01] * 12, config=RingConfig(replicas=2))
    ring.run(400)
    assert_settled(ring)
    assert len(ring.members()) == 3


def test_two_light_nodes_that_would_be_a_busy_one_stay_two() -> None:
    ring = ring_of(0.45, 0.45, 0.45, 0.45)
    ring.run(60)
    assert len(ring.members()) == 4
    assert not ring.decided


def test_one_slot_that_makes_the_load_is_not_given_a_machine() -> None:
    ring = ring_of(0.6, 0.6, 0.6)
    ring.slot_cost = np.where(np.arange(SLOTS) == 7, 5.0, ring.slot_cost / 100)
    ring.run(300)
    assert not ring.decisions(RequestNode)
    assert any("a single slot has all the load" in decision.why for _, decision in ring.decisions(Nothing))


def test_a_failed_node_is_taken_over_by_the_next_one_that_holds_its_copy() -> None:
    ring = ring_of(0.6, 0.3, 0.6, 0.6)
    ring.run(10)
    ring.kill(NodeId("n0"))
    ring.run(30)
    assert_settled(ring)
    ((taker, decision),) = ring.decisions(TakeOver)
    assert isinstance(decision, TakeOver)
    assert (taker, decision.arc.lo, decision.arc.size, decision.missing) == ("n1", 0, 1024, ())
    assert decision.why == "n0 sent no checkpoint for 5 s and did not answer"


def test_rows_that_waited_for_a_take_over_are_no_reason_to_ask_for_help_at_once() -> None:
    view = even_ring("xyz")
    node = RingNode(view.peers[1], view, heard_s={NodeId("n0"): 0.0}, probing_since_s=6.0)
    said, node = decide(Report(7.0, 5000.0, 1.0), RingConfig(), node)
    assert any(isinstance(each, TakeOver) for each in said)
    for at_s in (8.0, 16.0, 18.0):
        alive = NodeCheckpoint(NodeId("n2"), at_s, node.view.digest)
        said, node = decide(Report(at_s, 5000.0, 1.0, checkpoints=(alive,)), RingConfig(), node)
        asks = any(isinstance(each, Send) and isinstance(each.message, Help) for each in said)
        assert asks == (at_s > 17.0)


@pytest.mark.parametrize("replicas", [1, 2, pytest.param(3, marks=pytest.mark.extra)])
def test_as_many_neighbours_as_there_are_replicas_may_fail_at_once(replicas: int) -> None:
    for first in range(8):
        ring = ring_of(*[0.55] * 8, config=RingConfig(replicas=replicas))
        ring.run(10)
        ring.kill(*(NodeId(f"n{(first + i) % 8}") for i in range(replicas)))
        ring.run(60)
        assert_settled(ring)
        taken = [decision for _, decision in ring.decisions(TakeOver)]
        assert len(taken) == 1, "one node takes over all of them, in one step"
        assert isinstance(taken[0], TakeOver)
        assert taken[0].missing == ()
        assert ring.stale == []


@pytest.mark.parametrize(("nodes", "replicas"), [(12, 1), (12, 2), (12, 3)])
def test_in_the_best_case_n_r_by_r_plus_1_nodes_may_fail_at_once(nodes: int, replicas: int) -> None:
    ring = ring_of(*[0.51] * nodes, config=RingConfig(replicas=replicas))
    ring.run(10)
    dead = [NodeId(f"n{i}") for i in range(nodes) if (i + 1) % (replicas + 1)]
    assert len(dead) == nodes * replicas // (replicas + 1)
    ring.kill(*dead)
    ring.slot_cost = ring.slot_cost / 10
    ring.run(100)
    assert_settled(ring)
    assert all(isinstance(decision, TakeOver) and decision.missing == () for _, decision in ring.decisions(TakeOver))


def test_fig_13_a_whole_zone_may_fail() -> None:
    ring = ring_of(*[0.55] * 8, zones="xy")
    ring.run(10)
    ring.kill(*(node for node in ring.members() if ring.nodes[node].me.zone == "x"))
    ring.slot_cost = ring.slot_cost / 2
    ring.run(60)
    assert_settled(ring)
    assert all(isinstance(decision, TakeOver) and decision.missing == () for _, decision in ring.decisions(TakeOver))


def test_neighbours_of_one_zone_get_a_copy_in_another() -> None:
    view = RingView.of(*(Peer(NodeId(f"n{i}"), i * 512, zone) for i, zone in enumerate("xxxyyyzz")))
    assert view.holders(NodeId("n0"), 1) == ("n1", "n3")
    assert view.holders(NodeId("n2"), 1) == ("n3",)
    assert view.holders(NodeId("n0"), 2) == ("n1", "n2", "n3", "n6")


def test_when_more_neighbours_fail_than_there_are_replicas_the_loss_is_said() -> None:
    ring = ring_of(0.7, 0.34, 0.34, 0.34, 0.7, 0.7, zones="x")
    ring.run(10)
    ring.kill(NodeId("n1"), NodeId("n2"))
    ring.run(60)
    assert_settled(ring)
    by = [decision for _, decision in ring.decisions(TakeOver) if isinstance(decision, TakeOver)]
    assert [bool(decision.missing) for decision in by] == [False, True]


@pytest.mark.parametrize(("replicas", "lost"), [(1, (RingArc(0, 1024),)), (2, ())])
def test_only_slots_that_no_copy_here_has_are_missing_when_a_taker_dies_before_it_shipped_what_it_took(
    replicas: int, lost: tuple[RingArc, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = ring_of(0.4, 0.4, 0.4, 0.4, config=RingConfig(replicas=replicas, nodes_min=4))
    ring.run(10)
    ring.kill(NodeId("n0"))
    post = ring._post
    # Shipments are slow: none of what n1 ships of the slots that it takes over arrives.
    monkeypatch.setattr(ring, "_post", lambda to, sender, message: None if isinstance(message, Ship) else post(to, sender, message))
    while not ring.decisions(TakeOver):
        ring.run(1)
    ring.kill(NodeId("n1"))
    ring.run(20)
    (_, first), (taker, second) = ring.decisions(TakeOver)
    assert isinstance(first, TakeOver)
    assert isinstance(second, TakeOver)
    assert (first.missing, taker, second.arc) == ((), "n2", RingArc(0, 2048))
    assert second.missing == lost


def test_a_node_taken_for_dead_is_told_so_when_its_checkpoints_come_again() -> None:
    whole = even_ring("xyz")
    view = whole.merged(gone=[NodeId("n0")])
    zombie = NodeCheckpoint(NodeId("n0"), 8.5, whole.digest)
    said, _ = decide(Report(9.0, 0.0, 0.6, checkpoints=(zombie,)), RingConfig(), RingNode(view.peers[0], view))
    sent = [each.message for each in said if isinstance(each, Send) and each.to == "n0"]
    assert sent == [Announce(view.peers[0], (NodeId("n0"),))]
    _, gone = decide(Received(9.1, view.peers[0].node, sent[0]), RingConfig(), RingNode(whole.peers[0], whole))
    assert not gone.joined


def test_who_missed_an_announcement_learns_it_by_its_next_checkpoint() -> None:
    old = even_ring("xyz")
    new = old.merged([Peer(NodeId("n1"), 700, "y", version=1)])
    ahead, behind = RingNode(new.peers[0], new, learnt_s=0.0), RingNode(old.peers[2], old)
    late = NodeCheckpoint(NodeId("n2"), 2.0, old.digest)
    said, _ = decide(Report(2.5, 0.0, 0.6, checkpoints=(late,)), RingConfig(), ahead)
    (known,) = [each.message for each in said if isinstance(each, Send) and isinstance(each.message, Known)]
    _, behind = decide(Received(2.6, NodeId("n0"), known), RingConfig(), behind)
    assert behind.view == new


def test_a_node_that_was_calm_for_long_notices_silence_no_sooner_than_others() -> None:
    ring = ring_of(0.6, 0.6, 0.6, 0.6)
    ring.run(30)
    node, view = ring.nodes[NodeId("n1")], ring.nodes[NodeId("n1")].view
    last = NodeCheckpoint(NodeId("n0"), 30.0, view.digest)
    for at_s, asks in ((32.0, False), (34.0, False), (36.0, True)):
        said, node = decide(Report(at_s, 0.0, 0.6, checkpoints=(last,)), ring.config, node)
        assert any(isinstance(each, Send) and isinstance(each.message, Probe) for each in said) == asks


def test_two_who_know_different_rings_and_hear_no_checkpoints_of_each_other_learn_by_asking() -> None:
    """Each knows of one death, and sends its checkpoints to the other dead one."""
    whole = even_ring("xyxy")
    one, other = whole.merged(gone=[NodeId("n1")]), whole.merged(gone=[NodeId("n3")])
    n0, n2 = RingNode(whole.peers[0], other), RingNode(whole.peers[2], one)
    said, _ = decide(Received(9.0, n2.me.node, Probe(one.digest)), RingConfig(), n0)
    answers = [each.message for each in said if isinstance(each, Send)]
    assert answers[:2] == [Alive(), Known(other)]
    _, n2 = decide(Received(9.1, n0.me.node, Known(other)), RingConfig(), n2)
    assert [peer.node for peer in n2.view.peers] == ["n0", "n2"]


def test_one_who_leaves_asks_others_when_its_taker_says_nothing() -> None:
    view = even_ring("xyzx")
    leaving = RingNode(view.peers[0], view, deal=Deal("ceded", 0.0, NodeId("n1"), token=0, leaving=True))
    sent = set()
    for at_s in (11.0, 21.0, 31.0):
        said, leaving = decide(Report(at_s, 0.0, 0.0), RingConfig(), leaving)
        sent |= {each.to for each in said if isinstance(each, Send) and isinstance(each.message, Known)}
    assert sent == {"n1", "n2", "n3"}


def test_a_quiet_ring_says_nothing() -> None:
    ring = ring_of(0.6, 0.6, 0.6, 0.6)
    ring.run(10)
    for node in ring.members():
        came = tuple(ring.checkpoints[node].values())
        said, _ = decide(Report(ring.now_s, 0.0, 0.6, ring.slot_cost, came), ring.config, ring.nodes[node])
        assert said == ()


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50), st.integers(0, 3)), max_size=12), st.sets(st.sampled_from("abc")))
def test_views_that_know_the_same_have_the_same_digest_however_they_came_to_it(entries: list[tuple[str, int, int]], gone: set[str]) -> None:
    # A node's entry is determined by its version, as only the node itself changes it.
    peers = [Peer(NodeId(node), token + 100 * version, "x", version) for node, token, version in {e[0::2]: e for e in entries}.values()]
    one = RingView.of(*peers).merged(gone=map(NodeId, gone))
    other = RingView().merged(gone=map(NodeId, sorted(gone, reverse=True)))
    for peer in reversed(peers):
        other = other.merged([peer])
    assert one == other
    assert one.digest == other.digest == RingView(one.peers, one.gone).digest
    assert (one.digest == RingView.of(*peers).digest) == (not gone)


def test_a_node_asks_only_when_both_queue_and_cpu_are_high() -> None:
    view = even_ring("xyz")
    for queue, cpu, asks in [(5000, 0.5, False), (10, 0.95, False), (1000, 0.8, True)]:
        said, _ = decide(Report(0.0, queue, cpu), RingConfig(), RingNode(view.peers[0], view))
        assert any(isinstance(each, Send) and isinstance(each.message, Help) for each in said) == asks


@settings(max_examples=examples(10), deadline=None)
@given(slot_costs(total_max=6.0), st.integers(1, 10), st.integers(1, 3), st.integers(0, 2**31))
def test_a_steady_load_comes_to_rest_and_no_slot_ever_has_two_owners(cost: np.ndarray, nodes: int, replicas: int, seed: int) -> None:
    """Messages are delayed, reordered and doubled."""
    ring = Ring(even_ring("xyz"[i % 3] for i in range(nodes)), cost, RingConfig(replicas=replicas), seed)
    ring.doubled_share, ring.strict = 0.1, True
    ring.run(300, every_s=2.0)
    before = [(node, ring.nodes[node].me) for node in ring.members()]
    ring.run(100, every_s=2.0)
    assert [(node, ring.nodes[node].me) for node in ring.members()] == before, "nothing moves any more"
    assert_settled(ring)
    assert ring.stale == []
    for node in ring.members():
        cpu = ring.cpu(node)
        assert cpu <= 0.9 or cost[ring.owned(node)].max() > 0.8 * cpu, "what is overloaded has one hot slot"


@settings(max_examples=examples(10), deadline=None)
@given(st.integers(5, 12), st.integers(1, 3), st.integers(0, 2**31), st.data())
def test_whatever_is_lost_and_whoever_dies_the_arcs_are_a_partition_in_the_end(
    nodes: int, replicas: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    ring = Ring(even_ring("xyz"[i % 3] for i in range(nodes)), rng.random(SLOTS) / SLOTS * nodes, RingConfig(replicas=replicas), seed)
    ring.lost_share, ring.doubled_share = 0.05, 0.05
    for _ in range(data.draw(st.integers(1, 5))):
        ring.run(data.draw(st.integers(1, 30)))
        # The load shifts, so that there is something to do, and up to two nodes die in the middle of it.
        ring.slot_cost = np.roll(ring.slot_cost, SLOTS // 3) * data.draw(st.floats(0.5, 1.5))
        victims = data.draw(st.integers(0, 2))
        ring.kill(*[NodeId(str(node)) for node in rng.permutation(sorted(ring.nodes))[:victims] if len(ring.members()) > 3])
    ring.lost_share = 0.0
    ring.slot_cost = np.full(SLOTS, 0.55 * max(1, len(ring.members())) / SLOTS)
    ring.run(300, every_s=2.0)
    assert_settled(ring)


@settings(max_examples=examples(10), deadline=None)
@given(slot_costs(total_max=6.0), st.integers(4, 10), st.integers(1, 3), st.integers(0, 2**31))
def test_wherever_the_moves_led_r_neighbours_may_fail_and_nothing_is_lost(cost: np.ndarray, nodes: int, replicas: int, seed: int) -> None:
    ring = Ring(even_ring("xyz"[i % 3] for i in range(nodes)), cost, RingConfig(replicas=replicas), seed)
    ring.run(200, every_s=2.0)
    order = [peer.node for peer in ring.nodes[ring.members()[0]].view.peers]
    first = seed % len(order)
    # Somebody must be left to take over.
    ring.kill(*{order[(first + i) % len(order)] for i in range(min(replicas, len(order) - 1))})
    ring.decided.clear()
    ring.run(200, every_s=2.0)
    assert_settled(ring)
    assert ring.stale == []
    for _, decision in ring.decisions(TakeOver):
        assert isinstance(decision, TakeOver)
        assert decision.missing == ()


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(QueryError, match="ring: wanted cpu_merged"):
        RingConfig(cpu_merged=0.78)
    with pytest.raises(QueryError, match="replicas"):
        RingConfig(replicas=0)


def test_a_busy_node_refuses_without_saying_that_the_ring_is_full() -> None:
    view = even_ring("xyz")
    node = RingNode(view.peers[1], view, rest_until_s=100.0)
    said, _ = decide(Received(5.0, NodeId("n0"), Help((NodeId("n0"),), 0.95, 0.4, 5.0)), RingConfig(), node)
    assert Send(NodeId("n0"), Refuse(False, 5.0)) in said


def test_a_late_answer_is_not_taken_for_the_answer_to_another_question() -> None:
    view = even_ring("xyz")
    _, node = decide(Report(50.0, 5000, 0.95), RingConfig(), RingNode(view.peers[0], view))
    said, node = decide(Received(50.1, NodeId("n1"), Refuse(True, 20.0)), RingConfig(), node)
    assert not any(isinstance(each, RequestNode) for each in said)
    said, node = decide(Received(50.2, NodeId("n1"), Refuse(True, 50.0)), RingConfig(), node)
    assert any(isinstance(each, RequestNode) for each in said)
