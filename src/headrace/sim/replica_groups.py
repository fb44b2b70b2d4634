"""Replica groups on the simulator: ranges of keys with replicas, placed again by `headrace.control.replicas.together` at every report.

A hand-over (replica groups 3.3, 4.2) to a host with a replica is light: the target takes new rows at once, into a partial state. It merges
that state with its replica as soon as the last increment has arrived. To any other host the whole state is shipped first, while the source
goes on. If the source died, rows wait for the state. The target then also processes the rows since the last checkpoint again.

    report ─> ranges, hosts ─> rearrange ─┬─ HandOver ─> routing follows, at once or when the state is there
                                          ├─ ShipCopy ─> a replica more, when the state is there
                                          └─ Drop ─> a replica less

Use it as a listener, with ``recovery="none"`` and ``replicas=0`` in the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.control.network import Node, NodeId
from headrace.control.observation import Floats, Observation, Owners
from headrace.control.replicas.model import Change, Drop, HandOver, Host, Hosts, KeyRange, RangeId, ReplicaConfig, ShipCopy
from headrace.control.replicas.together import rearrange
from headrace.ids import OperatorId
from headrace.sim.simulator import Simulator
from headrace.sim.stage import SimulatedStage


@dataclass(frozen=True)
class Done:
    """A change that is complete."""

    change: Change
    decided_s: float
    over_s: float
    bytes_moved: float


class ReplicaGroups:
    """The ranges of one operator. Pass it as a listener, and `attach` it to the simulator before it runs."""

    def __init__(
        self,
        operator: OperatorId,
        slots: Mapping[RangeId, Owners],
        primaries: Mapping[RangeId, int],
        replicas: Mapping[RangeId, frozenset[int]],
        config: ReplicaConfig,
        bytes_per_slot: Floats,
        delta_share: float,
        replicated: bool = True,
    ) -> None:
        """Primaries and replicas are numbers of machines. ``delta_share`` is the size of an increment, as a share of a range's state."""
        self.operator, self.slots, self.config = operator, dict(slots), config
        self.primaries, self.replicas = dict(primaries), {name: set(hosts) for name, hosts in replicas.items()}
        self.done: list[Done] = []
        self._bytes_per_slot, self._delta_share, self._replicated = bytes_per_slot, delta_share, replicated
        # Places as decided. A copy on its way counts as there; otherwise it would be decided again at every report.
        self._planned = dict(primaries)
        self._coming = {name: set(hosts) for name, hosts in replicas.items()}
        self._died_s: dict[int, float] = {}

    def attach(self, sim: Simulator) -> None:
        stage = self._stage(sim)
        stage.state_bytes = self._bytes_per_slot.copy()
        stage.reroute(0.0, self._owners(stage), stage.hosts.tolist())

    def join(self, sim: Simulator) -> None:
        """A ready machine becomes a host, without any slots at first."""
        sim.machines.take(1, lambda machines: self._new_instance(sim, machines))

    def _new_instance(self, sim: Simulator, machines: list[int]) -> None:
        stage = self._stage(sim)
        stage.reroute(sim.clock.now_s, stage.owners, [*stage.hosts.tolist(), *machines])
        sim.topology_changed()

    def __call__(self, sim: Simulator, observation: Observation) -> None:
        dead = self._known_dead(sim)
        for name in self.slots:
            self.replicas[name] -= dead
            self._coming[name] -= dead
        ranges = self.ranges(sim)
        for change in rearrange(ranges, self.hosts(sim, ranges, dead), self.config):
            if self._replicated or isinstance(change, HandOver):
                self._begin(sim, change)

    def _known_dead(self, sim: Simulator) -> set[int]:
        """Machines that died so long ago that it has been noticed."""
        for machine in self._stage(sim).hosts.tolist():
            if not sim.machines.alive[machine]:
                self._died_s.setdefault(machine, max(event.at_s for event in sim.recorder.events if event.what == "failed"))
        return {machine for machine, at_s in self._died_s.items() if sim.clock.now_s - at_s >= sim.settings.detect_s}

    # The policy's input.

    def ranges(self, sim: Simulator) -> list[KeyRange]:
        rows = sim.loads[self.operator].rows_per_slot
        cost_s = self._stage(sim).operator.cost_s
        return [
            KeyRange(
                name,
                _name(self._planned[name]),
                frozenset(map(_name, self._coming[name])),
                self.bytes_of(name),
                self.bytes_of(name) * self._delta_share,
                # The rows that arrive, not those that are processed: an overloaded host processes fewer.
                float(rows[slots].sum()) * cost_s,
            )
            for name, slots in self.slots.items()
        ]

    def hosts(self, sim: Simulator, ranges: Sequence[KeyRange], dead: set[int]) -> Hosts:
        """The machines, with the load of their ranges: they do nothing else. Rows that they catch up with are no load that stays."""
        used: dict[NodeId, float] = {}
        for each in ranges:
            used[each.primary] = used.get(each.primary, 0.0) + each.load
        zone, capacity = sim.machines.zone, sim.machines.model.capacity
        living = [machine for machine in self._stage(sim).hosts.tolist() if machine not in dead]
        return Hosts.by_zone([Host(Node(_name(at), capacity, f"z{zone[at]}"), used.get(_name(at), 0.0) / capacity) for at in living])

    def bytes_of(self, name: RangeId) -> float:
        return float(self._bytes_per_slot[self.slots[name]].sum())

    # Performing changes.

    def _begin(self, sim: Simulator, change: Change) -> None:
        name, whole = change.range, self.bytes_of(change.range)
        delta = whole * self._delta_share
        if isinstance(change, Drop):
            self._coming[name].discard(_machine(change.node))
            self._after(sim, change, 0.0, lambda: self.replicas[name].discard(_machine(change.node)))
        elif isinstance(change, ShipCopy):
            self._coming[name].add(_machine(change.target))
            self._after(sim, change, whole, lambda: self.replicas[name].add(_machine(change.target)))
        else:
            self._begin_hand_over(sim, change, whole, delta)

    def _begin_hand_over(self, sim: Simulator, change: HandOver, whole: float, delta: float) -> None:
        name, target = change.range, _machine(change.target)
        # A source that died ships no last increment; the rows since the checkpoint are replayed instead.
        delta = delta if change.source else 0.0
        self._coming[name].discard(target)
        if change.source is not None and self._replicated:
            # The old primary has the whole state, so it has a replica until that is dropped.
            self._coming[name].add(self._planned[name])
        self._planned[name] = target
        # If the replica is still on its way, the hand-over is not light.
        if target in self.replicas[name]:
            self._hand_over(sim, change)
            self._after(sim, change, delta, lambda: None)
        else:
            heavy = replace(change, light=False)
            self._after(sim, heavy, whole + delta, lambda: self._hand_over(sim, heavy))

    def _after(self, sim: Simulator, change: Change, moved: float, then: Callable[[], None]) -> None:
        decided_s = sim.clock.now_s

        def over() -> None:
            then()
            self.done.append(Done(change, decided_s, sim.clock.now_s, moved))

        sim.clock.after(moved / sim.machines.model.network_bytes_per_s, over)

    def _hand_over(self, sim: Simulator, change: HandOver) -> None:
        stage, name = self._stage(sim), change.range
        before, target = self.primaries[name], _machine(change.target)
        slots = self.slots[name]
        replay = np.zeros(stage.instances)
        if change.source is None:
            of = stage.owners[slots[0]]
            share = stage.weights[slots].sum() / max(float(stage.per_instance(stage.weights)[of]), 1e-300)
            replay[stage.hosts.tolist().index(target)] = float(stage.since[of]) * share
        self.primaries[name] = target
        self.replicas[name].discard(target)
        if change.source is not None and self._replicated:
            self.replicas[name].add(before)
        stage.reroute(sim.clock.now_s, self._owners(stage), stage.hosts.tolist())
        stage.replay_more(replay)
        sim.note("hand-over", stage, float(len(slots)))

    def _owners(self, stage: SimulatedStage) -> Owners:
        owners = np.zeros(len(stage.owners), dtype=np.int64)
        hosts = stage.hosts.tolist()
        for name, slots in self.slots.items():
            owners[slots] = hosts.index(self.primaries[name])
        return owners

    def _stage(self, sim: Simulator) -> SimulatedStage:
        return sim.stages[self.operator]


def _name(machine: int) -> NodeId:
    return NodeId(f"m{machine}")


def _machine(name: NodeId) -> int:
    return int(name[1:])
