"""A pair of nodes exchanges operators (Borealis 3.1): one-way, two-way, and one-way with selective exchange.

A mapping says for each operator of the pair whether it is on node 0 or 1. Series are centred, that is without their means: products of
them are covariances, and a node's series is the sum of its operators'. Both sums are kept up move by move, so that all scores together
are one small matrix product. Everything here is about one pair; `correlation.py` says which pairs there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.control.network import Matrix, Vector

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pair:
    centred: Matrix
    """Of each operator; all 0 where its load is constant."""
    means: Vector
    capacities: tuple[float, float]

    @cached_property
    def deviations(self) -> Vector:
        lengths: Vector = np.sqrt(self.squares)
        return lengths

    @cached_property
    def squares(self) -> Vector:
        lengths: Vector = np.einsum("ij,ij->i", self.centred, self.centred)
        return lengths

    @cached_property
    def inverse(self) -> Vector:
        """Of the deviations; 0 where there is none, so that what is constant correlates with nothing."""
        return np.divide(1.0, self.deviations, out=np.zeros(len(self.means)), where=self.deviations > 0)

    @cached_property
    def tolerance(self) -> float:
        """Squared deviations of a sum below this are the rounding of series that cancel each other."""
        return float(1e-12 * self.deviations.sum() ** 2)


class Mapping:
    """Who is on which of the two nodes, and what follows from that."""

    def __init__(self, pair: Pair, at: Indices) -> None:
        self.pair = pair
        self.at = at.copy()
        share = np.empty((2, len(at)))
        share[1] = at
        share[0] = 1 - share[1]
        self.totals: Matrix = share @ pair.centred
        self.used: list[float] = (share @ pair.means / pair.capacities).tolist()

    def move(self, operator: int) -> None:
        """To the other node."""
        source = int(self.at[operator])
        self.at[operator] = 1 - source
        for node, sign in ((source, -1.0), (1 - source, 1.0)):
            self.totals[node] += sign * self.pair.centred[operator]
            self.used[node] += sign * float(self.pair.means[operator]) / self.pair.capacities[node]

    @property
    def fuller(self) -> int:
        return 0 if self.used[0] >= self.used[1] else 1

    @property
    def gap(self) -> float:
        return abs(self.used[0] - self.used[1])

    @property
    def variance(self) -> float:
        """Of both nodes together, up to a factor."""
        return float(np.vdot(self.totals, self.totals))

    def scores(self, giver: int) -> Vector:
        """How much better each operator of the giver fits to the other node: rho(o, rest of its node) - rho(o, the other)."""
        pair = self.pair
        own, there = self.totals[giver], self.totals[1 - giver]
        covariance = pair.centred @ own
        # Those of the rest of its node: |s - o|^2 = |s|^2 - 2 s.o + |o|^2, and (s - o).o.
        rest = np.vdot(own, own) - 2 * covariance + pair.squares
        known = rest > pair.tolerance
        found: Vector = (covariance - pair.squares) * known / np.sqrt(np.where(known, rest, 1.0))
        other = float(np.vdot(there, there))
        if other > pair.tolerance:
            found = found - (pair.centred @ there) / other**0.5
        return found * pair.inverse


def one_way(mapping: Mapping) -> None:
    """The fuller node gives operators, best score first, as long as that narrows the gap."""
    pair, giver = mapping.pair, mapping.fuller
    # A move of load x changes the difference by x/c1 + x/c2; below twice the difference, the gap narrows.
    shift = pair.means * (1 / pair.capacities[0] + 1 / pair.capacities[1])
    while True:
        difference = mapping.used[giver] - mapping.used[1 - giver]
        mine = (mapping.at == giver) & (shift > 0)
        fits = mine & (shift <= difference)
        if not fits.any():
            # What remains is larger than the difference: one more may still leave less of it.
            fits = mine & (shift < 2 * difference - 1e-12)
            if fits.any():
                mapping.move(best(-shift, pair.means, fits))
            return
        mapping.move(best(mapping.scores(giver), pair.means, fits))


def exchange(mapping: Mapping, score_min: float) -> None:
    """The fuller node gives its best operator, again and again, until the fuller one has none above the threshold; then back to the best
    mapping on the way."""
    pair, gap, variance = mapping.pair, mapping.gap + 1e-12, mapping.variance
    since: list[int] = []
    still = np.ones(len(pair.means), dtype=bool)
    while True:
        giver = mapping.fuller
        scores = mapping.scores(giver)
        wanted = still & (mapping.at == giver) & (scores > score_min)
        if not wanted.any():
            break
        chosen = best(scores, pair.means, wanted)
        mapping.move(chosen)
        still[chosen] = False
        since.append(chosen)
        if mapping.gap <= gap and mapping.variance < variance * (1 - 1e-12):
            variance, since = mapping.variance, []
    for operator in since:
        mapping.move(operator)


def two_way(pair: Pair, band: float) -> Mapping:
    """Both nodes as if empty: always to the emptier one, the operator that fits best to it rather than to the other."""
    count = len(pair.means)
    at = np.zeros(count, dtype=np.int64)
    free = np.ones(count, dtype=bool)
    used = [0.0, 0.0]
    totals = np.zeros((2, pair.centred.shape[1]))
    rho = np.zeros((2, count))
    # The largest load left, by a pointer into the operators in order of their loads.
    order = np.argsort(-pair.means, kind="stable").tolist()
    for _ in range(count):
        while not free[order[0]]:
            order.pop(0)
        target = 0 if used[0] <= used[1] else 1
        chosen = best(rho[1 - target] - rho[target], pair.means, free & (pair.means >= band * pair.means[order[0]]))
        at[chosen], free[chosen] = target, False
        used[target] += float(pair.means[chosen]) / pair.capacities[target]
        totals[target] += pair.centred[chosen]
        # Only the target's correlations have changed.
        length = float(np.vdot(totals[target], totals[target]))
        rho[target] = (pair.centred @ totals[target]) * (pair.inverse / length**0.5) if length > pair.tolerance else 0.0
    return Mapping(pair, at)


def best(scores: Vector, loads: Vector, allowed: npt.NDArray[np.bool_]) -> int:
    """The highest score; among equals (but for rounding) the largest load, then the first."""
    scores = np.where(allowed, scores, -np.inf)
    return int(np.where(scores >= scores.max() - 1e-9, loads, -1.0).argmax())
