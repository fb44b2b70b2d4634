"""Plans of drops for batches of many sizes, made ahead and looked up before each batch (Borealis 4.1, for a running query).

The places where rows may be dropped are the inputs of Borealis' linear program, and the query's one node bears what one batch may take:

    maximise     sum over sinks of weight * delivered share
    such that    scan * rows that come + sum over places of cost * kept rows <= time for a batch - fixed cost
                 kept share of each place >= 1 - max_loss

The rows of a batch come in a mix that changes slowly. So instead of a tree over all inputs there is a list over the size of the batch, for
the mix of the last batches: sizes that are `STEP` apart. A batch between two sizes takes the plan of the lower one, of which each input
keeps the share size / its size, as in the paper. So it keeps as many rows as the plan has.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from headrace.control.network import Arc, Deployment, NetworkOperator, NetworkQuery, Node, NodeId, StreamId
from headrace.control.shedding.costs import Costs
from headrace.control.shedding.plan import DropPlan
from headrace.control.shedding.program import Program
from headrace.ids import OperatorId
from headrace.state.drops import ShedId

STEP = 1.06
LEVELS_MAX = 48
"""Sizes of batches up to about 15 times what can be borne."""
NODE = NodeId("query")
PROBED = 0.9
"""A batch that probes costs is planned for this share of the time that it may take, since the costs may be wrong."""
PROBE_EVERY = 60
"""One of so many batches probes costs that may have changed."""


@dataclass(frozen=True)
class Goals:
    """What the user asked for."""

    max_loss: Mapping[ShedId, float]
    sinks: Mapping[str, tuple[float, tuple[ShedId, ...]]]
    """By sink: its weight, and the places that its rows come through."""
    budget_s: float
    """How long a batch may take."""
    deadline_s: float | None = None

    def delivered(self, arrived: Mapping[ShedId, float], kept: Mapping[ShedId, float]) -> dict[str, float]:
        """By sink: the share of its rows that were kept."""
        found = {}
        for sink, (_, places) in self.sinks.items():
            came = sum(arrived.get(place, 0.0) for place in places)
            found[sink] = sum(kept.get(place, 0.0) for place in places) / came if came else 1.0
        return found


@dataclass(frozen=True)
class Level:
    """The plan for batches of one size."""

    factor: float
    """The size, as a multiple of the mix of the table."""
    keep: Mapping[ShedId, float]
    holds: bool
    """False if the batch takes longer than it may, although everything is dropped that may be."""


@dataclass(frozen=True)
class PlanTable:
    """Plans for batches of the same mix of rows and of many sizes. Without levels nothing is ever dropped."""

    costs: Costs
    goals: Goals
    scanned: float
    """Rows that come from the sources in a batch of factor 1."""
    arrived: Mapping[ShedId, float]
    """Rows that arrive at each place in a batch of factor 1."""
    levels: tuple[Level, ...] = ()
    first: int = 0
    """The id of the first level's plan. Those of the others follow."""
    _factors: tuple[float, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "_factors", tuple(level.factor for level in self.levels))
        object.__setattr__(self, "arrived", MappingProxyType(dict(self.arrived)))

    def look_up(self, scanned: float) -> tuple[int, dict[ShedId, float], bool] | None:
        """For a batch of so many rows: the plan's id, the share that each place keeps, and whether the time suffices.

        None if nothing must be dropped.
        """
        factor = scanned / self.scanned
        at = bisect.bisect_right(self._factors, factor) - 1
        if at < 0:
            return None
        level, reduced = self.levels[at], self.levels[at].factor / factor
        keep = {place: max(1 - self.goals.max_loss[place], share * reduced) for place, share in level.keep.items()}
        return self.first + at, keep, level.holds

    def seconds(self, scanned: float, keep: Mapping[ShedId, float]) -> float:
        """How long a batch of so many rows takes if places keep these shares."""
        factor = scanned / self.scanned
        return self.costs.seconds(scanned, {place: rows * factor * keep.get(place, 1.0) for place, rows in self.arrived.items()})

    def probe(self, scanned: float, place: ShedId) -> dict[ShedId, float]:
        """The share that each place keeps in a batch that shows what the rows of one place cost: that place keeps as many as it can.

        >>> goals = Goals({ShedId("a"): 0.9, ShedId("b"): 0.9}, {}, budget_s=1.0)
        >>> costs = Costs(0.2, 1e-6, {ShedId("a"): 1e-5, ShedId("b"): 1e-5})
        >>> table = PlanTable(costs, goals, 100_000, {ShedId("a"): 50_000, ShedId("b"): 50_000})
        >>> {name: round(share, 2) for name, share in table.probe(200_000, ShedId("a")).items()}
        {'a': 0.4, 'b': 0.1}
        """
        factor = scanned / self.scanned
        rows = {name: count * factor for name, count in self.arrived.items()}
        keep = {name: 1 - loss for name, loss in self.goals.max_loss.items()}
        room_s = PROBED * self.goals.budget_s - self.seconds(scanned, keep)
        for name in sorted(keep, key=lambda each: each != place):
            cost_s = self.costs.kept_s.get(name, 0.0) * rows.get(name, 0.0)
            more = max(0.0, min(1 - keep[name], room_s / cost_s if cost_s > 0 else 1.0))
            keep[name] += more
            room_s -= more * cost_s
        return keep


def probed_place(number: int, places: Sequence[ShedId]) -> ShedId | None:
    """The place to probe in a batch, by how many batches have dropped rows before; None for nearly all batches.

    While each batch keeps the same shares, nobody can tell which place's rows cost what.

    >>> [probed_place(number, [ShedId("a"), ShedId("b")]) for number in range(7)]
    [None, 'a', 'b', 'a', 'b', None, None]
    >>> [number for number in range(200) if probed_place(number, [ShedId("a")])]
    []
    """
    many = len(places)
    if many < 2:
        return None
    if 1 <= number <= 2 * many:
        return places[(number - 1) % many]
    return places[number // PROBE_EVERY % many] if number % PROBE_EVERY == 0 and number else None


def planned(costs: Costs, goals: Goals, scanned: float, arrived: Mapping[ShedId, float], first: int = 0) -> PlanTable:
    """Make the plans for batches of this mix.

    >>> a, b = ShedId("a"), ShedId("b")
    >>> goals = Goals({a: 0.9, b: 0.9}, {"one": (1.0, (a,)), "two": (3.0, (b,))}, budget_s=1.0)
    >>> table = planned(Costs(0.2, 1e-6, {a: 1e-5, b: 1e-5}), goals, 100_000, {a: 50_000, b: 50_000})
    >>> table.look_up(70_000) is None
    True
    >>> plan, keep, holds = table.look_up(100_000)
    >>> round(keep[a], 1), round(keep[b], 1), holds
    (0.4, 1.0, True)
    >>> 0.95 < table.seconds(100_000, keep) < 1.01
    True
    """
    places = list(arrived)
    least = _bearable(costs, goals, scanned, arrived)
    if least is None:
        return PlanTable(costs, goals, scanned, arrived, (), first)
    levels = []
    factor = least
    for _ in range(LEVELS_MAX):
        keep = _solved(costs, goals, scanned * factor, {place: rows * factor for place, rows in arrived.items()})
        if keep is None:
            # From here on everything is dropped that may be, and batches take longer than they may.
            levels.append(Level(factor, {place: 1 - goals.max_loss[place] for place in places}, False))
            break
        levels.append(Level(factor, keep, True))
        factor *= STEP
    return PlanTable(costs, goals, scanned, arrived, tuple(levels), first)


def _bearable(costs: Costs, goals: Goals, scanned: float, arrived: Mapping[ShedId, float]) -> float | None:
    """The size at which a batch takes exactly as long as it may, as a multiple of these rows. None if rows cost nothing."""
    per_batch = costs.seconds(scanned, arrived) - costs.fixed_s
    return max(1e-9, (goals.budget_s - costs.fixed_s) / per_batch) if per_batch > 0 else None


def _solved(costs: Costs, goals: Goals, scanned: float, arrived: Mapping[ShedId, float]) -> dict[ShedId, float] | None:
    """The share that each place keeps in the best plan; None if the least that they must keep takes too long."""
    places = [place for place, rows in arrived.items() if rows > 0]
    room_s = goals.budget_s - costs.fixed_s - costs.scan_s * scanned
    if room_s <= 0 or not places:
        return None
    query = network(goals, {place: costs.kept_s[place] for place in places}, {place: arrived[place] for place in places})
    deployment = Deployment(query, (Node(NODE, room_s),), {each.name: NODE for each in query.operators})
    heads = {place: Arc(StreamId(f"rows of {place}"), OperatorId(place)) for place in places}
    bounds = {arc: 1 - goals.max_loss[ShedId(arc.operator)] if arc in heads.values() else 1.0 for arc in query.arcs}
    plan: DropPlan | None = Program(deployment).solve_keeping([arrived[place] for place in places], bounds)
    if plan is None:
        return None
    return {place: plan.keep.get(heads[place], 1.0) if place in heads else 1.0 for place in arrived}


def network(goals: Goals, cost_s: Mapping[ShedId, float], arrived: Mapping[ShedId, float]) -> NetworkQuery:
    """The query as the linear program sees it: a source and an operator per place, and a sink that counts delivered shares."""
    operators = [NetworkOperator(OperatorId(place), (StreamId(f"rows of {place}"),), cost_s[place]) for place in arrived]
    for sink, (weight, feeding) in goals.sinks.items():
        inputs: Sequence[ShedId] = [place for place in feeding if place in arrived]
        if inputs:
            came = sum(arrived[place] for place in inputs)
            streams = tuple(StreamId(place) for place in inputs)
            operators.append(NetworkOperator(OperatorId(f"sink {sink}"), streams, 0.0, 1.0, weight / came))
    return NetworkQuery(tuple(StreamId(f"rows of {place}") for place in arrived), tuple(operators))
