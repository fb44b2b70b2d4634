"""Places replicas for primaries that stay where they are (replica groups 3.5).

With one replica per range this is the assignment problem, as in the paper. It is solved by scipy's Hungarian method, with a column for
each place on a host. That method cannot put q replicas on distinct nodes, so for q > 1 it is the transport problem

    minimise  sum cost_gn x_gn      sum_n x_gn + missing_g = q        sum over a zone of x_gn <= 1, none in the primary's zone
                                    sum_g x_gn <= places of n         0 <= x_gn <= 1

This is a flow from ranges over (range, zone) to hosts, and its linear program has an integral optimum. A replica without a place is
`missing`, at a cost above all others, so there is always a solution. The paper does not treat this case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import coo_array, csr_array, vstack

from headrace.control.network import Matrix, NodeId
from headrace.control.replicas.model import Arrangement, Hosts, KeyRange, RangeId, ReplicaConfig, check_ranges, copy_costs
from headrace.errors import QueryError, require

DENSE_MAX = 4_000_000
"""The largest table of costs for the Hungarian method, in entries."""


def place_replicas(ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig | None = None) -> Arrangement:
    """The cheapest places for q replicas of every range, with at most one copy of a range per zone.

    >>> from headrace.control.network import Node
    >>> from headrace.control.replicas.model import Host
    >>> hosts = Hosts.by_zone([Host(Node("a")), Host(Node("b"), load=0.9), Host(Node("c"))])
    >>> place_replicas([KeyRange("r", "a")], hosts).replicas
    {'r': frozenset({'c'})}
    """
    check_ranges(ranges)
    config = config or ReplicaConfig()
    lost = [each.name for each in ranges if each.primary not in hosts.index]
    if lost:
        hint = "place primaries too: place_together"
        raise QueryError(where="place_replicas", wanted="primaries on hosts", found=f"none for {lost}", hint=hint)
    if not ranges:
        return Arrangement({}, {}, {}, 0.0)
    costs = _costs(ranges, hosts, config)
    chosen = _solved(costs, ranges, hosts, config)
    return _arranged(ranges, hosts, chosen, costs, config)


def _solved(costs: Matrix, ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig) -> npt.NDArray[np.bool_]:
    if config.replicas > 1:
        return _transport(costs, ranges, hosts, config)
    cheapest: npt.NDArray[np.bool_] = (np.arange(costs.shape[1]) == costs.argmin(axis=1)[:, None]) & np.isfinite(costs)
    if cheapest.any(axis=1).all() and (cheapest.sum(axis=0) <= [host.replicas_max for host in hosts.hosts]).all():
        # Every range can have its cheapest place.
        return cheapest
    # The Hungarian method has a dense column for every place. If there are many, a sparse linear program is smaller.
    dense = len(ranges) * sum(_places(ranges, hosts)) <= DENSE_MAX
    return (_hungarian if dense else _transport)(costs, ranges, hosts, config)


def _costs(ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig) -> Matrix:
    """The cost of a replica of each range (row) on each host (column); infinite in the primary's zone."""
    _, zones = np.unique(np.array(hosts.zones), return_inverse=True)
    costs = np.zeros((len(ranges), len(hosts.hosts)))
    for row, each in enumerate(ranges):
        primary = hosts.index[each.primary]
        costs[row] = np.where(zones == zones[primary], np.inf, copy_costs(each, hosts, config, primary))
    return costs


def _places(ranges: Sequence[KeyRange], hosts: Hosts) -> list[int]:
    """How many replicas each host can take, at most one per range."""
    return [min(host.replicas_max, len(ranges)) for host in hosts.hosts]


def _hungarian(costs: Matrix, ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig) -> npt.NDArray[np.bool_]:
    places = np.repeat(np.arange(len(hosts.hosts)), _places(ranges, hosts))
    # One more column per range: no place.
    nowhere = np.full((len(ranges), len(ranges)), missing_cost(costs, config.replicas))
    rows, columns = linear_sum_assignment(np.hstack([costs[:, places], nowhere]))
    chosen = np.zeros(costs.shape, dtype=bool)
    placed = columns < len(places)
    chosen[rows[placed], places[columns[placed]]] = True
    return chosen


def _transport(costs: Matrix, ranges: Sequence[KeyRange], hosts: Hosts, config: ReplicaConfig) -> npt.NDArray[np.bool_]:
    """Solve the transport problem. Variables: a copy for every possible pair of range and host, then the missing copies of each range."""
    row, column = np.nonzero(np.isfinite(costs))
    zone_names, zone = np.unique(np.array(hosts.zones), return_inverse=True)
    size = len(row) + len(ranges)
    copies = _sums(np.concatenate([row, np.arange(len(ranges))]), len(ranges), size)
    per_zone = _sums(row * len(zone_names) + zone[column], len(ranges) * len(zone_names), size)
    per_host = _sums(column, len(hosts.hosts), size)
    prices = np.concatenate([costs[row, column], np.full(len(ranges), missing_cost(costs, config.replicas))])
    found = linprog(
        prices / prices.max(),
        A_ub=vstack([per_zone, per_host], format="csr"),
        b_ub=np.concatenate([np.ones(per_zone.shape[0]), [float(host.replicas_max) for host in hosts.hosts]]),
        A_eq=copies,
        b_eq=np.full(len(ranges), float(config.replicas)),
        bounds=[(0, 1)] * len(row) + [(0, None)] * len(ranges),
        # The dual simplex ends in a corner of the feasible set, and all corners are integral.
        method="highs-ds",
    )
    require(found.success, f"the transport problem has a solution; the solver says: {found.message}")
    x = found.x[: len(row)]
    require(bool((np.abs(x - x.round()) < 1e-6).all()), "the transport problem has an integral optimum")
    chosen = np.zeros(costs.shape, dtype=bool)
    chosen[row, column] = x > 0.5
    return chosen


def _sums(row: npt.NDArray[np.int64], rows: int, size: int) -> csr_array:
    """A matrix that adds variable i to the sum in row `row[i]`."""
    return coo_array((np.ones(len(row)), (row, np.arange(len(row)))), (rows, size)).tocsr()


def missing_cost(costs: Matrix, replicas: int) -> float:
    """A cost above the sum of all others, so that a replica is missing only if there is no place."""
    finite = costs[np.isfinite(costs)]
    return (float(finite.max(initial=0.0)) + 1e-9) * (replicas * len(costs) + 1)


def _arranged(ranges: Sequence[KeyRange], hosts: Hosts, chosen: npt.NDArray[np.bool_], costs: Matrix, config: ReplicaConfig) -> Arrangement:
    names = hosts.names
    replicas: dict[RangeId, frozenset[NodeId]] = {}
    missing: dict[RangeId, int] = {}
    for each, row in zip(ranges, chosen, strict=True):
        replicas[each.name] = frozenset(names[at] for at in np.flatnonzero(row))
        if len(replicas[each.name]) < config.replicas:
            missing[each.name] = config.replicas - len(replicas[each.name])
    return Arrangement({each.name: each.primary for each in ranges}, replicas, missing, float(costs[chosen].sum()))
