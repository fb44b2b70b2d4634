"""The text of ``explain()``: a dataflow in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from headrace.compile.dataflow import Dataflow, Op, Port
from headrace.compile.picture import to_dot, to_svg
from headrace.compile.render import picture, query_graph
from headrace.compile.strategies import render_costs
from headrace.control.wording import counted
from headrace.errors import QueryError
from headrace.guarantees import Safety
from headrace.ids import SLOTS, OperatorId
from headrace.spark.replayable import unreplayable_sources
from headrace.state.routing import Routing
from headrace.state.slots import shown

MODES = ("plan", "cost", "dot", "svg")


def rendered(
    flow: Dataflow,
    routing: Mapping[OperatorId, Routing],
    sinks: list[str],
    guarantees: list[str],
    mode: str | None = None,
    rate: float = 10_000.0,
    nodes: int | None = None,
    homes: Mapping[OperatorId, Sequence[str]] | None = None,
    safety: Safety | None = None,
) -> str:
    """The plan in one of the forms of `MODES`. `homes` are the executors on which the instances of each operator run."""
    mode = mode or "plan"
    if mode not in MODES:
        raise QueryError(where="explain", wanted=f"mode {', '.join(MODES)}", found=repr(mode))
    if mode == "plan":
        return "\n".join([explain(flow, routing, guarantees, homes or {}), *(_safety(flow, safety) if safety else ())])
    instances = {name: each.instances for name, each in routing.items()}
    if mode == "cost":
        return render_costs(query_graph(flow), nodes or sum(instances.values()), rate)
    drawn = picture(flow, instances, sinks)
    return to_dot(drawn) if mode == "dot" else to_svg(drawn)


def explain(flow: Dataflow, routing: Mapping[OperatorId, Routing], guarantees: list[str], homes: Mapping[OperatorId, Sequence[str]]) -> str:
    """The plan as text: for each operator its columns, routing, instances and state, and what runs in Spark or in Python."""
    lines = ["== Headrace plan =="]
    if flow.only_reader is None:
        for name, frame in flow.sources.items():
            lines.append(f"{name:<11} Spark (JVM): {', '.join(frame.columns)}")
        lines.append("read        once, and kept while the batch runs")
    for op in flow.ops:
        lines.extend(operator_lines(flow, op, routing[op.id], homes.get(op.id, ())))
    for port, guarantee in zip(flow.outlets, guarantees, strict=True):
        lines.extend(_then(port, len(flow.ops) + len(flow.outlets) > 2))
        lines.append(f"deliver     {guarantee}")
    return "\n".join(lines)


def _safety(flow: Dataflow, safety: Safety) -> list[str]:
    """What the query promises after a loss."""
    first, *more = safety.lines()
    more += [f"{each}: {safety.without_replay()}" for each in unreplayable_sources(flow.streaming)]
    return [f"safety      {first}", *(f"  {line}" for line in more)]


def operator_lines(flow: Dataflow, op: Op, routing: Routing, homes: Sequence[str] = ()) -> Iterator[str]:
    """What runs for one operator: columns, routing, instances, state."""
    plan, about = op.plan, op.plan.description.shown
    if len(flow.ops) > 1 or flow.only_reader is None:
        yield f"-- {op.id} --"
        for port in op.ports:
            yield from _then(port, named=True)
    yield ("source      " if flow.only_reader is op else "select      ") + "Spark (JVM): " + ", ".join(plan.input.selected.columns)
    combine = "before the shuffle, while it shrinks the batch" if plan.combiner is not None else "no, rows are shipped as they are"
    yield "combine     Spark (JVM): " + combine
    keys = next(iter(plan.operator.stores.values())).layout.keys
    yield f"route       {SLOTS} slots of xxhash64 over {counted(len(keys), 'key column')}, one shuffle"
    for instance, ranges in enumerate(routing.ranges):
        home = f" on executor {homes[instance]}" if instance < len(homes) else ""
        yield f"  instance {instance}{home}: slots " + ", ".join(shown(lo, hi) for lo, hi in ranges)
    yield f"{about['operator']:<11} Python over Arrow, output mode {op.mode}"
    for name, value in about.items():
        if value and name != "operator":
            yield f"  {name + ':':<12}" + (", ".join(map(str, value)) if isinstance(value, list) else str(value))
    for name, store in plan.operator.stores.items():
        columns = ", ".join(f"{f.name} {f.type}" for f in store.layout.schema)
        yield f"  {(name or 'state') + ':':<12}{columns} ({store.layout.policy})"
    yield "finish      Spark (JVM): " + ", ".join(plan.results.schema.names)


def _then(port: Port, named: bool) -> Iterator[str]:
    for branch in port:
        if named:
            yield f"from        {branch.source}"
        for step in branch.steps:
            yield f"then        Spark (JVM): {step}"
