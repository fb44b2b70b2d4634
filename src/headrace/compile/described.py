"""A dataflow as plain data for the monitor: where its parts are drawn, and what runs in each.

The layout is that of `compile/picture.py`, with room in every shape for figures that come later: rates, instances, utilisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.compile.dataflow import Branch, Dataflow
from headrace.compile.explain import operator_lines
from headrace.compile.picture import Shape, layout
from headrace.compile.render import picture
from headrace.ids import OperatorId
from headrace.state.routing import Routing

ROOM = {
    "source": ("0,000.0 M rows/s", "backlog 000.0 M"),
    "stateful": ("000.0 k → 000.0 k rows/s", "00 instances on 00 executors", "state 000.0 M rows, 000 MB"),
    "stateless": ("in the JVM",),
    "sink": ("000.0 k rows/s",),
}
"""By kind of shape: texts as long as the figures that are shown in it."""


def described(flow: Dataflow, routing: Mapping[OperatorId, Routing], sinks: Sequence[str], guarantees: Sequence[str]) -> dict[str, Any]:
    """The graph of a query: nodes with their places and plans, and edges between them."""
    drawn = picture(flow, {name: each.instances for name, each in routing.items()}, list(sinks))
    # Groups only say which steps belong to an operator, which the edges say too.
    placed = layout(replace(drawn, shapes=tuple(replace(each, group=None, lines=ROOM[each.kind]) for each in drawn.shapes)))
    plans = _plans(flow, routing, guarantees)
    nodes = [
        {
            "id": shape.id,
            "title": shape.title,
            "kind": shape.kind,
            "runs": "Python" if shape.kind == "stateful" else "JVM",
            "plan": plans.get(shape.id) or _steps_plan(shape),
            **{name: round(value, 1) for name, value in vars(placed.shapes[shape.id]).items()},
        }
        for shape in drawn.shapes
    ]
    edges = [
        {"source": each.source, "target": each.target, "label": each.label, "points": [[round(x, 1), round(y, 1)] for x, y in each.points]}
        for each in placed.routes
    ]
    return {"width": round(placed.width), "height": round(placed.height), "nodes": nodes, "edges": edges, "readers": _readers(flow)}


def _plans(flow: Dataflow, routing: Mapping[OperatorId, Routing], guarantees: Sequence[str]) -> dict[str, str]:
    """By shape: what it does, line by line."""
    found = {str(name): f"Spark (JVM) reads {', '.join(frame.columns)}" for name, frame in flow.sources.items()}
    for op in flow.ops:
        head = [f"built at {op.where}"] if op.where else []
        found[op.id] = "\n".join([*head, *operator_lines(flow, op, routing[op.id])])
    for at, (port, guarantee) in enumerate(zip(flow.outlets, guarantees, strict=True)):
        found[f"sink{at}"] = "\n".join([*_steps(port), f"deliver  {guarantee}"])
    return found


def _steps(port: Sequence[Branch]) -> list[str]:
    return [f"from {branch.source}" + "".join(f"\n  then {step}" for step in branch.steps) for branch in port]


def _steps_plan(shape: Shape) -> str:
    return "\n".join(["Spark (JVM), row by row", *shape.lines])


def _readers(flow: Dataflow) -> dict[str, list[str]]:
    """By operator: the operators and sources that it reads."""
    return {op.id: list(dict.fromkeys(str(branch.source) for branch in op.branches)) for op in flow.ops}
