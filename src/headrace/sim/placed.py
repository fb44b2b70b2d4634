"""Placements of whole operators (Borealis 3) under rates that vary: a deployment of `headrace.control.network` as a simulation.

    rates of the sources ──> history of loads, seen before ──> a placement ──> Simulator ──> latencies
                         └──────────────────────── the same sources, later ──────┘

Every operator is one instance on its node, and nothing is moved: what is compared is where operators were put at the beginning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.control.correlation import LoadHistory
from headrace.control.network import Deployment, Matrix, NetworkQuery, Node, Placement, StreamId, expect
from headrace.errors import QueryError, require
from headrace.sim import model
from headrace.sim.checkers.owners import owners
from headrace.sim.checkers.tuples import tuples
from headrace.sim.scenario import Value
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace
from headrace.sim.workload import Rate


@dataclass(frozen=True)
class Sources:
    """Rates that vary. They are observed for a while before the simulation begins."""

    rates: Mapping[StreamId, Rate]
    seen_s: float
    """How long the rates were observed before a placement was made. The simulation begins after that."""
    step_s: float = 1.0
    """A period of the load history."""

    def seen(self) -> Matrix:
        """The rate of each source (row) in each period."""
        return self._sampled(0.0, self.seen_s)

    def later(self, duration_s: float) -> Matrix:
        return self._sampled(self.seen_s, self.seen_s + duration_s)

    def times(self, factor: float) -> Sources:
        return replace(self, rates={name: _scaled(rate, factor) for name, rate in self.rates.items()})

    def from_now(self) -> dict[str, Rate]:
        """The rates, with second 0 at the end of the observed time."""
        return {name: _shifted(rate, self.seen_s) for name, rate in self.rates.items()}

    def _sampled(self, first_s: float, last_s: float) -> Matrix:
        moments = np.arange(first_s, last_s, self.step_s)
        return np.array([[rate(at_s) for at_s in moments] for rate in self.rates.values()])


def _scaled(rate: Rate, factor: float) -> Rate:
    return lambda at_s: factor * rate(at_s)


def _shifted(rate: Rate, by_s: float) -> Rate:
    return lambda at_s: rate(at_s + by_s)


def history(query: NetworkQuery, sources: Sources) -> LoadHistory:
    """The loads of all operators while the sources were watched."""
    return LoadHistory(tuple(each.name for each in query.operators), query.loads @ sources.seen())


def load_factor(query: NetworkQuery, nodes: Sequence[Node], sources: Sources, duration_s: float, cpu: float) -> float:
    """The factor for all rates that gives this mean utilisation of the nodes."""
    used = float((query.loads @ sources.later(duration_s)).sum(axis=0).mean() / sum(node.capacity for node in nodes))
    return cpu / used


def simulated(
    query: NetworkQuery,
    nodes: Sequence[Node],
    placement: Placement,
    sources: Sources,
    duration_s: float,
    settings: model.SimulationSettings | None = None,
    seed: int = 0,
) -> Trace:
    """Simulate a placement. Costs are seconds of CPU per tuple; all nodes have the same capacity."""
    deployment = Deployment(query, tuple(nodes), placement)
    expect(len(set(deployment.capacities.tolist())) == 1, "simulated", "nodes of one capacity", deployment.capacities.tolist())
    number = {node.name: at for at, node in enumerate(nodes)}
    operators = tuple(
        model.SimulatedOperator(each.name, dict.fromkeys(each.inputs, 1.0), max(each.cost, 1e-9), each.selectivity)
        for each in query.downstream
    )
    plan = model.SimulationPlan(
        model.SimulatedQuery(sources.from_now(), operators),
        duration_s,
        hosts={each.name: (number[placement[each.name]],) for each in query.operators},
        machines=model.MachineModel(capacity=nodes[0].capacity, network_bytes_per_s=1e12),
        settings=settings or model.SimulationSettings(),
    )
    # Overloaded nodes stay overloaded, because placements are compared. There are no backups. So only two checkers apply.
    trace = Simulator(plan, seed=seed, checkers=(lambda: tuples, lambda: owners)).run()
    require(not trace.violations, f"no row is lost and every slot has an owner; violations: {trace.violations[:3]}")
    return trace


def latency_mean_s(trace: Trace) -> float:
    """The mean latency, computed from percentiles because the trace keeps no sums. Rows that never came out are not included."""
    return float(np.mean([trace.latencies.percentile(q) for q in np.arange(0.5, 100, 1.0)]))


def latencies_s(
    query: NetworkQuery,
    nodes: Sequence[Node],
    placements: Mapping[str, Placement],
    sources: Sources,
    duration_s: float,
    cpus: Sequence[float],
    settings: model.SimulationSettings,
) -> dict[str, list[float]]:
    """The mean latency of every placement, for each of these mean utilisations of the nodes."""
    found: dict[str, list[float]] = {name: [] for name in placements}
    for cpu in cpus:
        scaled = sources.times(load_factor(query, nodes, sources, duration_s, cpu))
        for name, placement in placements.items():
            found[name].append(latency_mean_s(simulated(query, nodes, placement, scaled, duration_s, settings)))
    return found


def floats(text: Value) -> list[float]:
    """An option that is several numbers.

    >>> floats("0.3,0.5")
    [0.3, 0.5]
    """
    try:
        return [float(part) for part in str(text).split(",")]
    except ValueError:
        raise QueryError(where="--set", wanted="numbers separated by commas", found=repr(text)) from None
