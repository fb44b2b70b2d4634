"""The query as plans of drops see it: which jobs its rows go through, and where they are handed over."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.compile.dataflow import Dataflow, Port
from headrace.control.shedding.costs import Shape
from headrace.control.shedding.table import Origin
from headrace.graph.shedding import By, ShedStep
from headrace.ids import InputId, OperatorId, SourceId
from headrace.state.drops import ShedId


def places_of(flow: Dataflow) -> tuple[dict[OperatorId, tuple[ShedId, ...]], tuple[tuple[ShedId, ...], ...]]:
    """The places of `hr.shed` that rows come through: by operator, directly or through other operators; and for each sink."""
    names = {id(step): name for name, step in flow.sheds.items()}
    found: dict[OperatorId, tuple[ShedId, ...]] = {}

    def through(ports: Iterable[Port]) -> tuple[ShedId, ...]:
        places: dict[ShedId, None] = {}
        for branch in (branch for port in ports for branch in port):
            own = tuple(names[id(step)] for step in branch.sheds)
            places |= dict.fromkeys(own if isinstance(branch.source, SourceId) else found[branch.source])
        return tuple(places)

    for op in flow.ops:
        found[op.id] = through(op.ports)
    return found, tuple(through([port]) for port in flow.outlets)


def sources_of(flow: Dataflow) -> dict[ShedId, InputId]:
    """By place: the source whose rows it drops."""
    names = {id(step): name for name, step in flow.sheds.items()}
    return {names[id(step)]: branch.source for branch in flow.branches for step in branch.sheds}


def shape_of(flow: Dataflow, cores: int) -> Shape:
    """The jobs of a batch, and the places that their rows come through."""
    reads, sinks = places_of(flow)
    jobs = {}
    for op in flow.ops:
        last = op
        while (after := flow.next_op(last)) is not None:
            last = after
        jobs[op.id] = str(last.id)
    feeds = {jobs[op]: places for op, places in reads.items()}
    for at, port in enumerate(flow.outlets):
        if any(branch.sheds for branch in port):
            feeds[sink_job(at)] = sinks[at]
    return Shape(feeds, jobs, flow.source_readers > 1, cores)


def sink_job(number: int) -> str:
    """The name of the job in which a sink reads the rows of a source."""
    return f"sink {number}"


def origins_of(flow: Dataflow) -> dict[SourceId, Origin]:
    """By source: the places that decide in its plan, those together that keep the same rows."""
    found = {}
    for name in flow.sources:
        heads = {id(branch.head): branch.head for branch in flow.branches if branch.source == name}
        groups: dict[object, list[ShedId]] = {}
        for step in heads.values():
            if step is not None:
                groups.setdefault(_identity(step), []).append(flow.places[id(step)].id)
        found[name] = Origin(tuple(tuple(group) for group in groups.values()), always=None in heads.values())
    return found


def _identity(step: ShedStep) -> object:
    """Equal for steps that drop by the same identity."""
    return id(step) if step.by is By.WORTH else (step.by, *map(str, step.columns))
