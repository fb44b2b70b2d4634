"""Pairs of nodes exchange operators (Borealis 3.1): one-way, two-way, and one-way with selective exchange.

A mapping says for each operator of a pair whether it is on node 0 or 1. Series are centred, that is without their means, so products of
them are covariances, and a node's series is the sum of its operators' series. These sums are updated with every move, so that all scores
are one matrix product. Pairs are independent of each other. A step takes a few numpy calls for one pair or for fifty, so all pairs take
their steps together, and pairs that are done wait.

    centred      pair x operator x period         rows beyond a pair's own operators are 0 and never chosen
    at           pair x operator
    totals       pair x node x period

Only `correlation.py` uses it, so no running query does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from headrace.control.network import Matrix, Vector
from headrace.errors import require

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Pairs:
    """The operators and nodes of many pairs, in arrays of equal size."""

    places: Indices
    """The operators of each pair, by their index in the arrays given to `gathered`. Empty places have the number of operators."""
    real: Flags
    """False for empty places."""
    centred: Floats
    means: Matrix
    capacities: Matrix
    """The capacities of both nodes of each pair."""

    @classmethod
    def gathered(cls, members: Sequence[Indices], centred: Matrix, means: Vector, capacities: Matrix) -> Pairs:
        """Build the arrays. `members` are the operators of each pair, pairs with most operators first; the rest is for all operators."""
        places = np.full((len(members), max(len(each) for each in members)), len(means))
        for at, each in enumerate(members):
            places[at, : len(each)] = each
        nobody = np.zeros((1, centred.shape[1]))
        return cls(places, places < len(means), np.concatenate([centred, nobody])[places], np.append(means, 0.0)[places], capacities)

    @cached_property
    def squares(self) -> Matrix:
        lengths: Matrix = np.einsum("pkt,pkt->pk", self.centred, self.centred)
        return lengths

    @cached_property
    def inverse(self) -> Matrix:
        """1 / deviation of each operator; 0 if it is constant, so that it correlates with nothing."""
        return np.divide(1.0, np.sqrt(self.squares), out=np.zeros_like(self.means), where=self.squares > 0)

    @cached_property
    def tolerance(self) -> Vector:
        """Squared deviations below this are rounding errors of series that cancel each other."""
        least: Vector = 1e-12 * np.sqrt(self.squares).sum(axis=1) ** 2
        return least

    @cached_property
    def rows(self) -> Indices:
        return np.arange(len(self.places))

    def covariances(self, series: Matrix) -> Matrix:
        """The covariance of each operator with the series of its pair, for the first pairs, one per series."""
        found: Matrix = np.matmul(self.centred[: len(series)], series[:, :, None])[:, :, 0]
        return found


class Mapping:
    """Which node of its pair each operator is on, with the resulting sums and utilisations."""

    def __init__(self, pairs: Pairs, at: Indices) -> None:
        self.pairs, self.at = pairs, at.copy()
        share = np.stack([1.0 - at, at.astype(np.float64)], axis=1)
        self.totals: Floats = share @ pairs.centred
        self.used: Matrix = (share @ pairs.means[:, :, None])[:, :, 0] / pairs.capacities

    def move(self, rows: Indices, operators: Indices) -> None:
        """Move one operator of each of these pairs to the other node."""
        source = self.at[rows, operators]
        self.at[rows, operators] = 1 - source
        series, means = self.pairs.centred[rows, operators], self.pairs.means[rows, operators]
        for node, sign in ((source, -1.0), (1 - source, 1.0)):
            self.totals[rows, node] += sign * series
            self.used[rows, node] += sign * means / self.pairs.capacities[rows, node]

    @property
    def fuller(self) -> Indices:
        return (self.used[:, 1] > self.used[:, 0]).astype(np.int64)

    @property
    def gaps(self) -> Vector:
        gaps: Vector = np.abs(self.used[:, 0] - self.used[:, 1])
        return gaps

    @property
    def variances(self) -> Vector:
        """The variance of both nodes together, up to a factor."""
        squares: Vector = np.einsum("pnt,pnt->p", self.totals, self.totals)
        return squares

    def scores(self, givers: Indices) -> Matrix:
        """How much better each operator of the giver fits on the other node: rho(o, rest of its node) - rho(o, the other node)."""
        pairs = self.pairs
        own, there = self.totals[pairs.rows, givers], self.totals[pairs.rows, 1 - givers]
        covariance = pairs.covariances(own)
        # For the rest s - o of its node: |s - o|^2 = |s|^2 - 2 s.o + |o|^2, and (s - o).o.
        rest = np.einsum("pt,pt->p", own, own)[:, None] - 2 * covariance + pairs.squares
        found = (covariance - pairs.squares) * _inverse_root(rest, pairs.tolerance[:, None])
        other = _inverse_root(np.einsum("pt,pt->p", there, there), pairs.tolerance)
        scores: Matrix = (found - pairs.covariances(there) * other[:, None]) * pairs.inverse
        return scores


def one_way(mapping: Mapping) -> None:
    """The fuller node gives operators, best score first, while that narrows the gap."""
    pairs, givers = mapping.pairs, mapping.fuller
    # Moving load x changes the difference by x/c1 + x/c2. If that is below twice the difference, the gap narrows.
    shift = pairs.means * (1 / pairs.capacities).sum(axis=1)[:, None]
    active = np.ones(len(givers), dtype=bool)
    while active.any():
        difference = (mapping.used[pairs.rows, givers] - mapping.used[pairs.rows, 1 - givers])[:, None]
        mine = (mapping.at == givers[:, None]) & (shift > 0) & active[:, None]
        fits = mine & (shift <= difference)
        going = fits.any(axis=1)
        # If all remaining operators are larger than the difference, one more may still narrow the gap.
        last = mine & (shift < 2 * difference - 1e-12) & ~going[:, None]
        scores = np.where(going[:, None], mapping.scores(givers), -shift)
        rows = np.flatnonzero(going | last.any(axis=1))
        mapping.move(rows, best(scores, pairs.means, fits | last)[rows])
        active = going


def exchanged(mapping: Mapping, score_min: float) -> tuple[Indices, Vector]:
    """The fuller node gives its best operator, again and again, until it has none with a score above the threshold.

    Returns the mapping with the least variance among those on the way that are as even as the first, and its gaps.
    """
    pairs = mapping.pairs
    gaps, variances, found = mapping.gaps, mapping.variances, mapping.at.copy()
    first = gaps + 1e-12
    still = pairs.real.copy()
    while True:
        givers = mapping.fuller
        scores = mapping.scores(givers)
        wanted = still & (mapping.at == givers[:, None]) & (scores > score_min)
        rows = np.flatnonzero(wanted.any(axis=1))
        if not len(rows):
            return found, gaps
        chosen = best(scores, pairs.means, wanted)[rows]
        mapping.move(rows, chosen)
        still[rows, chosen] = False
        better = (mapping.gaps <= first) & (mapping.variances < variances * (1 - 1e-12))
        found[better] = mapping.at[better]
        gaps, variances = np.where(better, mapping.gaps, gaps), np.where(better, mapping.variances, variances)


def two_way(pairs: Pairs, band: float) -> Mapping:
    """Place all operators of each pair anew. The emptier node always gets the operator that fits it best, compared with the other."""
    counts = pairs.real.sum(axis=1)
    require(bool((np.diff(counts) <= 0).all()), "pairs are ordered by size, the largest first")
    at = np.zeros(pairs.means.shape, dtype=np.int64)
    used = np.zeros((len(counts), 2))
    totals = np.zeros((len(counts), 2, pairs.centred.shape[2]))
    rho = np.zeros((len(counts), 2, pairs.means.shape[1]))
    # The loads of operators that are not placed yet; -1 for all others.
    left = np.where(pairs.real, pairs.means, -1.0)
    for turn in range(pairs.means.shape[1]):
        # Pairs that still have operators to place.
        some = int((counts > turn).sum())
        rows = pairs.rows[:some]
        target = (used[:some, 1] < used[:some, 0]).astype(np.int64)
        better = (rho[:some, 0] - rho[:some, 1]) * (2.0 * target - 1.0)[:, None]
        remains = left[:some]
        chosen = best(better, remains, remains >= band * remains.max(axis=1)[:, None])
        at[rows, chosen] = target
        left[rows, chosen] = -1.0
        used[rows, target] += pairs.means[rows, chosen] / pairs.capacities[rows, target]
        series = totals[rows, target] + pairs.centred[rows, chosen]
        totals[rows, target] = series
        # Only the target's correlations have changed.
        length = _inverse_root(np.einsum("pt,pt->p", series, series), pairs.tolerance[:some])
        rho[rows, target] = pairs.covariances(series) * (pairs.inverse[:some] * length[:, None])
    return Mapping(pairs, at)


def _inverse_root(squares: Floats, tolerance: Floats) -> Floats:
    """1 / sqrt(x), and 0 where x is within the tolerance."""
    known = squares > tolerance
    found: Floats = known / np.sqrt(np.where(known, squares, 1.0))
    return found


def best(scores: Matrix, loads: Matrix, allowed: Flags) -> Indices:
    """The index of the highest score in every row. Among equal scores (within rounding) the largest load wins, then the first."""
    scores = np.where(allowed, scores, -np.inf)
    top = scores >= scores.max(axis=-1, keepdims=True) - 1e-9
    chosen: Indices = np.where(top, loads, -1.0).argmax(axis=-1)
    return chosen
