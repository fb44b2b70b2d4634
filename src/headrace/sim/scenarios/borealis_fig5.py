"""Borealis Fig. 5: resilient placement (ROD) against others: (a) the feasible set, by number of operators; (b) latency, by load.

The others use loads of an observed period; ROD uses the query alone. The streams have different mean rates, and each bursts at its own
moments. (b) uses the loads of the paper, from 26% to 79%. There they belong to rates multiplied by 1 and 3.5, so about 5% of the paper's
load does not come from tuples. Our nodes have no such base load, and rates are scaled to reach the loads. The latencies are measured
twice: with the mean rates that were observed, and with mean rates that have changed since.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.control import baselines, correlation, resilient
from headrace.control.network import Deployment, NetworkQuery, Node, NodeId, Placement
from headrace.report.plots import Plot, Series
from headrace.sim import model, workload
from headrace.sim.placed import Sources, floats, history, latencies_s
from headrace.sim.scenario import ROWS_AND_OWNERS_HELD, Claim, Options, Result, Scenario, number
from headrace.sim.trees import random_trees

ROD, PAPERS, CORRELATION, LARGEST, RANDOM = "ROD", "ROD, class II by plane distance", "correlation", "largest first", "random"


def uneven(query: NetworkQuery, seed: int, seen_s: float, changed: bool = False) -> Sources:
    """Streams with random mean rates from 0.1 to 1.9, and bursts of three times that.

    If ``changed``, the mean rates change at the moment when placements are made.
    """
    levels = np.random.default_rng(seed).uniform(0.1, 1.9, (2, len(query.sources)))
    rates = {}
    for at, name in enumerate(query.sources):
        before, after = levels[:, at].tolist()
        average = workload.steps((0.0, before), (seen_s, after if changed else before))
        rates[name] = workload.bursts(average, seed * 1000 + at, factor=3.0, every_s=8.0, length_s=2.0, until_s=4 * seen_s)
    return Sources(rates, seen_s)


def placed(query: NetworkQuery, watched: Sources, nodes: Sequence[Node], seed: int) -> dict[str, Placement]:
    """The placements that the algorithms make for a query."""
    known = history(query, watched)
    loads = dict(zip(known.operators, known.means.tolist(), strict=True))
    return {
        ROD: resilient.place(query, nodes),
        PAPERS: resilient.place(query, nodes, resilient.ResilientConfig(class_two="plane")),
        CORRELATION: correlation.place(known, nodes),
        LARGEST: baselines.largest_first(loads, nodes),
        RANDOM: baselines.random_even(known.operators, nodes, seed),
    }


def feasible_shares(
    counts: Sequence[int], sources: int, nodes: Sequence[Node], queries: int, seed: int, seen_s: float
) -> dict[str, list[float]]:
    """For (a): the mean share of the ideal feasible set over random queries, per algorithm and number of operators."""
    found: dict[str, list[float]] = {}
    for count in counts:
        shares: dict[str, list[float]] = {}
        for at in range(queries):
            query = random_trees(seed + at, sources, max(count // sources, 1))
            for name, placement in placed(query, uneven(query, seed + at, seen_s), nodes, seed + at).items():
                share = resilient.feasible_share(Deployment(query, tuple(nodes), placement))
                shares.setdefault(name, []).append(share)
        for name, values in shares.items():
            found.setdefault(name, []).append(float(np.mean(values)))
    return found


def mean_latencies_s(options: Options, nodes: Sequence[Node], cpus: Sequence[float], seed: int, changed: bool) -> dict[str, list[float]]:
    """For (b): the mean latency over random queries, per algorithm and load. The variant of ROD is left out."""
    sources, seen_s = int(options["sources"]), number(options, "seen_s")
    found = []
    for at in range(int(options["latency_queries"])):
        query = random_trees(seed + at, sources, max(int(options["latency_operators"]) // sources, 1))
        watched = uneven(query, seed + at, seen_s, changed)
        plans = placed(query, watched, nodes, seed + at)
        del plans[PAPERS]
        found.append(latencies_s(query, nodes, plans, watched, number(options, "duration_s"), cpus, model.SimulationSettings()))
    return {name: np.mean([each[name] for each in found], axis=0).tolist() for name in found[0]}


def run(options: Options, seed: int) -> Result:
    sources, queries = int(options["sources"]), int(options["queries"])
    counts, cpus = [int(each) for each in floats(options["operators"])], floats(options["loads"])
    nodes = tuple(Node(NodeId(f"node {at}")) for at in range(int(options["nodes"])))
    shares = feasible_shares(counts, sources, nodes, queries, seed, number(options, "seen_s"))
    steady, changed = (mean_latencies_s(options, nodes, cpus, seed, each) for each in (False, True))
    others = [name for name in steady if name != ROD]
    claims = (
        Claim(
            "feasible set of ROD beside the others'",
            "clearly outperforms all",
            "; ".join(
                f"{count}: {shares[ROD][at]:.2f}, next {max(shares[name][at] for name in others):.2f}" for at, count in enumerate(counts)
            ),
            all(shares[ROD][at] > max(shares[name][at] for name in others) for at in range(len(counts))),
        ),
        Claim(
            "with more operators",
            "ROD approaches the ideal",
            f"from {shares[ROD][0]:.2f} to {shares[ROD][-1]:.2f} of it",
            shares[ROD] == sorted(shares[ROD]),
        ),
        _latency_claim("averages as the others knew them", cpus, steady),
        _latency_claim("averages that have changed since", cpus, changed),
    )
    rows = [(f"feasible set, {count} operators", *(f"{values[at]:.3f}" for values in shares.values())) for at, count in enumerate(counts)]
    for what, found in (("", steady), (", averages changed", changed)):
        rows += [
            (f"latency at {cpu:.0%} CPU{what}, ms", *(f"{1000 * found[name][at]:.0f}" if name in found else "" for name in shares))
            for at, cpu in enumerate(cpus)
        ]
    plots = [
        Plot(
            "Feasible set, relative to the ideal",
            "",
            tuple(Series(name, counts, each) for name, each in shares.items()),
            x_label="operators",
        )
    ]
    for title, found in (("Latency, averages as known", steady), ("Latency, averages that have changed", changed)):
        lines = tuple(Series(name, [100 * cpu for cpu in cpus], values) for name, values in found.items())
        plots.append(Plot(title, "s", lines, x_label="CPU (%)"))
    latencies = {f"latency {name}": values for name, values in steady.items()} | {
        f"changed {name}": values for name, values in changed.items()
    }
    return Result(
        claims,
        tuple(plots),
        ("", *shares),
        tuple(rows),
        simulated_s=2 * len(steady) * len(cpus) * int(options["latency_queries"]) * number(options, "duration_s"),
        nodes=len(nodes),
        figures={
            **{f"feasible {name} {count}": values[at] for name, values in shares.items() for at, count in enumerate(counts)},
            **{f"{name} {cpu:g}": values[at] for name, values in latencies.items() for at, cpu in enumerate(cpus)},
        },
        held=ROWS_AND_OWNERS_HELD,
    )


def _latency_claim(what: str, cpus: Sequence[float], latency: dict[str, list[float]]) -> Claim:
    seen = ", ".join(f"{name} {1000 * values[-1]:.0f} ms" for name, values in latency.items())
    lowest = latency[ROD][-1] <= min(values[-1] for name, values in latency.items() if name != ROD)
    return Claim(f"latency at {cpus[-1]:.0%} CPU, {what}", "ROD's is the lowest", seen, lowest)


SCENARIOS = (
    Scenario(
        "borealis-fig5",
        "Borealis Fig. 5",
        "ROD has the largest feasible set, and does not pay for it in latency",
        {
            "nodes": 10,
            "sources": 5,
            "operators": "25,50,100,150,200",
            "queries": 5,
            "loads": "0.26,0.44,0.61,0.79",
            "latency_operators": 50,
            "latency_queries": 2,
            "seen_s": 120.0,
            "duration_s": 30.0,
        },
        run,
    ),
)
