"""Plans of load shedding, and what they do (Borealis 4).

A plan says which share of its tuples each arc keeps. Plans are made in advance, have ids, and lie on the nodes that apply them; at run
time a decision names a plan and by how much more the inputs must be reduced, since the rates are never quite those that the plan was made
for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

from headrace.control.network import Arc, Deployment, NetworkQuery, NodeId, expect

PlanId = NewType("PlanId", int)


@dataclass(frozen=True)
class DropPlan:
    id: PlanId
    keep: Mapping[Arc, float]
    """Share of the tuples that stay; arcs that keep all are left out."""
    quality: float
    """Weighted results per second at the rates that the plan was made for."""


@dataclass(frozen=True)
class Shedding:
    """The decision: plans to apply, and the share that arcs from the sources keep besides."""

    plans: tuple[PlanId, ...]
    """One, or one for each part of the network that shares no node with the rest."""
    inputs: Mapping[Arc, float] = field(default_factory=dict)


class Planner(Protocol):
    """Plans made in advance."""

    @property
    def deployment(self) -> Deployment: ...

    def plan(self, plan: PlanId) -> DropPlan: ...

    def choose(self, rates: Sequence[float]) -> Shedding: ...


def decide(rates: Sequence[float], planner: Planner) -> Shedding | None:
    """What to drop at these rates of the sources; None if no node is overloaded."""
    wanted = len(planner.deployment.query.sources)
    expect(len(rates) == wanted and min(rates, default=0.0) >= 0, "decide", f"{wanted} rates of 0 or more", tuple(rates))
    return None if planner.deployment.feasible(rates) else planner.choose(rates)


def keep_of(shedding: Shedding, planner: Planner) -> dict[Arc, float]:
    """The share that each arc keeps in the end."""
    keep: dict[Arc, float] = {}
    for plan in shedding.plans:
        keep |= planner.plan(plan).keep
    for arc, share in shedding.inputs.items():
        keep[arc] = keep.get(arc, 1.0) * share
    return keep


def flows(query: NetworkQuery, rates: Sequence[float], keep: Mapping[Arc, float]) -> dict[Arc, float]:
    """Tuples per second that each arc delivers.

    >>> from headrace.control.network import NetworkOperator
    >>> chain = NetworkQuery(("a",), (NetworkOperator("f", ("a",), selectivity=0.5), NetworkOperator("g", ("f",))))
    >>> list(flows(chain, [8.0], {Arc("a", "f"): 0.5}).values())
    [4.0, 2.0]
    """
    out: dict[str, float] = dict(zip(query.sources, rates, strict=True))
    found: dict[Arc, float] = {}
    for operator in query.downstream:
        arcs = [Arc(stream, operator.name) for stream in operator.inputs]
        found |= {arc: out[arc.stream] * keep.get(arc, 1.0) for arc in arcs}
        out[operator.name] = operator.selectivity * sum(found[arc] for arc in arcs)
    return found


def quality_of(query: NetworkQuery, delivered: Mapping[Arc, float]) -> float:
    """Weighted results per second."""
    return sum(end.weight * end.selectivity * delivered[Arc(stream, end.name)] for end in query.ends for stream in end.inputs)


def node_loads(deployment: Deployment, delivered: Mapping[Arc, float]) -> dict[NodeId, float]:
    """CPU seconds per second of each node."""
    loads = {node.name: 0.0 for node in deployment.nodes}
    for operator in deployment.query.operators:
        loads[deployment.placement[operator.name]] += operator.cost * sum(
            delivered[Arc(stream, operator.name)] for stream in operator.inputs
        )
    return loads


def keep_from(query: NetworkQuery, rates: Sequence[float], delivered: Mapping[Arc, float]) -> dict[Arc, float]:
    """The plan that delivers these flows: kept over arriving."""
    out: dict[str, float] = dict(zip(query.sources, rates, strict=True))
    for operator in query.downstream:
        out[operator.name] = operator.selectivity * sum(delivered[Arc(stream, operator.name)] for stream in operator.inputs)
    # Where nothing arrives there is nothing to drop. Rounding must not keep more than arrives.
    shares = {arc: min(1.0, delivered[arc] / out[arc.stream]) for arc in query.arcs if out[arc.stream] > 0}
    return {arc: share for arc, share in shares.items() if share < 1}
