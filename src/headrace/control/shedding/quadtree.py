"""Shedding plans in advance with the solver (Borealis 4.1): a tree over the space of input rates.

The best quality Q grows with the rates. A region has a bottom r and a top q, and every point s in it has Q(r) <= Q(s) <= Q(q). If
Q(q) - Q(r) <= epsilon * Q(q), then s may use the plan of r, with its inputs reduced by r_i / s_i. It then loses at most the share epsilon
of what the best plan for s gives. A region is a leaf if that holds or if its top is feasible; others are split in two.

    +-------+---+---+      Solver      splits every region with an error above epsilon
    |       +---+---+      Solver-W    splits the region with the largest expected error, error times the probability that the rates
    +-------+-------+                  lie in it, until the sum of all is at most epsilon
    |       |       |
    +-------+-------+      A point outside the space takes the region nearest to it; the bound holds inside.

Differences from the paper:
- A region is split along one input, the one that matters most for its top. The paper's quadtree splits along all inputs at once, which
  takes far more plans where the quality depends on few of them.
- A loss below `error_floor` of the best quality at the highest rates is always small enough, and regions below `region_least` are not
  split. Otherwise a query end of weight 0 would never let the splitting end: the quality is 0 at a bottom with rate 0, at any width.
- The expected workload is a sample of rates with weights, for instance those observed. The paper leaves its form open.
- In Solver-W no region may lose more than `error_max`, however unlikely it is. Otherwise the plan of an unlikely region at the edge could
  be to drop everything. 1 is the paper's.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.control.network import Deployment, Matrix, Vector, expect
from headrace.control.shedding.plan import DropPlan, PlanId, Shedding
from headrace.control.shedding.program import Program
from headrace.errors import QueryError

Point = tuple[float, ...]
Region = tuple[Point, Point]
"""Bottom and top."""
Splits = dict[Region, int]
"""Regions that are split, each with the input along which it is."""


@dataclass(frozen=True)
class SolverConfig:
    epsilon: float = 0.1
    """The share of the best quality that may be lost: at every point, or with a workload on average."""
    error_max: float = 0.5
    """With a workload: the share that may be lost at any point."""
    error_floor: float = 0.02
    """A loss up to this share of the best quality at the highest rates is always small enough."""
    region_least: float = 2.0**-10
    """A region whose sides are this share of the whole space, or less, is not split."""
    solves_max: int = 50_000
    """Calls of the solver before it gives up, at one or two milliseconds each."""

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < 1, "SolverConfig", "epsilon between 0 and 1", self.epsilon)
        expect(self.epsilon <= self.error_max <= 1, "SolverConfig", "error_max from epsilon to 1", self.error_max)
        expect(0 <= self.error_floor < 1, "SolverConfig", "error_floor from 0, below 1", self.error_floor)
        expect(0 < self.region_least < 1, "SolverConfig", "region_least between 0 and 1", self.region_least)
        expect(self.solves_max > 0, "SolverConfig", "solves_max above 0", self.solves_max)


@dataclass(frozen=True, eq=False)
class Workload:
    """The rates to expect: points with weights."""

    points: Matrix
    weights: Vector

    def __post_init__(self) -> None:
        fits = self.points.ndim == 2 and len(self.points) == len(self.weights) > 0
        expect(fits, "Workload", "a weight for every point", (self.points.shape, self.weights.shape))
        expect(bool((self.weights >= 0).all() and self.weights.sum() > 0), "Workload", "weights of 0 or more, not all 0", self.weights)


@dataclass(frozen=True)
class Leaf:
    bottom: Point
    plan: PlanId
    error: float
    """The share of the best quality that a point of the region can lose. It may be above epsilon where quality is lowest."""


@dataclass(frozen=True)
class QuadtreeBranch:
    axis: int
    """The input along which the region is split."""
    middle: float
    low: Leaf | QuadtreeBranch
    high: Leaf | QuadtreeBranch


@dataclass(frozen=True, eq=False)
class PlanTree:
    """Plans in advance for all rates from 0 to `top`."""

    deployment: Deployment
    top: Point
    root: Leaf | QuadtreeBranch
    plans: tuple[DropPlan, ...]
    solves: int
    """How often the solver was called."""

    def plan(self, plan: PlanId) -> DropPlan:
        return self.plans[plan]

    def choose(self, rates: Sequence[float]) -> Shedding:
        leaf = self.leaf(rates)
        share = dict(zip(self.deployment.query.sources, _ratios(leaf.bottom, rates), strict=True))
        consumers = self.deployment.query.consumers
        return Shedding((leaf.plan,), {arc: part for source, part in share.items() if part < 1 for arc in consumers[source]})

    def leaf(self, rates: Sequence[float]) -> Leaf:
        at = self.root
        while isinstance(at, QuadtreeBranch):
            at = at.high if rates[at.axis] >= at.middle else at.low
        return at


def plan_ahead(
    deployment: Deployment, top: Sequence[float], config: SolverConfig | None = None, workload: Workload | None = None
) -> PlanTree:
    """Solver, or Solver-W where a workload is given.

    >>> from headrace.control.network import Node, NetworkOperator, NetworkQuery
    >>> query = NetworkQuery(("a",), (NetworkOperator("f", ("a",), cost=2),))
    >>> tree = plan_ahead(Deployment(query, (Node("n"),), {"f": "n"}), top=(2.0,))
    >>> decision = tree.choose((1.5,))
    >>> tree.plan(decision.plans[0]).quality >= 0.5 * 0.9
    True
    """
    config = config or SolverConfig()
    inputs = len(deployment.query.sources)
    expect(len(top) == inputs and min(top) > 0, "plan_ahead", f"the highest rates of {inputs} sources, above 0", tuple(top))
    root = ((0.0,) * inputs, tuple(float(rate) for rate in top))
    search = _Search(Program(deployment), config, root[1])
    split = _split_everywhere(search, root) if workload is None else _split_by_workload(search, root, workload)
    tree = _assembled(search, root, split)
    return PlanTree(deployment, root[1], tree, tuple(search.plans), search.solves)


@dataclass(eq=False)
class _Search:
    """Plans found so far. Corners are shared by regions, so each is solved once."""

    program: Program
    config: SolverConfig
    top: Point
    found: dict[Point, tuple[bool, float, DropPlan]] = field(default_factory=dict)
    used: dict[Point, PlanId] = field(default_factory=dict)
    plans: list[DropPlan] = field(default_factory=list)
    solves: int = 0

    def at(self, point: Point) -> tuple[bool, float, DropPlan]:
        """Whether feasible, the quality, the plan."""
        if point not in self.found:
            feasible = self.program.deployment.feasible(point)
            self.solves += not feasible
            if self.solves > self.config.solves_max:
                raise QueryError(
                    where="plan_ahead", wanted=f"at most {self.config.solves_max} calls of the solver", found="more", hint="raise epsilon"
                )
            plan = self.program.solve(point)
            self.found[point] = (feasible, plan.quality, plan)
        return self.found[point]

    def error(self, region: Region) -> float:
        """The share of the best quality that a point in the region can lose by using the bottom's plan."""
        feasible, high, _ = self.at(region[1])
        return 0.0 if feasible or high <= 0 else 1 - self.at(region[0])[1] / high

    def excess(self, region: Region) -> float:
        """The error, or 0 if the region need not be split: it loses too little, or it is too small."""
        little = self.at(region[1])[1] - self.at(region[0])[1] <= self.config.error_floor * self.at(self.top)[1]
        return 0.0 if little or not self._wide(region) else self.error(region)

    def axis(self, region: Region) -> int:
        """The input along which to split: the one without which the top of the region would lose most; of equal ones the widest."""
        bottom, top = region
        lowered = {axis: (*top[:axis], bottom[axis], *top[axis + 1 :]) for axis in self._wide(region)}
        return min(lowered, key=lambda axis: (round(self.at(lowered[axis])[1], 12), (bottom[axis] - top[axis]) / self.top[axis]))

    def _wide(self, region: Region) -> list[int]:
        """The inputs along which the region is wide enough to be split."""
        widths = ((high - low) / top for low, high, top in zip(*region, self.top, strict=True))
        return [axis for axis, width in enumerate(widths) if width > self.config.region_least]

    def plan_at(self, point: Point) -> PlanId:
        """The id of the plan of a leaf; all feasible points share one that keeps everything."""
        feasible, quality, plan = self.at(point)
        key = () if feasible else point
        if key not in self.used:
            self.used[key] = PlanId(len(self.plans))
            self.plans.append(DropPlan(self.used[key], plan.keep, quality))
        return self.used[key]


def _split_everywhere(search: _Search, root: Region) -> Splits:
    split: Splits = {}
    left = [root]
    while left:
        region = left.pop()
        if search.excess(region) > search.config.epsilon:
            split[region] = search.axis(region)
            left += _halves(region, split[region])
    return split


def _split_by_workload(search: _Search, root: Region, workload: Workload) -> Splits:
    points = np.clip(workload.points, root[0], root[1])
    weights = workload.weights / workload.weights.sum()
    split: Splits = {}
    heap: list[tuple[float, int, Region, npt.NDArray[np.int64]]] = []
    order, expected = itertools.count(), 0.0

    def push(region: Region, inside: npt.NDArray[np.int64]) -> float:
        error = search.excess(region)
        part = float(weights[inside].sum()) * error
        # Regions that lose too much come first, whatever their probability.
        heapq.heappush(heap, (-np.inf if error > search.config.error_max else -part, next(order), region, inside))
        return part

    expected += push(root, np.arange(len(points)))
    while heap and (heap[0][0] == -np.inf or expected > search.config.epsilon):
        _, _, region, inside = heapq.heappop(heap)
        axis = split[region] = search.axis(region)
        expected -= float(weights[inside].sum()) * search.excess(region)
        upper = points[inside, axis] >= _middle(region, axis)
        for part, within in zip(_halves(region, axis), (~upper, upper), strict=True):
            expected += push(part, inside[within])
    return split


def _assembled(search: _Search, region: Region, split: Splits) -> Leaf | QuadtreeBranch:
    if region in split:
        axis = split[region]
        low, high = (_assembled(search, half, split) for half in _halves(region, axis))
        return QuadtreeBranch(axis, _middle(region, axis), low, high)
    feasible = search.at(region[1])[0]
    # Nothing need be dropped below a feasible top: its own rates are the limit.
    bottom = region[1] if feasible else region[0]
    return Leaf(bottom, search.plan_at(bottom), search.error(region))


def _middle(region: Region, axis: int) -> float:
    return (region[0][axis] + region[1][axis]) / 2


def _halves(region: Region, axis: int) -> tuple[Region, Region]:
    """The lower and the upper half of a region along an input."""
    bottom, top = region
    middle = _middle(region, axis)
    return (bottom, (*top[:axis], middle, *top[axis + 1 :])), ((*bottom[:axis], middle, *bottom[axis + 1 :]), top)


def _ratios(limits: Sequence[float], rates: Sequence[float]) -> list[float]:
    return [min(1.0, limit / rate) if rate > 0 else 1.0 for limit, rate in zip(limits, rates, strict=True)]
