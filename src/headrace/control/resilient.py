"""Resilient placement, ROD (Borealis 3.2): a static placement that bears as many combinations of input rates as it can.

A node's load is linear in the rates of the sources, so the rates it can bear lie below a plane, and the rates that all nodes can bear, the
*feasible set*, below all planes. It is largest if all planes are the same, that is if every node has of every source's load its share by
capacity: the *ideal*. In coordinates x_k = (load of source k) / (total capacity) the ideal is the simplex x >= 0, sum x <= 1, and

    node i bears x  <=>  w_i . x <= 1       w_ik = (its share of the load of k) / (its share of the capacity)

so w_ik = 1 everywhere is ideal, 1 / w_ik is where its plane cuts axis k, and 1 / |w_i| its distance from the origin.

Where it departs from the paper:

- Operators are ordered by the norm of their load in these coordinates, so that the units of rates do not matter (the paper says "effect on
  load").
- Among class I nodes, where the paper picks at random or by "another orthogonal criterion", ours takes the one with the largest plane
  distance, or with most neighbours in the query if asked to.
- Among class II nodes the paper takes the one with the largest plane distance. That one may already cut an axis before the ideal, and
  cuts it again, while another would have cut it for the first time and less. Ours takes the node that adds least to the squares of what
  weights exceed 1 by, with a little of the squared length of w, so that planes count too. On random queries, on 4 to 10 nodes, the
  feasible set was larger, or the same within 0.001 where operators are few: 0.93 against 0.87 of the ideal for 200 operators on 10 nodes.
  `class_two="plane"` is the paper's.
- MMAD and MMPD alone are offered for comparison. Sources that put no load on anything are no dimension of the feasible set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import qmc

from headrace.control.network import Deployment, Matrix, Node, Placement, Query, Vector, check_nodes, expect

# What counts as "not above 1" in sums of many shares.
ROUNDING = 1e-9

# How much a plane's distance counts beside its excess; from 0.01 to 0.03 the results are the same but for a hundredth.
LENGTH_WEIGHT = 0.02


@dataclass(frozen=True)
class ResilientConfig:
    heuristic: Literal["rod", "mmad", "mmpd"] = "rod"
    """Both heuristics by the classes of nodes; or only axis distances; or only plane distances."""
    class_one: Literal["plane", "neighbours"] = "plane"
    """Which node of class I: the one with the largest plane distance, or with most neighbours of the operator, for less traffic."""

    class_two: Literal["excess", "plane"] = "excess"
    """Which node of class II: the one that adds least to what exceeds the ideal, or the one with the largest plane distance."""

    def __post_init__(self) -> None:
        where = "ResilientConfig"
        expect(self.heuristic in ("rod", "mmad", "mmpd"), where, "heuristic rod, mmad or mmpd", self.heuristic)
        expect(self.class_one in ("plane", "neighbours"), where, "class_one plane or neighbours", self.class_one)
        expect(self.class_two in ("excess", "plane"), where, "class_two excess or plane", self.class_two)


def place(query: Query, nodes: Sequence[Node], config: ResilientConfig | None = None) -> Placement:
    """Each operator, the heaviest first, on the node where it costs least of the feasible set.

    >>> from headrace.control.network import Operator
    >>> chains = [Operator(name, (name[0],)) for name in ("a1", "a2", "b1", "b2")]
    >>> place(Query(("a", "b"), tuple(chains)), [Node("x"), Node("y")])
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
    """The node for an operator, given the weights of each without and with it."""
    # Plane distance: the shorter the vector, the farther the plane. Squares order the same way.
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
    """Of each node, the squares of what its weights exceed the ideal by."""
    squares: Vector = (np.maximum(weights - 1, 0.0) ** 2).sum(axis=1)
    return squares


def weights_of(deployment: Deployment) -> Matrix:
    """w_ik of a placement: nodes by sources that have any load. All 1 is ideal.

    >>> from headrace.control.network import Operator
    >>> two = Query(("a", "b"), (Operator("f", ("a",)), Operator("g", ("b",))))
    >>> weights_of(Deployment(two, (Node("x"), Node("y")), {"f": "x", "g": "y"})).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    capacities = deployment.capacities
    weights: Matrix = _shares(deployment.loads) / (capacities / capacities.sum())[:, None]
    return weights


def axis_distances(weights: Matrix) -> Vector:
    """Per source, the nearest point where a node's plane cuts its axis; 1 is ideal."""
    distances: Vector = 1 / weights.max(axis=0)
    return distances


def plane_distance(weights: Matrix) -> float:
    """The distance from the origin of the nearest plane; 1 / sqrt(sources) is ideal, and without any load there is no plane."""
    longest = float(np.linalg.norm(weights, axis=1).max())
    return 1 / longest if longest else math.inf


def feasible_share(deployment: Deployment, samples_log2: int = 12, seed: int = 0) -> float:
    """The size of the feasible set relative to the ideal, by quasi-Monte Carlo over the ideal simplex, which contains it.

    >>> from headrace.control.network import Operator
    >>> two = Query(("a", "b"), (Operator("f", ("a",)), Operator("g", ("b",))))
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
    """Of every source that has any load: the share of each row."""
    totals = loads.sum(axis=0)
    shares: Matrix = loads[:, totals > 0] / totals[totals > 0]
    return shares


def _neighbours(query: Query) -> list[set[int]]:
    index = {each.output: at for at, each in enumerate(query.operators)}
    found: list[set[int]] = [set() for _ in query.operators]
    for at, each in enumerate(query.operators):
        for other in (index[stream] for stream in each.inputs if stream in index):
            found[at].add(other)
            found[other].add(at)
    return found
