"""Simple placements by average load, with which Borealis compares its own (3.1, Fig. 4; 3.2, Fig. 5).

The paper names these alternatives without printing them. Largest load first assigns operators, largest first, each to the node with the
least load per capacity. RAND-GLB does the same in random order. The plain random placement gives every node the same number of operators.

No running query uses them; scenarios of the simulator run them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from headrace.control.network import Node, Placement, check_nodes
from headrace.ids import OperatorId


def largest_first(loads: Mapping[OperatorId, float], nodes: Sequence[Node]) -> Placement:
    """Assign the largest operators first, each to the node with the least load.

    >>> largest_first({"a": 1.0, "b": 3.0, "c": 2.0}, [Node("x"), Node("y")])
    {'b': 'x', 'c': 'y', 'a': 'y'}
    """
    return _deal_out(sorted(loads, key=lambda name: -loads[name]), loads, nodes)


def random_balanced(loads: Mapping[OperatorId, float], nodes: Sequence[Node], seed: int) -> Placement:
    """Assign operators in random order, each to the node with the least load."""
    names = list(loads)
    return _deal_out([names[at] for at in np.random.default_rng(seed).permutation(len(names))], loads, nodes)


def random_even(operators: Sequence[OperatorId], nodes: Sequence[Node], seed: int) -> Placement:
    """Assign the same number of random operators to every node."""
    check_nodes(nodes)
    order = np.random.default_rng(seed).permutation(len(operators))
    return {operators[at]: nodes[turn % len(nodes)].name for turn, at in enumerate(order)}


def _deal_out(order: Iterable[OperatorId], loads: Mapping[OperatorId, float], nodes: Sequence[Node]) -> Placement:
    check_nodes(nodes)
    heap = [(0.0, at) for at in range(len(nodes))]
    placement = {}
    for name in order:
        used, at = heap[0]
        placement[name] = nodes[at].name
        heapq.heapreplace(heap, (used + loads[name] / nodes[at].capacity, at))
    return placement
