"""Floe's ring on the simulator: each instance of an operator is a node of the ring, which decides from its own messages only.

The simulator moves rows and kills machines. This module delivers messages with a latency, and shipped state at the speed of the network.
Whenever the arc of a node has changed, it changes the routing of the operator:

    report ─> ring.decide ─┬─ Send ──latency (+ bytes / network for a Ship)──> ring.decide of another node
                           ├─ TakeOver, or slots granted ──> reroute; rows since the last checkpoint are replayed
                           ├─ RequestNode ──> a machine of the pool; it sends Ready when the operator is deployed
                           └─ Left ──> its machine returns to the pool

Use it as a listener, with ``recovery="none"`` and ``replicas=0`` in the settings, because the ring does both itself. Mappers are not
simulated: rows follow a new routing at once. Floe's mappers send to the old owner until they hear of the change. These tuples are in the
buffers of both nodes, so no decision depends on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.control.decisions import Decision
from headrace.control.network import NodeId
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners, loads_of
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
from headrace.control.ring.view import Peer, RingArc, RingView
from headrace.ids import SLOTS, OperatorId
from headrace.sim.simulator import Simulator
from headrace.sim.stage import SimulatedStage
from headrace.sim.world import World

ROWS_MIN = 1e-6
"""Fewer rows than this count as none, because sums of floating point numbers are not exact."""


@dataclass(frozen=True)
class SlotTransfer:
    """Slots that went from one owner, the giver, to another, the taker."""

    asked_s: float
    """When the giver first asked for the change; after a failure, when the machine died."""
    taken_s: float
    """When the routing changed."""
    ready_s: float
    """When all rows since the last checkpoint had been replayed."""
    caught_up_s: float
    """After a failure: when the rows that had waited for the take-over had been processed too."""
    kind: str
    """"balance", "scale out", "scale in" or "take-over"."""
    giver: NodeId
    taker: NodeId
    slots: int
    rows_replayed: float = 0.0


class Ring:
    """The nodes of one operator. Pass it to the simulator as a listener, and call `attach` before the simulator runs."""

    def __init__(self, operator: OperatorId, config: RingConfig, tokens: Sequence[int] | None = None, latency_s: float = 0.001) -> None:
        self.operator, self.config, self.latency_s = operator, config, latency_s
        self.nodes: dict[NodeId, RingNode] = {}
        self.changes: list[SlotTransfer] = []
        self.requested = 0
        self.lost_slots = 0
        """The number of slots that were taken over without a copy of their state."""
        self.messages = 0
        self._tokens = tokens
        self._machine: dict[NodeId, int] = {}
        self._members: list[NodeId] = []
        """The node of each instance, by the instance's number. Dead nodes stay until their slots are taken over."""
        self._came: dict[NodeId, dict[NodeId, NodeCheckpoint]] = {}
        self._shipped_s = 0.0
        self._asked_s: dict[NodeId, float] = {}
        self._died_s: dict[NodeId, float] = {}
        self._unchecked = True

    def attach(self, sim: Simulator) -> None:
        """Place the operator's instances on the ring: at the given tokens, or evenly."""
        stage = self._stage(sim)
        tokens = self._tokens or [at * SLOTS // stage.instances for at in range(stage.instances)]
        self._members = [NodeId(f"n{machine}") for machine in stage.hosts.tolist()]
        self._machine = dict(zip(self._members, stage.hosts.tolist(), strict=True))
        peers = [Peer(name, token, self._zone(sim, name)) for name, token in zip(self._members, tokens, strict=True)]
        view = RingView.of(*peers)
        self.nodes = {peer.node: RingNode(peer, view) for peer in peers}
        owners = np.zeros(SLOTS, dtype=np.int64)
        for at, name in enumerate(self._members):
            owners[view.arc(name).slots()] = at
        stage.reroute(0.0, owners, stage.hosts.tolist())

    def __call__(self, sim: Simulator, observation: Observation) -> None:
        """Let every living node report its load. Checkpoints are shipped at their own interval."""
        self._bury(sim)
        load = sim.loads[self.operator]
        state = self._stage(sim).operator.state
        if state is None or sim.clock.now_s - self._shipped_s >= state.checkpoint_s - 1e-9:
            self._checkpoints(sim)
        for at, name in enumerate(list(self._members)):
            if name in self.nodes:
                self._happen(sim, name, self._report(sim, name, at, load))

    def check(self, world: World) -> None:
        """A checker: no slot has two living owners."""
        if not self._unchecked:
            return
        self._unchecked = False
        owned = [node.owned() for node in self.nodes.values()]
        arcs = sorted((arc.lo, arc.size) for arc in owned if arc.size)
        following = [lo for lo, _ in arcs[1:]] + [lo + SLOTS for lo, _ in arcs[:1]]
        doubled = sum(max(0, lo + size - after) for (lo, size), after in zip(arcs, following, strict=True))
        if doubled:
            world.violate("ring", f"{doubled} slots have two owners")

    def whole(self) -> bool:
        """True if every slot has an owner, and all replicas of its state exist."""
        copied = all(
            node.copies.get(holder, RingArc(0, 0)).covers(node.owned())
            for name, node in self.nodes.items()
            for holder in node.view.holders(name, self.config.replicas)
        )
        return copied and sum(node.owned().size for node in self.nodes.values()) == SLOTS

    def settled(self) -> bool:
        """True if the ring is whole, and no node is negotiating a change."""
        return self.whole() and not any(node.deal or node.promised for node in self.nodes.values())

    # Events.

    def _report(self, sim: Simulator, name: NodeId, at: int, load: OperatorLoad) -> Report:
        came = tuple(self._came.get(name, {}).values())
        return Report(sim.clock.now_s, float(load.queue_rows[at]), float(load.cpu[at]), load.rows_per_slot, came)

    def _checkpoints(self, sim: Simulator) -> None:
        """Record the checkpoints that living nodes send now. Holders keep the last checkpoint of a dead node."""
        self._shipped_s = sim.clock.now_s
        for name, node in self.nodes.items():
            if node.joined:
                mark = NodeCheckpoint(name, sim.clock.now_s, node.view.digest)
                for holder in node.view.holders(name, self.config.replicas):
                    self._came.setdefault(holder, {})[name] = mark

    def _happen(self, sim: Simulator, name: NodeId, event: Event) -> None:
        """Let a node decide on an event, and perform its decisions."""
        before = self.nodes[name]
        said, after = decide(event, self.config, before)
        self.nodes[name] = after
        if after.deal is not None and before.deal is None:
            self._asked_s[name] = after.deal.since_s
        # Owned slots depend only on the view and the deal. Most events change neither, so most skip the comparison.
        if (after.view is not before.view or after.deal is not before.deal) and after.owned() != before.owned():
            self._unchecked = True
            self._follow(sim, name, [each for each in said if isinstance(each, TakeOver)])
        for each in said:
            if isinstance(each, Send):
                self._post(sim, name, each.to, each.message)
            else:
                self._perform(sim, name, each)

    def _post(self, sim: Simulator, sender: NodeId, to: NodeId, message: Message) -> None:
        delay_s = self.latency_s
        if isinstance(message, Ship):
            stage = self._stage(sim)
            stage.grow_state()
            delay_s += float(stage.state_bytes[message.part.slots()].sum()) / sim.machines.model.network_bytes_per_s
        self.messages += 1
        sim.clock.after(delay_s, lambda: self._receive(sim, sender, to, message))

    def _receive(self, sim: Simulator, sender: NodeId, to: NodeId, message: Message) -> None:
        if isinstance(message, Ship) and not sim.machines.alive[self._machine[sender]]:
            # The sender died while shipping, so the copy is incomplete.
            return
        if to in self.nodes and sim.machines.alive[self._machine[to]]:
            self._happen(sim, to, Received(sim.clock.now_s, sender, message))

    def _perform(self, sim: Simulator, name: NodeId, decision: Decision) -> None:
        if isinstance(decision, RequestNode):
            sim.recorder.decisions.append((sim.clock.now_s, decision))
            self.requested += 1
            self._prefer(sim, decision.avoid_zones)
            sim.machines.take(1, lambda machines: self._deploy(sim, name, machines[0]))
        elif isinstance(decision, TakeOver | Left):
            sim.recorder.decisions.append((sim.clock.now_s, decision))
            if isinstance(decision, Left):
                self._leave(sim, name)

    # Machines.

    def _prefer(self, sim: Simulator, avoid: tuple[str, ...]) -> None:
        """Move a ready machine outside these zones to the front of the pool, if there is one."""
        ready = sim.machines.ready
        for machine in list(ready):
            if f"z{sim.machines.zone[machine]}" not in avoid:
                ready.remove(machine)
                ready.appendleft(machine)
                return

    def _deploy(self, sim: Simulator, asker: NodeId, machine: int) -> None:
        name = NodeId(f"n{machine}")

        def speak() -> None:
            # A machine that was on the ring before gets a new name.
            known = name in self._machine
            new = NodeId(f"{name}.{sim.clock.events}") if known else name
            self._machine[new] = machine
            self.nodes[new] = RingNode(Peer(new, 0, self._zone(sim, new)), RingView())
            self._post(sim, new, asker, Ready(self.nodes[new].me.zone))

        sim.clock.after(sim.settings.deploy_s, speak)

    def _bury(self, sim: Simulator) -> None:
        """Remove the nodes whose machines have died."""
        alive = sim.machines.alive
        for name in [name for name in self.nodes if not alive[self._machine[name]]]:
            self._died_s[name] = max(event.at_s for event in sim.recorder.events if event.what == "failed")
            del self.nodes[name]

    def _leave(self, sim: Simulator, name: NodeId) -> None:
        del self.nodes[name]
        machine = self._machine[name]
        if name in self._members:
            self._drop(sim, name)
        sim.machines.release([machine])

    def _zone(self, sim: Simulator, name: NodeId) -> str:
        return f"z{sim.machines.zone[self._machine[name]]}"

    # Routing.

    def _follow(self, sim: Simulator, name: NodeId, taken: list[TakeOver]) -> None:
        """Change the routing so that the node gets all slots that it owns on the ring.

        This happens only for the taker: a node that gives up slots keeps them in the routing until then.
        """
        stage = self._stage(sim)
        slots = self.nodes[name].owned().slots()
        if name in self._members:
            slots = slots[stage.owners[slots] != self._members.index(name)]
        if not len(slots):
            return
        givers = [self._members[at] for at in np.unique(stage.owners[slots]).tolist()]
        kind = "take-over" if taken else "balance" if name in self._members else "scale out"
        if name not in self._members:
            self._members.append(name)
        owners = stage.owners.copy()
        owners[slots] = self._members.index(name)
        self.lost_slots += sum(part.size for each in taken for arc in each.missing for part in self._lost(arc, each.ask))
        replay = self._reroute(sim, stage, owners)
        for giver in givers:
            died = self._died_s.get(giver)
            at = stage.owners == self._members.index(giver)
            gone = not at.any() and (died is not None or self._left(giver))
            what = "scale in" if gone and died is None else kind
            asked_s = self._asked_s.get(giver, sim.clock.now_s) if died is None else died
            self._note(sim, stage, SlotTransfer(asked_s, sim.clock.now_s, 0.0, 0.0, what, giver, name, len(slots), replay))
            if died is not None and not at.any():
                self._drop(sim, giver)

    def _lost(self, arc: RingArc, ask: Sequence[NodeId]) -> tuple[RingArc, ...]:
        """The parts of an arc whose state is lost. The taker has no copy of the arc, and the asked nodes have none of these parts."""
        asked = [self.nodes[name] for name in ask if name in self.nodes]
        return arc.without(ship.arc for node in asked for owner, ship in node.holds.items() if owner in self._died_s)

    def _left(self, name: NodeId) -> bool:
        node = self.nodes.get(name)
        return node is None or not node.owned().size

    def _reroute(self, sim: Simulator, stage: SimulatedStage, owners: Owners) -> float:
        """Change owners of slots. The takers replay the rows since the givers' last checkpoints; returns the number of these rows."""
        moving = owners != stage.owners
        part: Floats = moving * stage.weights / np.maximum(stage.per_instance(stage.weights), 1e-300)[stage.owners]
        replay = loads_of(owners, part * stage.since[stage.owners], len(self._members))
        stage.reroute(sim.clock.now_s, owners, [self._machine[name] for name in self._members])
        stage.replay_more(replay)
        sim.topology_changed()
        return float(replay.sum())

    def _drop(self, sim: Simulator, name: NodeId) -> None:
        """Remove an instance that has no slots."""
        stage = self._stage(sim)
        at = self._members.index(name)
        self._members.remove(name)
        for came in self._came.values():
            came.pop(name, None)
        owners = np.where(stage.owners > at, stage.owners - 1, stage.owners)
        stage.reroute(sim.clock.now_s, owners, [self._machine[each] for each in self._members])
        sim.topology_changed()

    def _note(self, sim: Simulator, stage: SimulatedStage, change: SlotTransfer) -> None:
        """Record a change as soon as its rows have been replayed. A take-over also waits for the rows that had queued up."""
        until = stage.queues.now + 1
        ready_s: float | None = None

        def look() -> None:
            nonlocal ready_s
            at = self._members.index(change.taker) if change.taker in self._members else None
            now_s = sim.clock.now_s
            if ready_s is None and (at is None or stage.replay[at] <= 0):
                ready_s = now_s
            waiting = at is not None and change.kind == "take-over" and stage.queues.older(until)[at] > ROWS_MIN
            if ready_s is None or waiting:
                sim.clock.after(sim.settings.tick_s, look)
                return
            self.changes.append(replace(change, ready_s=ready_s, caught_up_s=now_s))
            sim.note(change.kind, stage, now_s - change.asked_s)

        sim.clock.after(sim.settings.tick_s, look)

    def _stage(self, sim: Simulator) -> SimulatedStage:
        return sim.stages[self.operator]
