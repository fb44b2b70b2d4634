"""Correlation-based placement (Borealis 3.1): even loads, and a small variance of each node's load.

Operators whose loads rise together go to different nodes, so that all nodes share a burst of one stream. The load of an operator is a time
series of fixed length. rho(o, N) is its correlation with the other load of N, and 0 if either is constant (or N is empty).

    score of o for a target     global     mean over nodes j of rho(o, N_j), less rho(o, target)
                                two-way    rho(o, other) - rho(o, target)
                                one-way    rho(o, rest of its node) - rho(o, target)

Differences from the paper:

- The paper chooses among all operators that are not placed yet. A large operator that is placed last spoils the balance, so here only
  operators with at least `band` of the largest remaining load are considered. `band=0` is the paper's choice.
- The paper does not define "balance is achieved". Here an operator moves only if that narrows the gap of the pair, and a new mapping of a
  pair is used only if its gap shrinks by `gain_min` or more. The sum of squared utilisations, weighted by capacity, falls with every
  change, so a steady load comes to rest.
- The paper does not print the order of exchanges. Here the pair is first balanced one way. Then the fuller node gives its best operator
  above `score_min`, each operator once. Of the mappings on the way that are as even as the first, the one with the least variance is used.
- Nodes may differ in capacity: loads are compared per capacity.

`correlation_pairs.py` does the work within a pair.

No running query uses it; scenarios of the simulator run it. It is for homes by measured loads. Today `homes` balances the number of
instances per executor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from headrace.control.correlation_pairs import Indices, Mapping, Pairs, best, exchanged, one_way, two_way
from headrace.control.network import Matrix, Node, NodeId, Placement, Vector, check_nodes, check_placement, expect, node_sums, owners
from headrace.control.wording import percent
from headrace.ids import OperatorId


@dataclass(frozen=True, eq=False)
class LoadHistory:
    """CPU seconds per second of each operator (row) over the last periods (column)."""

    operators: tuple[OperatorId, ...]
    series: Matrix

    def __post_init__(self) -> None:
        expect(len(set(self.operators)) == len(self.operators), "LoadHistory", "every operator once", self.operators)
        fits = self.series.ndim == 2 and len(self.series) == len(self.operators) and self.series.shape[1] > 0
        expect(fits, "LoadHistory", f"a series for each of {len(self.operators)} operators", self.series.shape)
        wrong = self.series[~(np.isfinite(self.series) & (self.series >= 0))]
        expect(not wrong.size, "LoadHistory", "loads of 0 or more", wrong[:3].tolist())

    @cached_property
    def means(self) -> Vector:
        means: Vector = self.series.mean(axis=1)
        return means

    @cached_property
    def shapes(self) -> Matrix:
        """Each series with mean 0 and length 1, or all 0 if it is constant. Products of these are correlations."""
        return _shape(self.series)

    @cached_property
    def centred(self) -> Matrix:
        """Each series with mean 0, or all 0 if it is constant. Products of these are covariances, up to a factor."""
        return _centred(self.series)[0]


@dataclass(frozen=True)
class CorrelationConfig:
    """Settings of the placement."""

    method: Literal["one-way", "two-way", "selective"] = "selective"
    """How a pair of nodes is rebalanced."""
    gap_max: float = 0.1
    """A pair is left alone if its utilisations differ by at most this; 0.1 is a tenth of a core per core."""
    gain_min: float = 0.01
    """The gap of a pair must shrink by at least this much; otherwise nothing is moved."""
    score_min: float = 0.5
    """Operators with a lower score are not exchanged. Scores are from -2 to 2. Lower values give better plans and more moves."""
    band: float = 0.5
    """Only operators with at least this share of the largest remaining load are considered next."""

    def __post_init__(self) -> None:
        where = "CorrelationConfig"
        expect(self.method in ("one-way", "two-way", "selective"), where, "method one-way, two-way or selective", self.method)
        expect(self.gap_max >= 0, where, "gap_max of 0 or more", self.gap_max)
        expect(self.gain_min > 0, where, "gain_min above 0", self.gain_min)
        expect(-2 <= self.score_min <= 2, where, "score_min from -2 to 2", self.score_min)
        expect(0 <= self.band <= 1, where, "band from 0 to 1", self.band)


@dataclass(frozen=True)
class OperatorMove:
    """An operator that moves from one node to another, and the reason."""

    operator: OperatorId
    source: NodeId
    target: NodeId
    reason: str


def place(history: LoadHistory, nodes: Sequence[Node], config: CorrelationConfig | None = None) -> Placement:
    """Place all operators on empty nodes: the paper's global algorithm. For the query of Fig. 3 it finds the cut plan:

    >>> bursts = np.array([[1, 2], [1, 2], [2, 1], [2, 1]], dtype=float)
    >>> place(LoadHistory(("a1", "a2", "b1", "b2"), bursts), [Node("x"), Node("y")])
    {'a1': 'x', 'a2': 'y', 'b1': 'x', 'b2': 'y'}
    """
    check_nodes(nodes)
    capacities = np.array([node.capacity for node in nodes])
    at = _spread(history, np.arange(len(history.operators)), capacities, (config or CorrelationConfig()).band)
    return {name: nodes[node].name for name, node in zip(history.operators, at, strict=True)}


def rebalance(
    history: LoadHistory, nodes: Sequence[Node], placement: Placement, config: CorrelationConfig | None = None
) -> tuple[OperatorMove, ...]:
    """The moves that balance the nodes. The fullest node is paired with the emptiest, the second with the last but one, and so on."""
    check_placement(placement, history.operators, nodes)
    config = config or CorrelationConfig()
    capacities = np.array([node.capacity for node in nodes])
    at = owners(placement, history.operators, nodes)
    used = np.bincount(at, weights=history.means, minlength=len(nodes)) / capacities
    order = np.argsort(-used, kind="stable").tolist()
    ends = [
        (full, empty)
        for full, empty in zip(order[: len(order) // 2], order[::-1], strict=False)
        if used[full] - used[empty] > config.gap_max
    ]
    # In the order of the nodes, not of their loads, so that a second call gives the same result.
    ends = [(min(pair), max(pair)) for pair in ends]
    members = [np.flatnonzero((at == first) | (at == second)) for first, second in ends]
    after = at.copy()
    for some in _by_size(members):
        pairs = Pairs.gathered([members[each] for each in some], history.centred, history.means, capacities[[ends[each] for each in some]])
        second = np.array([ends[each][1] for each in some])
        before = (np.append(at, -1)[pairs.places] == second[:, None]).astype(np.int64)
        for row, each in zip(_rebalanced(pairs, before, config), some, strict=True):
            after[members[each]] = np.array(ends[each])[row[: len(members[each])]]
    return _moves(history.operators, nodes, at, after, used)


def _moves(operators: Sequence[OperatorId], nodes: Sequence[Node], at: Indices, after: Indices, used: Vector) -> tuple[OperatorMove, ...]:
    texts = [f"utilisation of {node.name} is {percent(share)}" for node, share in zip(nodes, used.tolist(), strict=True)]
    found = []
    for each in np.flatnonzero(after != at).tolist():
        source, target = int(at[each]), int(after[each])
        full, empty = (source, target) if used[source] >= used[target] else (target, source)
        found.append(OperatorMove(operators[each], nodes[source].name, nodes[target].name, f"{texts[full]}, {texts[empty]}"))
    return tuple(found)


def placement_after(placement: Placement, moves: Iterable[OperatorMove]) -> Placement:
    """The placement after these moves."""
    return {**placement, **{move.operator: move.target for move in moves}}


def node_series(history: LoadHistory, nodes: Sequence[Node], placement: Placement) -> Matrix:
    """The load of each node over time."""
    return node_sums(history.series, owners(placement, history.operators, nodes), len(nodes))


def mean_variance(series: Matrix) -> float:
    """The paper's measure of a plan: the mean over nodes of the variance of their load. Small is good."""
    return float(series.var(axis=1).mean())


def _shape(series: Matrix) -> Matrix:
    centred, length = _centred(series)
    shape: Matrix = centred / np.where(length > 0, length, 1.0)
    return shape


def _centred(series: Matrix) -> tuple[Matrix, Matrix]:
    """Each series minus its mean, and the length of that; both 0 if the series is constant."""
    centred = series - series.mean(axis=-1, keepdims=True)
    length = np.sqrt(np.einsum("...t,...t->...", centred, centred))[..., None]
    # Rounding leaves a tiny rest of a constant series, which would correlate with anything.
    constant = length <= 1e-9 * np.maximum(series.max(axis=-1, keepdims=True, initial=0.0), 1e-300)
    if constant.any():
        centred, length = np.where(constant, 0.0, centred), np.where(constant, 0.0, length)
    return centred, length


def _spread(history: LoadHistory, pool: Indices, capacities: Vector, band: float) -> Indices:
    """Assign the operators of the pool to empty nodes. The emptiest node always gets the operator with the best score for it."""
    means, shapes, series = history.means[pool], history.shapes[pool], history.series[pool]
    at = np.zeros(len(pool), dtype=np.int64)
    free = np.ones(len(pool), dtype=bool)
    used = np.zeros(len(capacities))
    totals = np.zeros((len(capacities), series.shape[1]))
    rho = np.zeros((len(pool), len(capacities)))
    total_rho = np.zeros(len(pool))
    for _ in range(len(pool)):
        target = int(np.argmin(used))
        scores = total_rho / len(capacities) - rho[:, target]
        chosen = int(best(scores, means, free & (means >= band * means[free].max())))
        at[chosen], free[chosen] = target, False
        used[target] += means[chosen] / capacities[target]
        totals[target] += series[chosen]
        # Only the target's correlations have changed.
        total_rho -= rho[:, target]
        rho[:, target] = shapes @ _shape(totals[target])
        total_rho += rho[:, target]
    return at


def _rebalanced(pairs: Pairs, at: Indices, config: CorrelationConfig) -> Indices:
    """For every pair a mapping whose gap is smaller by at least `gain_min`, or the current mapping."""
    mapping = Mapping(pairs, at)
    before = mapping.gaps
    if config.method == "two-way":
        mapping = two_way(pairs, config.band)
    else:
        one_way(mapping)
    after, gaps = exchanged(mapping, config.score_min) if config.method == "selective" else (mapping.at, mapping.gaps)
    return np.where((gaps <= before - config.gain_min)[:, None], after, at)


def _by_size(members: Sequence[Indices]) -> Iterator[list[int]]:
    """Groups of pairs to handle together. Their numbers of operators differ by at most a factor of four, so few array places are empty."""
    found: dict[int, list[int]] = {}
    for at, each in enumerate(members):
        found.setdefault(len(each).bit_length() // 2, []).append(at)
    for some in found.values():
        yield sorted(some, key=lambda at: -len(members[at]))
