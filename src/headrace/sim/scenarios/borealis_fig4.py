"""Borealis Fig. 4: the correlation-based global algorithm against random and largest-load-first balancing.

Queries are random trees of operators. Each stream bursts at its own moments. Placements are made from the loads of an observed period;
latency and load variance are measured in the period after it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from headrace.control import baselines, correlation
from headrace.control.correlation import LoadHistory, mean_variance, node_series
from headrace.control.network import NetworkQuery, Node, NodeId, Placement
from headrace.report.plots import Plot, Series
from headrace.sim import model, workload
from headrace.sim.placed import Sources, floats, history, latencies_s
from headrace.sim.scenario import ROWS_AND_OWNERS_HELD, Claim, Options, Result, Scenario, number
from headrace.sim.trees import random_trees

OURS, RANDOM, LARGEST = "correlation", "random", "largest first"
SMALL_NODES, SMALL_SOURCES, SMALL_EACH = 2, 3, 3
"""Small queries, on which all placements can be tried."""


def bursty(query: NetworkQuery, seed: int, seen_s: float) -> Sources:
    """Streams with independent bursts of four times the rate. On average, a burst lasts 2 s, and one begins every 8 s."""
    base = workload.constant(1.0)
    rates = {
        name: workload.bursts(base, seed * 1000 + at, factor=4.0, every_s=8.0, length_s=2.0, until_s=4 * seen_s)
        for at, name in enumerate(query.sources)
    }
    return Sources(rates, seen_s)


def nodes_of(count: int) -> tuple[Node, ...]:
    """This many equal nodes."""
    return tuple(Node(NodeId(f"node {at}")) for at in range(count))


def placed(known: LoadHistory, nodes: Sequence[Node], seed: int) -> dict[str, Placement]:
    """The placements that the algorithms make from a load history."""
    loads = dict(zip(known.operators, known.means.tolist(), strict=True))
    return {
        OURS: correlation.place(known, nodes),
        RANDOM: baselines.random_balanced(loads, nodes, seed),
        LARGEST: baselines.largest_first(loads, nodes),
    }


def best_variance(known: LoadHistory, nodes: Sequence[Node], gap: float) -> float:
    """The least load variance of all placements whose nodes differ by at most ``gap`` in mean load."""
    found = []
    for chosen in itertools.product(range(len(nodes)), repeat=len(known.operators) - 1):
        # The first operator is always on the first node: all nodes are equal, so its node does not matter.
        series = node_series(known, nodes, {name: nodes[at].name for name, at in zip(known.operators, (0, *chosen), strict=True)})
        if np.ptp(series.mean(axis=1)) <= gap + 1e-9:
            found.append(mean_variance(series))
    return min(found)


def against_the_optimum(seed: int, queries: int, seen_s: float) -> tuple[float, float, float]:
    """Mean load variances on small queries: of our placement, of largest-first, and of the best of all placements."""
    nodes, found = nodes_of(SMALL_NODES), []
    for at in range(queries):
        query = random_trees(seed + at, SMALL_SOURCES, SMALL_EACH)
        known = history(query, bursty(query, seed + at, seen_s))
        plans = placed(known, nodes, seed + at)
        series = {name: node_series(known, nodes, plan) for name, plan in plans.items()}
        gap = float(np.ptp(series[OURS].mean(axis=1)))
        found.append((mean_variance(series[OURS]), mean_variance(series[LARGEST]), best_variance(known, nodes, gap)))
    ours, largest, best = np.mean(found, axis=0).tolist()
    return ours, largest, best


def run(options: Options, seed: int) -> Result:
    count, each, sources = (int(options[name]) for name in ("nodes", "operators", "sources"))
    queries, seen_s, duration_s = int(options["queries"]), number(options, "seen_s"), number(options, "duration_s")
    cpus, nodes = floats(options["loads"]), nodes_of(count)
    latencies, variances = [], []
    for at in range(queries):
        query = random_trees(seed + at, sources, max(each // sources, 1))
        watched = bursty(query, seed + at, seen_s)
        plans = placed(history(query, watched), nodes, seed + at)
        found = latencies_s(query, nodes, plans, watched, duration_s, cpus, model.SimulationSettings())
        latencies.append([found[name] for name in plans])
        later = LoadHistory(tuple(operator.name for operator in query.operators), query.loads @ watched.later(duration_s))
        variances.append([mean_variance(node_series(later, nodes, plan)) / later.means.sum() ** 2 for plan in plans.values()])
    latency = dict(zip((OURS, RANDOM, LARGEST), np.mean(latencies, axis=0).tolist(), strict=True))
    variance = dict(zip((OURS, RANDOM, LARGEST), np.mean(variances, axis=0).tolist(), strict=True))
    ours, largest, best = against_the_optimum(seed, int(options["small"]), seen_s)
    claims = (
        _latency_claim(cpus, latency),
        Claim(
            "load variance",
            "much smaller than the others'",
            f"{variance[OURS] / variance[RANDOM]:.2f} of random, {variance[OURS] / variance[LARGEST]:.2f} of largest first",
            variance[OURS] < min(variance[RANDOM], variance[LARGEST]),
        ),
        Claim(
            f"load variance on {options['small']} queries of {SMALL_SOURCES * SMALL_EACH} operators, all placements tried",
            "very close to the optimal",
            f"{ours / best:.2f} of the optimum; largest first {largest / best:.2f}",
            ours < 1.15 * best,
        ),
    )
    rows = [(f"latency at {cpu:.0%}, ms", *(f"{1000 * latency[name][at]:.0f}" for name in latency)) for at, cpu in enumerate(cpus)]
    rows.append(("load variance, of largest first", *(f"{variance[name] / variance[LARGEST]:.2f}" for name in variance)))
    lines = tuple(Series(name, [100 * cpu for cpu in cpus], values) for name, values in latency.items())
    figures = {f"{name} {cpu:g}": values[at] for name, values in latency.items() for at, cpu in enumerate(cpus)}
    return Result(
        claims,
        (Plot("Latency of placements", "s", lines, x_label="average load (%)"),),
        ("", *latency),
        tuple(rows),
        simulated_s=3 * queries * len(cpus) * duration_s,
        nodes=count,
        figures={
            **figures,
            **{f"variance {name}": value for name, value in variance.items()},
            "of the optimum": ours / best,
            "largest first of the optimum": largest / best,
        },
        held=ROWS_AND_OWNERS_HELD,
    )


def _latency_claim(cpus: list[float], latency: dict[str, list[float]]) -> Claim:
    seen = ", ".join(f"{name} {1000 * values[-1]:.0f} ms" for name, values in latency.items())
    low = latency[OURS][-1] < min(latency[RANDOM][-1], latency[LARGEST][-1])
    return Claim(f"latency at {cpus[-1]:.0%} load", "ours stays low", seen, low)


SCENARIOS = (
    Scenario(
        "borealis-fig4",
        "Borealis Fig. 4",
        "low latency and small load variance, close to the optimum",
        {
            "nodes": 6,
            "operators": 48,
            "sources": 6,
            "queries": 2,
            "loads": "0.4,0.5,0.6,0.7,0.8",
            "seen_s": 120.0,
            "duration_s": 40.0,
            "small": 12,
        },
        run,
    ),
)
