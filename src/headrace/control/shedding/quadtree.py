"""Shedding plans in advance with the solver (Borealis 4.1): a quadtree over the space of input rates.

The best quality Q grows with the rates. So between the bottom r and the top q of a region lies every point s with Q(r) <= Q(s) <= Q(q),
and if Q(q) - Q(r) <= epsilon * Q(q), then s may use the plan of r, its inputs reduced by r_i / s_i, and loses at most the share epsilon
of what the best plan for s gives. A region is a leaf if that holds or if its top is feasible; others are split in 2^inputs.

    +-------+---+---+      Solver      splits every region with an error above epsilon
    |       +---+---+      Solver-W    splits the region with the largest expected error, error times the probability that the rates
    +-------+-------+                  lie in it, until the sum of all is at most epsilon
    |       |       |
    +-------+-------+      A point outside the space takes the region nearest to it; the bound holds inside.

Where it departs from the paper: the expected workload is a sample of rates with weights, for instance those observed, where the paper
leaves its form open. In Solver-W no region may lose more than `error_max`, however unlikely: else the plan of an unlikely region at the
edge could be to drop everything. 1 is the paper's.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from headrace.control.network import Deployment, Matrix, Vector, expect
from headrace.control.shedding.plan import Plan, PlanId, Shedding
from headrace.control.shedding.program import Program
from headrace.errors import QueryError

Point = tuple[float, ...]
Region = tuple[Point, Point]
"""Bottom and top."""


@dataclass(frozen=True)
class SolverConfig:
    epsilon: float = 0.1
    """The share of the best quality that may be lost: at every point, or with a workload on average."""
    error_max: float = 0.5
    """With a workload: the share that may be lost at any point."""
    solves_max: int = 50_000
    """Calls of the solver before it gives up, at one or two milliseconds each."""

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < 1, "SolverConfig", "epsilon between 0 and 1", self.epsilon)
        expect(self.epsilon <= self.error_max <= 1, "SolverConfig", "error_max from epsilon to 1", self.error_max)
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
    """The share of the best quality that a point of the region can lose."""


@dataclass(frozen=True)
class Branch:
    middle: Point
    children: tuple[Leaf | Branch, ...]
    """Bit i of the index is set for the upper half of input i."""


@dataclass(frozen=True, eq=False)
class PlanTree:
    """Plans in advance for all rates from 0 to `top`."""

    deployment: Deployment
    top: Point
    root: Leaf | Branch
    plans: tuple[Plan, ...]
    solves: int
    """How often the solver was called."""

    def plan(self, plan: PlanId) -> Plan:
        return self.plans[plan]

    def choose(self, rates: Sequence[float]) -> Shedding:
        leaf = self.leaf(rates)
        share = dict(zip(self.deployment.query.sources, _ratios(leaf.bottom, rates), strict=True))
        consumers = self.deployment.query.consumers
        return Shedding((leaf.plan,), {arc: part for source, part in share.items() if part < 1 for arc in consumers[source]})

    def leaf(self, rates: Sequence[float]) -> Leaf:
        at = self.root
        while isinstance(at, Branch):
            at = at.children[sum(1 << axis for axis, (rate, middle) in enumerate(zip(rates, at.middle, strict=True)) if rate >= middle)]
        return at


def plan_ahead(
    deployment: Deployment, top: Sequence[float], config: SolverConfig | None = None, workload: Workload | None = None
) -> PlanTree:
    """Solver, or Solver-W where a workload is given.

    >>> from headrace.control.network import Node, Operator, Query
    >>> query = Query(("a",), (Operator("f", ("a",), cost=2),))
    >>> tree = plan_ahead(Deployment(query, (Node("n"),), {"f": "n"}), top=(2.0,))
    >>> decision = tree.choose((1.5,))
    >>> tree.plan(decision.plans[0]).quality >= 0.5 * 0.9
    True
    """
    config = config or SolverConfig()
    inputs = len(deployment.query.sources)
    expect(len(top) == inputs and min(top) > 0, "plan_ahead", f"the highest rates of {inputs} sources, above 0", tuple(top))
    search = _Search(Program(deployment), config)
    root = ((0.0,) * inputs, tuple(float(rate) for rate in top))
    split = _split_everywhere(search, root) if workload is None else _split_by_workload(search, root, workload)
    tree = _assembled(search, root, split)
    return PlanTree(deployment, root[1], tree, tuple(search.plans), search.solves)


@dataclass(eq=False)
class _Search:
    """Plans found so far. Corners are shared by regions, so each is solved once."""

    program: Program
    config: SolverConfig
    found: dict[Point, tuple[bool, float, Plan]] = field(default_factory=dict)
    used: dict[Point, PlanId] = field(default_factory=dict)
    plans: list[Plan] = field(default_factory=list)
    solves: int = 0

    def at(self, point: Point) -> tuple[bool, float, Plan]:
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

    def plan_at(self, point: Point) -> PlanId:
        """The id of the plan of a leaf; all feasible points share one that keeps everything."""
        feasible, quality, plan = self.at(point)
        key = () if feasible else point
        if key not in self.used:
            self.used[key] = PlanId(len(self.plans))
            self.plans.append(Plan(self.used[key], plan.keep, quality))
        return self.used[key]


def _split_everywhere(search: _Search, root: Region) -> set[Region]:
    split, left = set(), [root]
    while left:
        region = left.pop()
        if search.error(region) > search.config.epsilon:
            split.add(region)
            left += _children(region)
    return split


def _split_by_workload(search: _Search, root: Region, workload: Workload) -> set[Region]:
    points = np.clip(workload.points, root[0], root[1])
    weights = workload.weights / workload.weights.sum()
    split: set[Region] = set()
    heap: list[tuple[float, int, Region, npt.NDArray[np.int64]]] = []
    order, expected = itertools.count(), 0.0

    def push(region: Region, inside: npt.NDArray[np.int64]) -> float:
        error = search.error(region)
        part = float(weights[inside].sum()) * error
        # Regions that lose too much come first, whatever their probability.
        heapq.heappush(heap, (-np.inf if error > search.config.error_max else -part, next(order), region, inside))
        return part

    expected += push(root, np.arange(len(points)))
    while heap and (heap[0][0] == -np.inf or expected > search.config.epsilon):
        _, _, region, inside = heapq.heappop(heap)
        split.add(region)
        expected -= float(weights[inside].sum()) * search.error(region)
        middle = np.array(_middle(region))
        halves = ((points[inside] >= middle) << np.arange(len(middle))).sum(axis=1)
        for child, part in enumerate(_children(region)):
            expected += push(part, inside[halves == child])
    return split


def _assembled(search: _Search, region: Region, split: set[Region]) -> Leaf | Branch:
    if region in split:
        return Branch(_middle(region), tuple(_assembled(search, child, split) for child in _children(region)))
    feasible = search.at(region[1])[0]
    # Nothing need be dropped below a feasible top: its own rates are the limit.
    bottom = region[1] if feasible else region[0]
    return Leaf(bottom, search.plan_at(bottom), search.error(region))


def _middle(region: Region) -> Point:
    return tuple((low + high) / 2 for low, high in zip(*region, strict=True))


def _children(region: Region) -> list[Region]:
    bottom, top, middle = *region, _middle(region)
    found = []
    for child in range(1 << len(middle)):
        upper = [child >> axis & 1 for axis in range(len(middle))]
        low = tuple(m if up else b for up, b, m in zip(upper, bottom, middle, strict=True))
        high = tuple(t if up else m for up, m, t in zip(upper, middle, top, strict=True))
        found.append((low, high))
    return found


def _ratios(limits: Sequence[float], rates: Sequence[float]) -> list[float]:
    return [min(1.0, limit / rate) if rate > 0 else 1.0 for limit, rate in zip(limits, rates, strict=True)]
