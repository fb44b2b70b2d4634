"""A ring of nodes, a network that delays, doubles, reorders and loses messages, machines that start and die; all from one seed."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace

import numpy as np

from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.observation import Floats
from headrace.control.ring.messages import (
    Event,
    Left,
    Message,
    NodeCheckpoint,
    Ready,
    Received,
    Report,
    RequestNode,
    RingConfig,
    RingNode,
    Send,
    Ship,
    TakeOver,
)
from headrace.control.ring.protocol import decide
from headrace.control.ring.view import Peer, RingView
from headrace.ids import SLOTS

QUEUE_ROWS_OVERLOADED = 5000.0


class Ring:
    def __init__(self, view: RingView, slot_cost: Floats, config: RingConfig, seed: int = 0, zones: str = "xyz") -> None:
        self.config, self.slot_cost, self.zones = config, slot_cost, zones
        self.rng = np.random.default_rng(seed)
        self.nodes = {peer.node: RingNode(peer, view) for peer in view.peers}
        self.now_s, self.lost_share, self.doubled_share = 0.0, 0.0, 0.0
        self.network: list[tuple[float, int, NodeId, NodeId, Message | NodeCheckpoint]] = []
        self.checkpoints: dict[NodeId, dict[NodeId, NodeCheckpoint]] = {node: {} for node in self.nodes}
        self.order, self.names = itertools.count(), itertools.count(len(self.nodes))
        self.decided: list[tuple[NodeId, Decision]] = []
        # A node needs a copy of the last owner's time to take a slot. If the owner before that is gone, a copy of its time will do too:
        # tuples since are buffered. `usable` is the oldest time that will do.
        self.tenure, self.usable = np.zeros(SLOTS, dtype=np.int64), np.zeros(SLOTS, dtype=np.int64)
        self.owner = np.full(SLOTS, "", dtype=object)
        self.data = {node: np.where(self.owned(node), 0, -1) for node in self.nodes}
        for node in self.nodes:
            self.owner[self.owned(node)] = node
        self.stale: list[NodeId] = []
        self.strict = False

    # What there is to see.

    def owned(self, node: NodeId) -> np.ndarray:
        mask = np.zeros(SLOTS, dtype=bool)
        mask[self.nodes[node].owned().slots()] = True
        return mask

    def owners_per_slot(self) -> np.ndarray:
        return np.sum([self.owned(node) for node in self.nodes], axis=0)

    def cpu(self, node: NodeId) -> float:
        return float(self.slot_cost[self.owned(node)].sum())

    def members(self) -> list[NodeId]:
        return [name for name, node in self.nodes.items() if node.joined]

    def decisions(self, kind: type) -> list[tuple[NodeId, Decision]]:
        return [(node, decision) for node, decision in self.decided if isinstance(decision, kind)]

    # What happens.

    def run(self, seconds: float, every_s: float = 1.0) -> None:
        """Everybody reports once per interval, in any order; messages arrive in between."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for node in self.rng.permutation(sorted(self.nodes)):
                if node in self.nodes:
                    self._report(NodeId(str(node)))
            self._deliver(until_s=self.now_s + every_s)

    def kill(self, *nodes: NodeId) -> None:
        for node in nodes:
            self.nodes.pop(node)
            self.data.pop(node)

    def _report(self, node: NodeId) -> None:
        cpu = self.cpu(node)
        queue = QUEUE_ROWS_OVERLOADED if cpu > 0.9 else 0.0
        came = tuple(self.checkpoints.setdefault(node, {}).values())
        self._happen(node, Report(self.now_s, queue, min(cpu, 1.0), self.slot_cost * 1000, came))
        if node in self.nodes and self.nodes[node].joined:
            view = self.nodes[node].view
            for holder in view.holders(node, self.config.replicas):
                self._post(holder, node, NodeCheckpoint(node, 0.0, view.digest))

    def _deliver(self, until_s: float) -> None:
        while self.network and self.network[0][0] <= until_s:
            self.now_s, _, to, sender, message = heapq.heappop(self.network)
            if isinstance(message, NodeCheckpoint):
                self.checkpoints.setdefault(to, {})[sender] = replace(message, at_s=self.now_s)
            elif to in self.nodes:
                self._happen(to, Received(self.now_s, sender, message))
        self.now_s = until_s

    def _happen(self, name: NodeId, event: Event) -> None:
        arc, before = self.nodes[name].owned(), self.owned(name)
        if isinstance(event, Received) and isinstance(event.message, Ship) and event.sender in self.nodes:
            slots = event.message.part.slots()
            # A late copy of slots that have another owner meanwhile does not replace that one's.
            self.data[name][slots] = np.maximum(self.data[name][slots], self.data[event.sender][slots])
        said, self.nodes[name] = decide(event, self.config, self.nodes[name])
        self._took(name, before, [each for each in said if isinstance(each, TakeOver)])
        for each in said:
            if isinstance(each, Send):
                self._post(each.to, name, each.message)
            else:
                assert each.why
                self.decided.append((name, each))
                self._perform(name, each)
        if self.strict and name in self.nodes and self.nodes[name].owned() != arc:
            assert self.owners_per_slot().max() <= 1, f"two owners after {event}"

    def _took(self, name: NodeId, before: np.ndarray, taken: list[TakeOver]) -> None:
        new = self.owned(name) & ~before
        stale = new & (self.data[name] < self.usable)
        for arc in (arc for decision in taken for arc in decision.missing):
            stale[arc.slots()] = False
        if stale.any():
            self.stale.append(name)
        self.tenure[new] += 1
        given = new & ~np.isin(self.owner, list(self.nodes[name].view.gone))
        self.usable[given] = self.tenure[given]
        self.owner[new] = name
        self.data[name][new] = self.tenure[new]

    def _perform(self, name: NodeId, decision: Decision) -> None:
        if isinstance(decision, Left):
            self.kill(name)
        elif isinstance(decision, RequestNode):
            free = [zone for zone in self.zones if zone not in decision.avoid_zones] or list(self.zones)
            new = NodeId(f"n{next(self.names)}")
            self.nodes[new] = RingNode(Peer(new, 0, str(self.rng.choice(free))), RingView())
            self.data[new] = np.full(SLOTS, -1)
            self._post(name, new, Ready(self.nodes[new].me.zone), delay_s=2.0)

    def _post(self, to: NodeId, sender: NodeId, message: Message | NodeCheckpoint, delay_s: float = 0.0) -> None:
        if self.rng.random() < self.lost_share:
            return
        for _ in range(1 + (self.rng.random() < self.doubled_share)):
            at_s = self.now_s + delay_s + float(self.rng.exponential(0.05))
            heapq.heappush(self.network, (at_s, next(self.order), to, sender, message))


def assert_settled(ring: Ring) -> None:
    """All agree, every slot has one owner, and every copy that there shall be is there."""
    views = [ring.nodes[node].view for node in ring.members()]
    assert all(view.peers == views[0].peers for view in views), "all know the same ring"
    assert {peer.node for peer in views[0].peers} == set(ring.members()), "and nobody who is not there"
    assert (ring.owners_per_slot() == 1).all(), "the arcs are a partition"
    zones = {peer.node: peer.zone for peer in views[0].peers}
    wanted = min(ring.config.replicas + 1, len(set(zones.values())))
    for name in ring.members():
        node = ring.nodes[name]
        holders = node.view.holders(name, ring.config.replicas)
        for holder in holders:
            assert node.copies[holder].covers(node.owned())
            assert ring.nodes[holder].holds[name].arc.covers(node.owned())
            slots = node.owned().slots()
            assert (ring.data[holder][slots] == ring.tenure[slots]).all(), "the copy is of this owner's time"
        assert len(holders) >= min(ring.config.replicas, len(zones) - 1)
        assert len({zones[each] for each in (name, *holders)}) >= wanted, "copies lie in distinct zones"
