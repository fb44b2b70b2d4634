"""Resilient placement, ROD (Borealis 3.2): a static placement that can bear as many combinations of input rates as possible.

A node's load is linear in the rates of the sources. So the rates that a node can bear lie below a plane, and the rates that all nodes can
bear, the *feasible set*, lie below all planes. The set is largest if all planes are the same: every node has its share, by capacity, of
every source's load. This is the *ideal*. In coordinates x_k = (load of source k) / (total capacity) it is x >= 0, sum x <= 1, and

    node i bears x  <=>  w_i . x <= 1       w_ik = (its share of the load of k) / (its share of the capacity)

So w_ik = 1 everywhere is ideal, the plane of node i cuts axis k at 1 / w_ik, and its distance from the origin is 1 / |w_i|.

Differences from the paper:

- Operators are ordered by the norm of their load in these coordinates, so that the units of rates do not matter. The paper says "effect on
  load".
- Among class I nodes the paper chooses at random or by "another orthogonal criterion". Here the node with the largest plane distance is
  chosen, or, with `class_one="neighbours"`, the one with most neighbours of the operator in the query.
- Among class II nodes the paper chooses the one with the largest plane distance. Its plane may already cut an axis below the ideal and
  then cuts it even lower, while another node would cut it less. Here the node is chosen that adds least to the sum of
  (w_ik - 1)^2 over all w_ik > 1, plus a little of |w_i|^2. On random queries on 4 to 10 nodes the feasible set was larger, or equal within
  0.001 for few operators: 0.93 against 0.87 of the ideal for 200 operators on 10 nodes. `class_two="plane"` is the paper's choice.
- The heuristics MMAD and MMPD can be used alone, for comparison. Sources without any load are no dimension of the feasible set.

No running query uses it; scenarios of the simulator run it. It is for the first homes of a query, from the costs that `hr.measure` finds.
Today `homes` balances the number of instances per executor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import qmc

from headrace.control.network import Deployment, Matrix, NetworkQuery, Node, Placement, Vector, check_nodes, expect

# Sums of many shares count as "not above 1" up to this rounding error.
ROUNDING = 1e-9

# The weight of a plane's distance compared with its excess. From 0.01 to 0.03 the results differ by a hundredth at most.
LENGTH_WEIGHT = 0.02


@dataclass(frozen=True)
class ResilientConfig:
    """Settings of the placement."""

    heuristic: Literal["rod", "mmad", "mmpd"] = "rod"
    """``rod``: both heuristics, by the classes of nodes. ``mmad``: axis distances only. ``mmpd``: plane distances only."""
    class_one: Literal["plane", "neighbours"] = "plane"
    """The choice among class I nodes: the largest plane distance, or most neighbours of the operator, for less traffic."""
    class_two: Literal["excess", "plane"] = "excess"
    """The choice among class II nodes: the least added excess over the ideal, or the largest plane distance."""

    def __post_init__(self) -> None:
        where = "ResilientConfig"
        expect(self.heuristic in ("rod", "mmad", "mmpd"), where, "heuristic rod, mmad or mmpd", self.heuristic)
        expect(self.class_one in ("plane", "neighbours"), where, "class_one plane or neighbours", self.class_one)
        expect(self.class_two in ("excess", "plane"), where, "class_two excess or plane", self.class_two)


def place(query: NetworkQuery, nodes: Sequence[Node], config: ResilientConfig | None = None) -> Placement:
    """Place each operator, the heaviest first, on the node where it reduces the feasible set least.

    >>> from headrace.control.network import NetworkOperator
    >>> chains = [NetworkOperator(name, (name[0],)) for name in ("a1", "a2", "b1", "b2")]
    >>> place(NetworkQuery(("a", "b"), tuple(chains)), [Node("x"), Node("y")])
    {'a1': 'x', 'a2': 'y', 'b1': 'x', 'b2': 'y'}
    """
    check_nodes(nodes)
    config = config or ResilientConfig()
    shares = _shares(query.loads)
    capacities = np.array([node.capacity for node in nodes])
    portion = capacities / capacities.sum()
    weights = np.zeros((len(nodes), shares.shape[1]))
    neighbours = _neighbours(query)
    at: dict[int, int] = {}
    for each in np.argsort(-np.linalg.norm(shares, axis=1), kind="stable").tolist():
        after = weights + shares[each] / portion[:, None]
        near = np.zeros(len(nodes))
        for other in neighbours[each] & at.keys():
            near[at[other]] += 1
        at[each] = _chosen(weights, after, near, config)
        weights[at[each]] = after[at[each]]
    return {query.operators[each].name: nodes[node].name for each, node in sorted(at.items())}


def _chosen(before: Matrix, after: Matrix, near: Vector, config: ResilientConfig) -> int:
    """The node for an operator, given the weights of each node without and with it."""
    # Plane distance: the shorter the vector, the farther the plane. Squares give the same order.
    lengths = (after**2).sum(axis=1)
    if config.heuristic == "mmad":
        return int(np.lexsort((lengths, after.max(axis=1, initial=0.0)))[0])
    class_one = (after <= 1 + ROUNDING).all(axis=1)
    if config.heuristic == "mmpd" or not class_one.any():
        if config.heuristic == "rod" and config.class_two == "excess":
            lengths = _excess(after) - _excess(before) + LENGTH_WEIGHT * lengths
        return int(np.argmin(lengths))
    preference = near if config.class_one == "neighbours" else np.zeros(len(near))
    return int(np.lexsort((lengths, -preference, ~class_one))[0])


def _excess(weights: Matrix) -> Vector:
    """Per node: the sum of squares by which its weights exceed the ideal."""
    squares: Vector = (np.maximum(weights - 1, 0.0) ** 2).sum(axis=1)
    return squares


def weights_of(deployment: Deployment) -> Matrix:
    """w_ik of a placement: a row per node, a column per source with any load. All 1 is ideal.

    >>> from headrace.control.network import NetworkOperator
    >>> two = NetworkQuery(("a", "b"), (NetworkOperator("f", ("a",)), NetworkOperator("g", ("b",))))
    >>> weights_of(Deployment(two, (Node("x"), Node("y")), {"f": "x", "g": "y"})).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    capacities = deployment.capacities
    weights: Matrix = _shares(deployment.loads) / (capacities / capacities.sum())[:, None]
    return weights


def feasible_share(deployment: Deployment, samples_log2: int = 12, seed: int = 0) -> float:
    """The size of the feasible set relative to the ideal, by quasi-Monte Carlo over the ideal simplex, which contains it.

    >>> from headrace.control.network import NetworkOperator
    >>> two = NetworkQuery(("a", "b"), (NetworkOperator("f", ("a",)), NetworkOperator("g", ("b",))))
    >>> round(feasible_share(Deployment(two, (Node("x"), Node("y")), {"f": "x", "g": "y"})), 2)
    0.5
    """
    expect(1 <= samples_log2 <= 24, "feasible_share", "samples_log2 from 1 to 24", samples_log2)
    weights = weights_of(deployment)
    if not weights.size:
        return 1.0
    points = simplex_points(weights.shape[1], samples_log2, seed)
    return float((points @ weights.T <= 1 + ROUNDING).all(axis=1).mean())


def simplex_points(dimensions: int, samples_log2: int, seed: int) -> Matrix:
    """2^samples_log2 points spread evenly over x >= 0, sum x <= 1: the gaps between sorted coordinates of a Sobol sequence."""
    cube = qmc.Sobol(dimensions, seed=seed).random_base2(samples_log2)
    gaps: Matrix = np.diff(np.sort(cube, axis=1), axis=1, prepend=0.0)
    return gaps


def _shares(loads: Matrix) -> Matrix:
    """The share of each row in the load of every source. Sources without load are left out."""
    totals = loads.sum(axis=0)
    shares: Matrix = loads[:, totals > 0] / totals[totals > 0]
    return shares


def _neighbours(query: NetworkQuery) -> list[set[int]]:
    index = {each.output: at for at, each in enumerate(query.operators)}
    found: list[set[int]] = [set() for _ in query.operators]
    for at, each in enumerate(query.operators):
        for other in (index[stream] for stream in each.inputs if stream in index):
            found[at].add(other)
            found[other].add(at)
    return found
