"""Who builds which feasible input table, and all of them built in one place: FIT, centralised (Borealis 4.2).

A node builds a table for itself and all behind it, so nodes that feed each other in a circle can only build one together: they are a
*group*. (Placements that cut chains, as the correlation-based one does, make such circles.) Groups have an order: each has a greater
depth than those that feed it. Tables go from the deepest to the sources:

    source --> group of depth 0 --> group of depth 1 --> results
                       <-- table ---       <-- grid ---
"""

from __future__ import annotations

import graphlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from headrace.control.network import Deployment, NetworkOperator, NodeId, StreamId, expect
from headrace.control.shedding.fit import FeasibleInputs, FitConfig, Table, Workshop


@dataclass(frozen=True)
class Group:
    name: NodeId
    """Its first node, which acts for it."""
    nodes: tuple[NodeId, ...]
    operators: tuple[NetworkOperator, ...]
    """In order downstream."""
    depth: int

    @property
    def outputs(self) -> frozenset[StreamId]:
        return frozenset(each.output for each in self.operators)

    @property
    def inputs(self) -> frozenset[StreamId]:
        """Streams from outside."""
        return frozenset(stream for each in self.operators for stream in each.inputs) - self.outputs


def groups_of(deployment: Deployment) -> tuple[Group, ...]:
    """Each after those that feed it.

    >>> from headrace.control.network import Node, NetworkQuery
    >>> query = NetworkQuery(("a",), (NetworkOperator("f", ("a",)), NetworkOperator("g", ("f",))))
    >>> [(group.name, group.depth) for group in groups_of(Deployment(query, (Node("m"), Node("n")), {"f": "m", "g": "n"}))]
    [('m', 0), ('n', 1)]
    """
    names = [node.name for node in deployment.nodes]
    feeds = np.zeros((len(names), len(names)), dtype=np.int8)
    for operator in deployment.query.operators:
        for arc in deployment.query.consumers[operator.output]:
            feeds[names.index(deployment.placement[operator.name]), names.index(deployment.placement[arc.operator])] = 1
    _, labels = connected_components(feeds, directed=True, connection="strong")
    label_of = dict(zip(names, labels.tolist(), strict=True))
    members: dict[int, list[NetworkOperator]] = {}
    for operator in deployment.query.downstream:
        members.setdefault(label_of[deployment.placement[operator.name]], []).append(operator)
    depths = _depths(members)
    found = []
    for label, operators in members.items():
        nodes = tuple(name for name in names if label_of[name] == label)
        found.append(Group(nodes[0], nodes, tuple(operators), depths[label]))
    return tuple(sorted(found, key=lambda group: (group.depth, group.name)))


def _depths(members: Mapping[int, Sequence[NetworkOperator]]) -> dict[int, int]:
    """The longest way of each group from a source, in groups."""
    owner = {each.output: label for label, operators in members.items() for each in operators}
    feeders = {
        label: {owner[stream] for each in operators for stream in each.inputs if stream in owner} - {label}
        for label, operators in members.items()
    }
    depths: dict[int, int] = {}
    for label in graphlib.TopologicalSorter(feeders).static_order():
        depths[label] = max((1 + depths[other] for other in feeders[label]), default=0)
    return depths


def plan_by_tables(deployment: Deployment, top: Sequence[float], config: FitConfig | None = None) -> FeasibleInputs:
    """All tables, built by a coordinator. `top` are the highest rates of the sources that are worth a row.

    >>> from headrace.control.network import Node, NetworkQuery
    >>> query = NetworkQuery(("a",), (NetworkOperator("f", ("a",), cost=2),))
    >>> tables = plan_by_tables(Deployment(query, (Node("n"),), {"f": "n"}), (1.0,), FitConfig(epsilon=0.1))
    >>> [round(share, 12) for share in tables.choose((1.0,)).inputs.values()]
    [0.5]
    """
    groups = groups_of(deployment)
    workshop = Workshop(deployment.nodes, deployment.placement, config or FitConfig())
    rates = sources_max(deployment, top)
    for group in groups:
        rates = workshop.delivered_max(group.operators, rates)
    tables: list[Table] = []
    for group in reversed(groups):
        mine = [table for table in tables if any(arc.stream in group.outputs for arc in table.open_arcs)]
        built = workshop.table(group.operators, mine, rates)
        tables = [table for table in tables if not any(table is other for other in mine)] + [built]
    return FeasibleInputs.of(deployment, tables)


def sources_max(deployment: Deployment, top: Sequence[float]) -> dict[StreamId, float]:
    """The highest rate of each source, from a list in the order of the sources. Raises an error if the list does not fit."""
    sources = deployment.query.sources
    expect(len(top) == len(sources) and min(top) > 0, "FIT", f"the highest rates of {len(sources)} sources, above 0", tuple(top))
    return {source: float(rate) for source, rate in zip(sources, top, strict=True)}
