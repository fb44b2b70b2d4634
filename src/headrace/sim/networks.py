"""Networks to try load shedding on: the paper's own example, and five of growing imbalance."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.control.network import Deployment, NetworkOperator, NetworkQuery, Node, NodeId, StreamId, expect
from headrace.ids import OperatorId

IMBALANCES = (1.0, 1.5, 2.0, 4.0, 8.0)
"""The load of the heaviest path over that of the lightest, for each network."""


def chains(costs: Sequence[Sequence[float]], capacity: float = 1.0) -> Deployment:
    """Paths side by side through the same nodes: `costs[n][p]` is what a tuple of path p costs on node n.

    >>> chains([[1, 2], [3, 1]]).loads.tolist()
    [[1.0, 2.0], [3.0, 1.0]]
    """
    nodes = [Node(NodeId(f"node{at}"), capacity) for at in range(len(costs))]
    sources = [StreamId(f"in{path}") for path in range(len(costs[0]))]
    operators, placement, before = [], {}, list(sources)
    for node, row in zip(nodes, costs, strict=True):
        for path, cost in enumerate(row):
            name = OperatorId(f"{node.name}.path{path}")
            operators.append(NetworkOperator(name, (before[path],), cost=cost))
            placement[name] = node.name
            before[path] = StreamId(name)
    return Deployment(NetworkQuery(tuple(sources), tuple(operators)), tuple(nodes), placement)


def table_1() -> Deployment:
    """Fig. 6 of the paper: two queries over nodes A and B. These costs alone give all cells of its Table 1."""
    return chains([[1, 2], [3, 1]])


def growing_imbalance(paths: int = 2, nodes: int = 3) -> tuple[Deployment, ...]:
    """Five networks for Fig. 8, whose own are not printed: the same load, spread over their paths ever more unevenly.

    At one tuple per second of every input each node has exactly its capacity to do, in all five. Path costs grow evenly from the lightest
    to the heaviest, which has `IMBALANCES` times the load of the first.
    """
    expect(paths > 1 and nodes > 0, "growing_imbalance", "two paths or more, one node or more", (paths, nodes))
    return tuple(chains([_spread(paths, ratio)] * nodes) for ratio in IMBALANCES)


def _spread(paths: int, ratio: float) -> list[float]:
    raw = [1 + (ratio - 1) * path / (paths - 1) for path in range(paths)]
    return [cost / sum(raw) for cost in raw]


def fair_share(rates: Sequence[float], costs: Sequence[float], capacity: float) -> tuple[float, ...]:
    """The rates that an overloaded node serves without shedding: round-robin, one tuple of each subquery in turn, up to its capacity.

    >>> fair_share([1.0, 1.0], [1.0, 3.0], 1.0)
    (0.25, 0.25)
    >>> fair_share([1.0, 0.125], [1.0, 4.0], 1.0)
    (0.5, 0.125)
    """
    expect(len(rates) == len(costs), "fair_share", "a cost for every rate", (tuple(rates), tuple(costs)))
    left, served = capacity, list(rates)
    by_rate = sorted(range(len(rates)), key=lambda at: rates[at])
    for turn, at in enumerate(by_rate):
        level = left / max(sum(costs[other] for other in by_rate[turn:]), 1e-300)
        served[at] = min(rates[at], level)
        left -= costs[at] * served[at]
    return tuple(served)
