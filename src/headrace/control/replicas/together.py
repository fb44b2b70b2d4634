"""Places primaries and replicas together (replica groups 3.5 and 4.1): after a failure, an overload, or when a node joins.

The cost of a replica depends on the place of its primary. So the variables are y_gn, the primary of range g on host n, and x_gnm, a
replica on host m while the primary is on n.

    minimise   cost of primaries + cost of replicas + much * missing replicas + more than any move * (overload + excess)
    such that  one primary; q replicas of it, none in its zone, one per zone; so many replicas per host;
               per host, load of primaries - overload <= what it bears, beside its other load;
               per host, state of primaries - excess <= the most state

The paper has no formula for this. Loads of ranges differ, so this is no flow problem with an integral linear program; scipy's
mixed-integer solver (HiGHS) finds the optimum. A primary moves only if its host failed, is overloaded, or has too much state: cheaper
shipping alone is not worth interrupting a range. It goes to a host with a copy (then the hand-over is light) or to one of a few hosts
with the least load. The load of primaries does not count in the cost of shipping, because it moves with them; otherwise all would leave
a full host, and come back. A host that stays overloaded in any arrangement is no error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from headrace.control.network import NodeId, Vector
from headrace.control.replicas.model import (
    STAY,
    Arrangement,
    Change,
    Host,
    Hosts,
    KeyRange,
    RangeId,
    ReplicaConfig,
    changes,
    check_ranges,
    copy_costs,
    holders,
)
from headrace.errors import require


def place_together(ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig | None = None) -> Arrangement:
    """The cheapest places for the primary and the replicas of every range.

    >>> from headrace.control.network import Node
    >>> from headrace.control.replicas.model import Host
    >>> hosts = Hosts.by_zone([Host(Node("b")), Host(Node("c")), Host(Node("d"))])
    >>> after = place_together([KeyRange("r", "failed", frozenset({"c"}))], hosts)
    >>> after.primaries, after.replicas
    ({'r': 'c'}, {'r': frozenset({'b'})})
    """
    check_ranges(ranges)
    if not ranges:
        return Arrangement({}, {}, {}, 0.0)
    program = _Program(tuple(ranges), hosts.without(ranges), config or ReplicaConfig())
    return program.arranged(program.solved())


def rearrange(ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig | None = None) -> tuple[Change, ...]:
    """The changes to make now; none if no other arrangement is worth its moves.

    >>> from headrace.control.network import Node
    >>> from headrace.control.replicas.model import Host
    >>> hosts = Hosts.by_zone([Host(Node("b")), Host(Node("c"))])
    >>> rearrange([KeyRange("r", "b", frozenset({"c"}))], hosts)
    ()
    >>> rearrange([KeyRange("r", "b", frozenset({"failed"}))], hosts)
    (ShipCopy(range='r', source='b', target='c'),)
    """
    return changes(ranges, hosts, place_together(ranges, hosts, config))


@dataclass(frozen=True, eq=False)
class _Program:
    """The mixed-integer program. Its variables are y, x, the missing replicas of each range, the overload and the excess of each host."""

    ranges: tuple[KeyRange, ...]
    hosts: Hosts
    config: ReplicaConfig

    @cached_property
    def y(self) -> list[tuple[int, int]]:
        return [(g, n) for g, each in enumerate(self.ranges) for n in self._candidates(each)]

    @cached_property
    def x(self) -> list[tuple[int, int]]:
        """For each x: the index of its y, and the host of the replica."""
        zones = self.hosts.zones
        return [(at, m) for at, (_, n) in enumerate(self.y) for m in range(len(zones)) if zones[m] != zones[n]]

    @property
    def size(self) -> int:
        return len(self.y) + len(self.x) + len(self.ranges) + 2 * len(self.hosts.hosts)

    @cached_property
    def overloaded(self) -> set[NodeId]:
        """Hosts whose primaries have more load or more state than the host can bear."""
        load: dict[NodeId, float] = {}
        state: dict[NodeId, float] = {}
        for each in self.ranges:
            load[each.primary] = load.get(each.primary, 0.0) + each.load
            state[each.primary] = state.get(each.primary, 0.0) + self.state_share(each)
        names = ((host, host.node.name) for host in self.hosts.hosts)
        return {name for host, name in names if load.get(name, 0.0) > self.bears(host) or state.get(name, 0.0) > 1}

    def bears(self, host: Host) -> float:
        """The load of primaries that a host can bear. Its load is what it does beside them."""
        return max(0.0, host.node.capacity * (self.config.utilisation_max - host.load))

    def state_share(self, each: KeyRange) -> float:
        """A range's state, as a share of the most that a host's primaries may have."""
        return each.state_bytes / self.config.state_bytes_max

    def _candidates(self, each: KeyRange) -> list[int]:
        if each.primary in self.hosts.index and each.primary not in self.overloaded:
            return [self.hosts.index[each.primary]]
        have = holders(each, self.hosts)
        others = sorted(set(range(len(self.hosts.hosts))) - set(have), key=lambda at: (self.hosts.hosts[at].load, at))
        return have + others[: max(self.config.spare_hosts, 0 if have else 1)]

    @cached_property
    def costs(self) -> Vector:
        """Costs of all variables, scaled so that no replica and no hand-over costs more than 1 by itself."""
        per_primary = [copy_costs(self.ranges[g], self.hosts, self.config, n) for g, n in self.y]
        primaries = np.array([self._primary_cost(self.ranges[g], n) for g, n in self.y])
        replicas = np.array([per_primary[at][m] for at, m in self.x])
        scale = max(primaries.max(initial=0.0), replicas.max(initial=0.0), 1e-300)
        q, count = self.config.replicas, len(self.ranges)
        # Weights: cheaper replicas (at most q) do not justify a hand-over. Less overload by the load of a mean range justifies it, even if
        # all replicas move too; so does less excess by a mean state. A missing replica justifies anything.
        moved = np.array([float(q * (self.hosts.names[n] != self.ranges[g].primary)) for g, n in self.y])
        overload, excess = (
            np.full(len(self.hosts.hosts), min((2 * q + 2) / max(sum(amounts) / count, 1e-300), 1e6))
            for amounts in ([each.load for each in self.ranges], [self.state_share(each) for each in self.ranges])
        )
        missing = np.full(count, float(count * (2 * q + 1) + 1))
        return np.concatenate([primaries / scale + moved, replicas / scale, missing, overload, excess])

    def _primary_cost(self, each: KeyRange, n: int) -> float:
        """The cost of handing the range over to host n; 0 if it is there already."""
        if self.hosts.names[n] == each.primary:
            return 0.0
        ship = self.hosts.ship(self.config)
        have = holders(each, self.hosts)
        sources = [at for at in have if at != n] or have
        distance = float(ship[sources, n].min()) if have else float(ship.max())
        moved_bytes = each.delta_bytes if n in have else each.state_bytes + each.delta_bytes
        return self.config.waiting_weight * moved_bytes * distance / self.config.horizon + STAY

    def solved(self) -> Vector:
        places = np.ones(len(self.y) + len(self.x))
        amounts = self.size - len(places)
        found = milp(
            self.costs,
            integrality=np.concatenate([places, np.zeros(amounts)]),
            bounds=Bounds(0, np.concatenate([places, np.full(amounts, np.inf)])),
            constraints=[self._one_primary(), self._all_replicas(), self._one_per_zone(), self._places(), self._loads(), self._states()],
            options={"mip_rel_gap": 0.0},
        )
        require(found.success, f"an arrangement always exists; the solver says: {found.message}")
        solution: Vector = found.x
        return solution

    def arranged(self, solution: Vector) -> Arrangement:
        names = self.hosts.names
        primaries: dict[RangeId, NodeId] = {}
        replicas: dict[RangeId, frozenset[NodeId]] = {each.name: frozenset() for each in self.ranges}
        for at, (g, n) in enumerate(self.y):
            if solution[at] > 0.5:
                primaries[self.ranges[g].name] = names[n]
        for at, (which, m) in enumerate(self.x, len(self.y)):
            if solution[at] > 0.5:
                replicas[self.ranges[self.y[which][0]].name] |= {names[m]}
        missing = {name: self.config.replicas - len(nodes) for name, nodes in replicas.items() if len(nodes) < self.config.replicas}
        return Arrangement(primaries, replicas, missing, float(self.costs @ solution))

    def _rows(self, entries: Sequence[tuple[int, int, float]], rows: int, low: float | Vector, high: float | Vector) -> LinearConstraint:
        row, column, value = (np.array(part) for part in zip(*entries, strict=True))
        return LinearConstraint(coo_array((value, (row.astype(int), column.astype(int))), (rows, self.size)).tocsr(), low, high)

    def _one_primary(self) -> LinearConstraint:
        return self._rows([(g, at, 1.0) for at, (g, _) in enumerate(self.y)], len(self.ranges), 1, 1)

    def _all_replicas(self) -> LinearConstraint:
        entries = [(self.y[which][0], at, 1.0) for at, (which, _) in enumerate(self.x, len(self.y))]
        entries += [(g, len(self.y) + len(self.x) + g, 1.0) for g in range(len(self.ranges))]
        return self._rows(entries, len(self.ranges), self.config.replicas, self.config.replicas)

    def _one_per_zone(self) -> LinearConstraint:
        """Replicas need their primary, and at most one lies in a zone: for every y and zone, the sum of x in the zone minus y is <= 0."""
        names = sorted(set(self.hosts.zones))
        zone = [names.index(each) for each in self.hosts.zones]
        entries = [(which * len(names) + zone[m], at, 1.0) for at, (which, m) in enumerate(self.x, len(self.y))]
        entries += [(which * len(names) + each, which, -1.0) for which in range(len(self.y)) for each in range(len(names))]
        return self._rows(entries, len(self.y) * len(names), -np.inf, 0)

    def _places(self) -> LinearConstraint:
        entries = [(m, at, 1.0) for at, (_, m) in enumerate(self.x, len(self.y))]
        limits = np.array([float(host.replicas_max) for host in self.hosts.hosts])
        return self._rows(entries or [(0, 0, 0.0)], len(limits), -np.inf, limits)

    def _loads(self) -> LinearConstraint:
        count = len(self.hosts.hosts)
        limits = np.array([self.bears(host) for host in self.hosts.hosts])
        return self._at_most(limits, [each.load for each in self.ranges], self.size - 2 * count)

    def _states(self) -> LinearConstraint:
        count = len(self.hosts.hosts)
        return self._at_most(np.ones(count), [self.state_share(each) for each in self.ranges], self.size - count)

    def _at_most(self, limits: Vector, amounts: Sequence[float], over: int) -> LinearConstraint:
        """Per host: the amounts of its primaries are at most its limit, plus what is over it. Those variables begin at ``over``."""
        entries = [(n, at, amounts[g]) for at, (g, n) in enumerate(self.y)]
        entries += [(n, over + n, -1.0) for n in range(len(limits))]
        return self._rows(entries, len(limits), -np.inf, limits)
