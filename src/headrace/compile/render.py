"""Converts a dataflow to the graph of the cost model, and to a picture."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.compile.dataflow import Branch, Dataflow, Op
from headrace.compile.picture import Arrow, Picture, Shape
from headrace.compile.strategies import Box, QueryGraph
from headrace.ids import OperatorId
from headrace.spark.steps import step_names


def query_graph(
    flow: Dataflow, costs_us: Mapping[str, float] | None = None, selectivities: Mapping[str, float] | None = None
) -> QueryGraph:
    """The graph of the cost model. Sources' prefixes, stateful operators and steps are boxes; costs and selectivities are given by box."""
    costs_us, selectivities = costs_us or {}, selectivities or {}
    boxes: list[Box] = []

    def add(name: str, stateful: bool, inputs: tuple[str, ...]) -> str:
        boxes.append(Box(name, stateful, costs_us.get(name, 0.0), selectivities.get(name, 1.0), inputs))
        return name

    def steps(branch: Branch, behind: str) -> str:
        for step in branch.steps:
            number = sum(box.name.startswith(f"{step.method} ") for box in boxes)
            behind = add(f"{step.method} {number + 1}", False, (behind,))
        return behind

    ends: dict[str, str] = {}
    for source, frame in flow.sources.items():
        ends[source] = add(source, False, ())
        for at, name in enumerate(reversed(step_names(frame))):
            ends[source] = add(f"{source}.{name}{at + 1}", False, (ends[source],))
    for op in flow.ops:
        inputs = tuple(steps(branch, ends[branch.source]) for branch in op.branches)
        ends[op.id] = add(op.id, True, tuple(dict.fromkeys(inputs)))
    for port in flow.outlets:
        for branch in port:
            steps(branch, ends[branch.source])
    return QueryGraph(tuple(boxes))


def picture(flow: Dataflow, instances: Mapping[OperatorId, int], sinks: list[str]) -> Picture:
    """The picture of a dataflow: sources, operators, sinks, and the steps between them."""
    shapes = [Shape(source, source, ("Spark", ", ".join(frame.columns)), kind="source") for source, frame in flow.sources.items()]
    arrows: list[Arrow] = []
    for op in flow.ops:
        shapes.append(Shape(op.id, op.id, _lines(op, instances[op.id]), kind="stateful", group=op.id))
        for branch in op.branches:
            arrows.append(_arrow(branch, op.id, shapes, arrows, last=_routing(op)))
    for at, (port, sink) in enumerate(zip(flow.outlets, sinks, strict=True)):
        shapes.append(Shape(f"sink{at}", sink, (), kind="sink"))
        for branch in port:
            arrows.append(_arrow(branch, f"sink{at}", shapes, arrows, last=""))
    return Picture(tuple(shapes), tuple(arrows))


def _lines(op: Op, instances: int) -> tuple[str, ...]:
    about = op.plan.description.shown
    lines = [f"{name}: {', '.join(map(str, value)) if isinstance(value, list) else value}" for name, value in about.items() if value]
    return (*(line for line in lines if not line.startswith(("operator", "calls"))), f"{instances} instances, Python")


def _routing(op: Op) -> str:
    combined = "combined, " if op.plan.combiner is not None else ""
    return f"{combined}by key"


def _arrow(branch: Branch, target: str, shapes: list[Shape], arrows: list[Arrow], last: str) -> Arrow:
    """The arrow into the target. Steps on the way become one more shape, in the group of the operator before them."""
    if not branch.steps:
        return Arrow(branch.source, target, last)
    name = f"{branch.source} to {target} {len(shapes)}"
    group = branch.source if any(s.id == branch.source and s.kind == "stateful" for s in shapes) else None
    shapes.append(Shape(name, branch.steps[0].method, tuple(str(step) for step in branch.steps), kind="stateless", group=group))
    arrows.append(Arrow(branch.source, name, ""))
    return Arrow(name, target, last)
