"""Ranges of keys and their copies, hosts, and the cost of shipping state between them (replica groups 3.5).

Every range has a primary, which processes its tuples, and q replicas, which receive its incremental checkpoints. The cost of shipping is
the number of bytes, times the network switches on the way plus the load of both ends. A new copy costs the whole state once. This cost is
spread over `horizon` checkpoints, so a move must pay off within that many. Because moves have a cost, placing again after a node came or
went changes only what is worth it. The paper cites the incremental Hungarian algorithm for that; both find the same optimum.

Fault zones come from Floe (section VII): a zone has at most one copy of a range. The paper has nodes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NewType

import numpy as np

from headrace.control.network import Matrix, Node, NodeId, Vector, check_nodes, expect

RangeId = NewType("RangeId", str)
"""A contiguous part of the key space that moves as one."""

# A small extra cost of every move, so that a copy stays if another place is only equally good.
STAY = 1e-6


@dataclass(frozen=True)
class Host:
    """A node that can hold copies."""

    node: Node
    load: float = 0.0
    """Its load by primaries and all else that stays, as a share of its capacity. It slows down shipping from and to the host."""
    replicas_max: int = 1_000_000
    """The most replicas that the host takes."""

    def __post_init__(self) -> None:
        expect(0 <= self.load < math.inf, f"Host {self.node.name!r}", "a load of 0 or more", self.load)
        expect(self.replicas_max >= 0, f"Host {self.node.name!r}", "replicas_max of 0 or more", self.replicas_max)


@dataclass(frozen=True)
class KeyRange:
    """A range of keys, its copies and its sizes."""

    name: RangeId
    primary: NodeId
    """The node that processes it. If this is no host any more, the node has failed."""
    replicas: frozenset[NodeId] = frozenset()
    state_bytes: float = 1.0
    delta_bytes: float = 0.1
    """The size of an incremental checkpoint."""
    load: float = 0.0
    """CPU seconds per second that its primary spends."""

    def __post_init__(self) -> None:
        where = f"KeyRange {self.name!r}"
        expect(self.primary not in self.replicas, where, "replicas elsewhere than the primary", sorted(self.replicas))
        for field in ("state_bytes", "delta_bytes", "load"):
            expect(0 <= getattr(self, field) < math.inf, where, f"{field} of 0 or more", getattr(self, field))


@dataclass(frozen=True)
class ReplicaConfig:
    """Settings of the placement."""

    replicas: int = 1
    """q: the number of replicas. A range survives q failures."""
    load_weight: float = 2.0
    """A fully loaded end counts as much as this many switches."""
    horizon: float = 100.0
    """Moving a copy must pay off within this many checkpoints."""
    waiting_weight: float = 10.0
    """The weight of a byte of a hand-over, because the range waits for it."""
    utilisation_max: float = 0.8
    """The highest utilisation of a host, by primaries and all else that it does. A host above it hands ranges over."""
    state_bytes_max: float = math.inf
    """The largest state of a host's primaries together (the paper's shard size). A host above it hands ranges over."""
    spare_hosts: int = 2
    """A primary moves to a host with a copy, or to one of this many least loaded other hosts."""

    def __post_init__(self) -> None:
        where = "ReplicaConfig"
        expect(self.replicas >= 1, where, "replicas of 1 or more", self.replicas)
        expect(self.load_weight >= 0, where, "load_weight of 0 or more", self.load_weight)
        expect(self.horizon > 0, where, "horizon above 0", self.horizon)
        expect(self.waiting_weight >= 0, where, "waiting_weight of 0 or more", self.waiting_weight)
        expect(0 < self.utilisation_max <= 1, where, "utilisation_max above 0, up to 1", self.utilisation_max)
        expect(self.state_bytes_max > 0, where, "state_bytes_max above 0", self.state_bytes_max)
        expect(self.spare_hosts >= 0, where, "spare_hosts of 0 or more", self.spare_hosts)


@dataclass(frozen=True, eq=False)
class Hosts:
    """The living hosts, and the number of network switches between each two."""

    hosts: tuple[Host, ...]
    switches: Matrix

    def __post_init__(self) -> None:
        check_nodes([host.node for host in self.hosts])
        fits = self.switches.shape == (len(self.hosts),) * 2 and bool((self.switches >= 0).all())
        expect(fits, "Hosts", f"a {len(self.hosts)} x {len(self.hosts)} matrix of 0 or more", self.switches.shape)

    @classmethod
    def by_zone(cls, hosts: Sequence[Host], inside: float = 1.0, between: float = 3.0) -> Hosts:
        """One switch within a zone, and three (up and down again) between zones."""
        zones = np.array([host.node.fault_zone for host in hosts])
        return cls(tuple(hosts), np.where(zones[:, None] == zones, inside, between))

    @cached_property
    def names(self) -> list[NodeId]:
        return [host.node.name for host in self.hosts]

    @cached_property
    def index(self) -> dict[NodeId, int]:
        return {name: at for at, name in enumerate(self.names)}

    @cached_property
    def zones(self) -> list[str]:
        return [host.node.fault_zone for host in self.hosts]

    def without(self, ranges: Iterable[KeyRange]) -> Hosts:
        """The hosts with the load that they would have without the primaries of these ranges."""
        loads: dict[NodeId, float] = {}
        for each in ranges:
            loads[each.primary] = loads.get(each.primary, 0.0) + each.load
        rest = [max(host.load - loads.get(host.node.name, 0.0) / host.node.capacity, 0.0) for host in self.hosts]
        return Hosts(tuple(replace(host, load=load) for host, load in zip(self.hosts, rest, strict=True)), self.switches)

    def ship(self, config: ReplicaConfig) -> Matrix:
        """The cost of shipping a byte from each host to each other one."""
        found = self._ships.get(config.load_weight)
        if found is None:
            loads = np.array([host.load for host in self.hosts])
            found = self._ships[config.load_weight] = self.switches + config.load_weight * (loads[:, None] + loads)
        return found

    @cached_property
    def _ships(self) -> dict[float, Matrix]:
        return {}


@dataclass(frozen=True)
class Arrangement:
    """The places of all primaries and replicas."""

    primaries: Mapping[RangeId, NodeId]
    replicas: Mapping[RangeId, frozenset[NodeId]]
    missing: Mapping[RangeId, int]
    """Per range: replicas without a place, because there are too few zones or hosts are full. Complete ranges are left out."""
    cost: float


@dataclass(frozen=True)
class HandOver:
    """Make another host the primary of a range."""

    range: RangeId
    target: NodeId
    source: NodeId | None
    """The old primary. None if it failed; the target then replays the tuples that the checkpoint lacks."""
    light: bool
    """True if the target has a copy, so that only the last increment is shipped; otherwise the whole state is."""


@dataclass(frozen=True)
class ShipCopy:
    """Ship a copy of a range to a host."""

    range: RangeId
    source: NodeId | None
    """The nearest host with a copy. None if no copy is left, so that it must be restored from durable storage."""
    target: NodeId


@dataclass(frozen=True)
class Drop:
    """Delete the copy that a node has."""

    range: RangeId
    node: NodeId


Change = HandOver | ShipCopy | Drop


def holders(each: KeyRange, hosts: Hosts) -> list[int]:
    """The living hosts with a copy of a range, the primary first."""
    return [hosts.index[name] for name in (each.primary, *sorted(each.replicas)) if name in hosts.index]


def changes(ranges: Sequence[KeyRange], hosts: Hosts, after: Arrangement) -> tuple[Change, ...]:
    """The changes that lead to an arrangement: first hand-overs, then new copies, then copies to drop."""
    hand_overs: list[Change] = []
    ships: list[Change] = []
    drops: list[Change] = []
    names = hosts.names
    for each in ranges:
        have = {names[at] for at in holders(each, hosts)}
        primary, replicas = after.primaries[each.name], after.replicas[each.name]
        if primary != each.primary:
            hand_overs.append(HandOver(each.name, primary, each.primary if each.primary in hosts.index else None, primary in have))
        for target in sorted(replicas - have):
            ships.append(ShipCopy(each.name, _nearest(have, target, hosts), target))
        drops += [Drop(each.name, node) for node in sorted(have - replicas - {primary})]
    return (*hand_overs, *ships, *drops)


def _nearest(have: Iterable[NodeId], target: NodeId, hosts: Hosts) -> NodeId | None:
    return min(have, key=lambda name: (hosts.switches[hosts.index[name], hosts.index[target]], name), default=None)


def check_ranges(ranges: Sequence[KeyRange]) -> None:
    """Refuse two ranges with one name."""
    names = [each.name for each in ranges]
    expect(len(set(names)) == len(names), "ranges", "every name once", names)


def copy_costs(each: KeyRange, hosts: Hosts, config: ReplicaConfig, primary: int) -> Vector:
    """The cost per checkpoint of a replica on each host, if the primary is on host number `primary`."""
    ship = hosts.ship(config)
    have = holders(each, hosts)
    # If no copy is left, the state comes from durable storage, which counts as the farthest host.
    fetch = ship[have].min(axis=0) if have else np.full(len(hosts.hosts), ship.max())
    fetch = each.state_bytes * fetch / config.horizon + STAY
    fetch[have] = 0.0
    costs: Vector = each.delta_bytes * ship[primary] + fetch
    return costs
