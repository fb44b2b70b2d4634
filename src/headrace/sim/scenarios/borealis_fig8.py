"""Borealis Fig. 8: the time to generate load shedding plans in advance: FIT against Solver, Solver against Solver-W.

The paper does not print its five networks. Ours have the same total load, distributed more and more unevenly over their paths. Times
depend on the machine, but the numbers of solver calls and table rows do not, so sensitivity is measured by these. FIT's epsilon is the step
of a grid; Solver's is an error bound. FIT gets half the epsilon, so that its plans are as good. The actual losses are reported too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import numpy as np

from headrace.control.network import Deployment
from headrace.control.shedding import plan
from headrace.control.shedding.fit import FitConfig
from headrace.control.shedding.groups import plan_by_tables
from headrace.control.shedding.program import Program
from headrace.control.shedding.quadtree import SolverConfig, Workload, plan_ahead
from headrace.report.plots import Plot, Series
from headrace.sim.networks import IMBALANCES, growing_imbalance
from headrace.sim.scenario import Claim, Options, Result, Scenario, number

T = TypeVar("T")

FIT, SOLVER, SOLVER_W = "FIT", "Solver", "Solver-W"
TOP = 3.0
"""The highest rate of every input. With all inputs at 1, the nodes are fully loaded."""


def expected(inputs: int, seed: int, points: int = 400) -> Workload:
    """A workload of random rates around 1.5, which is one and a half times the capacity of the nodes."""
    rng = np.random.default_rng(seed)
    return Workload(np.clip(rng.normal(1.5, 0.3, (points, inputs)), 0.0, TOP), np.ones(points))


def timed(make: Callable[[], T], repeats: int) -> tuple[T, float]:
    """The result of a function, and the median of its CPU time in milliseconds."""
    took = []
    for _ in range(repeats):
        start_s = time.process_time()
        made = make()
        took.append(time.process_time() - start_s)
    return made, 1000 * median(took)


def losses(network: Deployment, planner: plan.Planner, points: np.ndarray) -> list[float]:
    """The share of the optimal quality that the plans lose, at each of these rates that overloads the nodes."""
    program, found = Program(network), []
    for rates in points.tolist():
        decision = plan.decide(rates, planner)
        if decision is not None:
            quality = plan.quality_of(network.query, plan.flows(network.query, rates, plan.keep_of(decision, planner)))
            found.append(1 - quality / program.solve(rates).quality)
    return found or [0.0]


def measured(network: Deployment, epsilon: float, repeats: int, seed: int) -> dict[str, float]:
    """Time, work and loss of the three planners on one network."""
    inputs = len(network.query.sources)
    top, workload = (TOP,) * inputs, expected(inputs, seed)
    config = SolverConfig(epsilon)
    tables, fit_ms = timed(lambda: plan_by_tables(network, top, FitConfig(epsilon / 2)), repeats)
    tree, solver_ms = timed(lambda: plan_ahead(network, top, config), repeats)
    expects, solver_w_ms = timed(lambda: plan_ahead(network, top, config, workload), repeats)
    anywhere = np.random.default_rng(seed).uniform(0, TOP, (60, inputs))
    return {
        f"{FIT} ms": fit_ms,
        f"{SOLVER} ms": solver_ms,
        f"{SOLVER_W} ms": solver_w_ms,
        f"{FIT} rows": float(sum(len(part.table.flows) for part in tables.parts)),
        f"{SOLVER} solves": float(tree.solves),
        f"{SOLVER_W} solves": float(expects.solves),
        f"{FIT} loss": max(losses(network, tables, anywhere)),
        f"{SOLVER} loss": max(losses(network, tree, anywhere)),
        f"{SOLVER_W} loss": float(np.mean(losses(network, expects, workload.points[:60]))),
    }


def run(options: Options, seed: int) -> Result:
    networks = growing_imbalance(int(options["paths"]), int(options["nodes"]))
    seen = [measured(network, number(options, "epsilon"), int(options["repeats"]), seed) for network in networks]
    column = {name: [each[name] for each in seen] for name in seen[0]}
    fit, solver = column[f"{FIT} ms"], column[f"{SOLVER} ms"]
    spread = {name: max(work) / min(work) for name, work in ((FIT, column[f"{FIT} rows"]), (SOLVER, column[f"{SOLVER} solves"]))}
    fewer = [few / many for few, many in zip(column[f"{SOLVER_W} solves"], column[f"{SOLVER} solves"], strict=True)]
    claims = (
        Claim(
            "plan generation on five networks",
            "FIT outperforms Solver",
            "; ".join(f"{few:.3g} against {many:.3g} ms" for few, many in zip(fit, solver, strict=True)),
            all(few < many for few, many in zip(fit, solver, strict=True)),
        ),
        Claim(
            "most work of a network over the least",
            "FIT is less sensitive to imbalance",
            f"FIT {spread[FIT]:.2f}x the rows, Solver {spread[SOLVER]:.2f}x the calls",
            spread[FIT] < spread[SOLVER],
        ),
        Claim(
            "Solver-W, which knows the workload",
            "some improvement over Solver",
            f"{max(fewer):.0%} of the calls of Solver, or less",
            all(share < 1 for share in fewer),
        ),
    )
    shown = [name for name in column if not name.endswith("loss")] + [f"{name} loss" for name in (FIT, SOLVER, SOLVER_W)]
    rows = tuple((f"{imbalance:g}", *(f"{each[name]:.3g}" for name in shown)) for imbalance, each in zip(IMBALANCES, seen, strict=True))
    lines = tuple(Series(name, IMBALANCES, column[f"{name} ms"]) for name in (FIT, SOLVER, SOLVER_W))
    return Result(
        claims,
        (Plot("Plan generation", "ms", lines, x_label="load of the heaviest path over the lightest"),),
        ("imbalance", *shown),
        rows,
        nodes=int(options["nodes"]),
        figures={f"{name} {imbalance:g}": each[name] for imbalance, each in zip(IMBALANCES, seen, strict=True) for name in each},
        note="losses of FIT and Solver are the worst at 60 random rates; that of Solver-W is the mean over its workload, as its bound is",
        held="",
    )


SCENARIOS = (
    Scenario(
        "borealis-fig8",
        "Borealis Fig. 8",
        "FIT makes plans faster than the solver, and knowing the workload helps the solver",
        {"paths": 2, "nodes": 3, "epsilon": 0.1, "repeats": 3},
        run,
    ),
)
