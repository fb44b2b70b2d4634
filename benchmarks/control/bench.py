"""The time that policies take: placements, shedding plans in advance and at run time, and one decision of each policy."""

from __future__ import annotations

import numpy as np

from benchmarks.control import decisions
from headrace.bench.direct import median_s
from headrace.bench.model import Benchmark, DirectResult, Figure, Options
from headrace.control import correlation, resilient
from headrace.control.network import Deployment, Node
from headrace.control.shedding import plan
from headrace.control.shedding.fit import FitConfig
from headrace.control.shedding.groups import plan_by_tables
from headrace.control.shedding.program import Program
from headrace.control.shedding.quadtree import SolverConfig, plan_ahead
from headrace.sim.networks import IMBALANCES, growing_imbalance
from headrace.sim.trees import random_trees

PLACEMENT_S_MAX = 2.0
LOOKUP_US_MAX = 100.0
DECISION_MS_MAX = 10.0
LOOKUPS = 300


def placements(operators: int, nodes: int, repeats: int) -> list[Figure]:
    places = tuple(Node(f"n{at}") for at in range(nodes))
    sources = max(operators // 100, 2)
    query = random_trees(0, sources, operators // sources)
    history = decisions.history(operators, streams=max(operators // 20, 2))
    calls = {"ROD": lambda: resilient.place(query, places), "correlation": lambda: correlation.place(history, places)}
    title = f"{operators:,} operators on {nodes} nodes"
    return [Figure(f"{name}, {title}", median_s(call, repeats), PLACEMENT_S_MAX, "s") for name, call in calls.items()]


def lookups(network: Deployment, epsilon: float, repeats: int) -> list[Figure]:
    top = (3.0,) * len(network.query.sources)
    points = np.random.default_rng(0).uniform(0.5, 3, (LOOKUPS, len(top))).tolist()
    planners: dict[str, plan.Planner] = {
        "Solver": plan_ahead(network, top, SolverConfig(epsilon)),
        "FIT": plan_by_tables(network, top, FitConfig(epsilon / 2)),
    }

    def look_up(planner: plan.Planner) -> None:
        for rates in points:
            plan.decide(rates, planner)

    found = []
    for name, planner in planners.items():
        seen_us = median_s(lambda planner=planner: look_up(planner), repeats) / LOOKUPS * 1e6  # type: ignore[misc]
        found.append(Figure(f"look-up of a shedding plan, {name}", seen_us, LOOKUP_US_MAX, "us"))
    return found


def plans_ahead(networks: tuple[Deployment, ...], epsilon: float, repeats: int) -> tuple[list[Figure], float, float, bool]:
    """The mean times of FIT and Solver, and whether the plans of both keep to epsilon.

    Solver's epsilon is a share that may be lost. FIT's is the spread of its grid; half of it gives equally good plans.
    """
    figures, good = [], True
    for network, imbalance in zip(networks, IMBALANCES, strict=True):
        top = (3.0,) * len(network.query.sources)
        tables, tree = FitConfig(epsilon / 2), SolverConfig(epsilon)
        fit_s = median_s(lambda: plan_by_tables(network, top, tables), repeats)  # noqa: B023
        solver_s = median_s(lambda: plan_ahead(network, top, tree), max(repeats // 3, 1))  # noqa: B023
        name = f"FIT, imbalance {imbalance:g}"
        figures.append(Figure(name, fit_s * 1000, solver_s * 1000, "ms", f"under Solver's {solver_s * 1000:.3g} ms"))
        for planner in (plan_by_tables(network, top, tables), plan_ahead(network, top, tree)):
            good &= worst_loss(network, planner) <= epsilon + 1e-9
    fit_s, solver_s = (float(np.mean([getattr(each, field) for each in figures])) / 1000 for field in ("seen", "limit"))
    return figures, fit_s, solver_s, good


def worst_loss(network: Deployment, planner: plan.Planner, points: int = 40) -> float:
    """The largest share of the best quality that a plan loses, at some rates."""
    program, worst = Program(network), 0.0
    for rates in np.random.default_rng(1).uniform(0, 3, (points, len(network.query.sources))).tolist():
        decision = plan.decide(rates, planner)
        if decision is not None:
            found = plan.quality_of(network.query, plan.flows(network.query, rates, plan.keep_of(decision, planner)))
            worst = max(worst, 1 - found / program.solve(rates).quality)
    return worst


def decides(instances: int, repeats: int) -> tuple[list[Figure], bool]:
    """Every policy, and whether each took the path that is to be measured."""
    figures, good = [], True
    for name, case in decisions.cases(instances).items():
        good &= case.expensive(case.call())
        figures.append(Figure(f"decide: {name}", median_s(case.call, repeats) * 1000, DECISION_MS_MAX, "ms"))
    return figures, good


def measure(options: Options) -> DirectResult:
    operators, nodes, instances, repeats = (int(options[name]) for name in ("operators", "nodes", "instances", "repeats"))
    epsilon = float(options["epsilon"])
    networks = growing_imbalance()
    figures = [*placements(operators, nodes, max(repeats // 3, 1)), *lookups(networks[3], epsilon, repeats)]
    planned, fit_s, solver_s, as_good = plans_ahead(networks, epsilon, repeats)
    decided, expensive = decides(instances, repeats)
    return DirectResult((*figures, *planned, *decided), 1 / fit_s, {"solver": 1 / solver_s}, as_good and expensive)


BENCHMARK = Benchmark(
    name="control",
    line="how long policies take, medians of repeats",
    options={"operators": 1000, "nodes": 100, "instances": 1000, "epsilon": 0.1, "repeats": 15},
    lanes=lambda options: [],
    measure=measure,
)
