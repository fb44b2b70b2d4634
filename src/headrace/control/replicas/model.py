"""Ranges of keys and their copies, hosts, and what it costs to ship state between them (replica groups 3.5).

Every range has a primary, which processes its tuples, and q replicas, which get its incremental checkpoints. Shipping costs bytes times the
network switches on the way plus the work load of both ends. A copy where none was costs the whole state once; that is spread over `horizon`
checkpoints, so that a move must pay off within so many. With costs of moves in the sum, placing again after a node came or went changes
only what is worth it: this stands in for the incremental Hungarian algorithm that the paper cites (its answer is the same optimum).

Fault zones are Floe's (section VII): no two copies of a range in one. The paper has nodes only.
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

# What makes staying win against an equally good place elsewhere.
STAY = 1e-6


@dataclass(frozen=True)
class Host:
    node: Node
    load: float = 0.0
    """Its work load now, as a share of its capacity; what makes shipping from and to it slow."""
    replicas_max: int = 1_000_000

    def __post_init__(self) -> None:
        expect(0 <= self.load < math.inf, f"Host {self.node.name!r}", "a load of 0 or more", self.load)
        expect(self.replicas_max >= 0, f"Host {self.node.name!r}", "replicas_max of 0 or more", self.replicas_max)


@dataclass(frozen=True)
class KeyRange:
    name: RangeId
    primary: NodeId
    """Where it is processed; a node that is no host any more has failed."""
    replicas: frozenset[NodeId] = frozenset()
    state_bytes: float = 1.0
    delta_bytes: float = 0.1
    """Of an incremental checkpoint."""
    load: float = 0.0
    """CPU seconds per second that its primary spends."""

    def __post_init__(self) -> None:
        where = f"KeyRange {self.name!r}"
        expect(self.primary not in self.replicas, where, "replicas elsewhere than the primary", sorted(self.replicas))
        for field in ("state_bytes", "delta_bytes", "load"):
            expect(0 <= getattr(self, field) < math.inf, where, f"{field} of 0 or more", getattr(self, field))


@dataclass(frozen=True)
class ReplicaConfig:
    replicas: int = 1
    """q: a range survives q failures."""
    load_weight: float = 2.0
    """How many switches a full load of one end counts for."""
    horizon: float = 100.0
    """Checkpoints within which moving a copy must pay off."""
    waiting_weight: float = 10.0
    """What a byte counts for that a range has to wait for: those of a hand-over."""
    utilisation_max: float = 0.8
    """How full primaries may make a host, where they are placed too."""
    spare_hosts: int = 2
    """Primaries go to hosts that have a copy, or to so many of the least loaded others."""

    def __post_init__(self) -> None:
        where = "ReplicaConfig"
        expect(self.replicas >= 1, where, "replicas of 1 or more", self.replicas)
        expect(self.load_weight >= 0, where, "load_weight of 0 or more", self.load_weight)
        expect(self.horizon > 0, where, "horizon above 0", self.horizon)
        expect(self.waiting_weight >= 0, where, "waiting_weight of 0 or more", self.waiting_weight)
        expect(0 < self.utilisation_max <= 1, where, "utilisation_max above 0, up to 1", self.utilisation_max)
        expect(self.spare_hosts >= 0, where, "spare_hosts of 0 or more", self.spare_hosts)


@dataclass(frozen=True, eq=False)
class Hosts:
    """The hosts that are alive, and the switches between them."""

    hosts: tuple[Host, ...]
    switches: Matrix

    def __post_init__(self) -> None:
        check_nodes([host.node for host in self.hosts])
        fits = self.switches.shape == (len(self.hosts),) * 2 and bool((self.switches >= 0).all())
        expect(fits, "Hosts", f"a {len(self.hosts)} x {len(self.hosts)} matrix of 0 or more", self.switches.shape)

    @classmethod
    def by_zone(cls, hosts: Sequence[Host], inside: float = 1.0, between: float = 3.0) -> Hosts:
        """One switch within a zone, three (up and down again) between zones."""
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
        """As loaded as they would be without the primaries of these ranges."""
        loads: dict[NodeId, float] = {}
        for each in ranges:
            loads[each.primary] = loads.get(each.primary, 0.0) + each.load
        rest = [max(host.load - loads.get(host.node.name, 0.0) / host.node.capacity, 0.0) for host in self.hosts]
        return Hosts(tuple(replace(host, load=load) for host, load in zip(self.hosts, rest, strict=True)), self.switches)

    def ship(self, config: ReplicaConfig) -> Matrix:
        """The cost of a byte from host to host; the same for every range."""
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
    """Where the copies go."""

    primaries: Mapping[RangeId, NodeId]
    replicas: Mapping[RangeId, frozenset[NodeId]]
    missing: Mapping[RangeId, int]
    """Replicas that found no place: too few zones, or hosts that are full. Ranges that lack none are left out."""
    cost: float


@dataclass(frozen=True)
class HandOver:
    range: RangeId
    target: NodeId
    source: NodeId | None
    """None: it failed, and the target replays what the checkpoint lacks."""
    light: bool
    """The target has a copy, so only the last delta moves; else the whole state goes first."""


@dataclass(frozen=True)
class Ship:
    range: RangeId
    source: NodeId | None
    """The nearest host with a copy; None: none is left, restore it from durable storage."""
    target: NodeId


@dataclass(frozen=True)
class Drop:
    range: RangeId
    node: NodeId


Change = HandOver | Ship | Drop


def holders(each: KeyRange, hosts: Hosts) -> list[int]:
    """The hosts alive that have a copy of a range, the primary first."""
    return [hosts.index[name] for name in (each.primary, *sorted(each.replicas)) if name in hosts.index]


def changes(ranges: Sequence[KeyRange], hosts: Hosts, after: Arrangement) -> tuple[Change, ...]:
    """What has to be done: first hand over, then ship new copies, then drop what is too many."""
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
            ships.append(Ship(each.name, _nearest(have, target, hosts), target))
        drops += [Drop(each.name, node) for node in sorted(have - replicas - {primary})]
    return (*hand_overs, *ships, *drops)


def _nearest(have: Iterable[NodeId], target: NodeId, hosts: Hosts) -> NodeId | None:
    return min(have, key=lambda name: (hosts.switches[hosts.index[name], hosts.index[target]], name), default=None)


def check_ranges(ranges: Sequence[KeyRange]) -> None:
    names = [each.name for each in ranges]
    expect(len(set(names)) == len(names), "ranges", "every name once", names)


def copy_costs(each: KeyRange, hosts: Hosts, config: ReplicaConfig, primary: int) -> Vector:
    """What a replica on each host costs per checkpoint while the primary is on this one."""
    ship = hosts.ship(config)
    have = holders(each, hosts)
    # From durable storage when no copy is left: as far as the farthest host.
    fetch = ship[have].min(axis=0) if have else np.full(len(hosts.hosts), ship.max())
    fetch = each.state_bytes * fetch / config.horizon + STAY
    fetch[have] = 0.0
    costs: Vector = each.delta_bytes * ship[primary] + fetch
    return costs
