"""What feeds an operator and what it computes, in words that are the same in every session: its identity.

State belongs to the operator that wrote it, wherever that stands in the program. So an operator is known by what it reads (sources, steps,
operators before it) and by what it computes from that (keys, windows, calls), or by the name that the user gave it. Nothing that differs
from one session to the next enters: ids of columns and plans, addresses, names of lambda variables, seeds that Spark draws, the session's
settings; nor anything that changes no row, such as how rows are distributed. Users' own functions enter by their names.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame

from headrace.compile.dataflow import Branch, Dataflow, Op
from headrace.compile.plan_text import STATIC, is_without_code, lines
from headrace.compile.words import words
from headrace.graph.nodes import AggregateNode, DedupNode, JoinNode, ProcessNode, ProductNode, StatefulNode
from headrace.graph.windows import SessionSpec, WindowSpec
from headrace.ids import OperatorId
from headrace.operators.kernel import OutputMode
from headrace.spark import gateway, plans, trees


@dataclass(frozen=True)
class Lineage:
    """What an operator, or a source, is known by."""

    reads: tuple[tuple[str, ...], ...]
    """Per input the lines that describe it, results first and sources last."""
    computes: dict[str, object]

    @property
    def fingerprint(self) -> str:
        return digest([self.reads, self.computes])


def digest(what: object) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:24]


def lineages(flow: Dataflow, by_name: bool = False) -> dict[OperatorId, Lineage]:
    """Per operator. ``by_name``: operators before it that have a name stand for all that feeds them."""
    found: dict[OperatorId, Lineage] = {}
    for op in flow.ops:
        ports = [[_branch(flow, branch, found, by_name) for branch in port] for port in op.ports]
        # The order in which streams are united changes nothing.
        reads = tuple(tuple(line for text in sorted(port) for line in ("rows of", *text)) for port in ports)
        found[op.id] = Lineage(reads, _computes(op))
    return found


def says_all(flow: Dataflow, op: Op) -> bool:
    """Whether an operator's lineage says all that its state depends on: there is no user's code and nothing random in it, and no static
    DataFrame, of which it has only the columns."""
    if isinstance(op.node, ProcessNode):
        return False
    inputs = [plans.analyzed(op.plan.selected)]
    for branch in op.branches:
        frame, steps = branch.begin(flow)
        inputs += [plans.analyzed(frame)] if frame is not None else []
        inputs += [_stepped(flow, branch)[1]] if steps else []
    queries = trees.patterns(flow.session, ("PLAN_EXPRESSION",))
    if not all(is_without_code(plan) and not any(plan.containsPattern(each) for each in queries) for plan in inputs):
        return False
    static = any(line.strip().startswith(STATIC) for read in lineages(flow)[op.id].reads for line in read)
    return not static and all(says_all(flow, above) for above in flow.upstream(op))


def _branch(flow: Dataflow, branch: Branch, known: dict[OperatorId, Lineage], by_name: bool) -> list[str]:
    frame, steps = branch.begin(flow)
    if frame is not None:
        below = lines(flow.session, plans.analyzed(frame))
    else:
        above = flow.by_id[OperatorId(branch.source)]
        below = [f"operator named {above.name}" if above.name and by_name else f"operator {known[above.id].fingerprint}"]
    if not steps:
        return below
    leaf, plan = _stepped(flow, branch)
    return lines(flow.session, plan, lambda node: below if node.equals(leaf) else None)


def _stepped(flow: Dataflow, branch: Branch) -> tuple[Any, Any]:
    """The plan of a branch's steps, and the leaf that they are done on."""
    frame, steps = branch.begin(flow)
    rows = flow.session.createDataFrame([], flow.by_id[OperatorId(branch.source)].plan.schema if frame is None else frame.schema)
    leaf = plans.analyzed(rows)
    for step in steps:
        rows = step.apply(rows)
    return leaf, plans.analyzed(rows)


def _computes(op: Op) -> dict[str, object]:
    node, about = op.node, op.plan.description
    named = ("operator", "window", "calls", "how", "with", "grid", "processor", "ttl")
    found: dict[str, object] = {name: about[name] for name in named if about.get(name) is not None}
    found["keys"] = _keys(node)
    if isinstance(node, JoinNode | ProductNode) and node.condition is not None:
        session = op.plan.selected.sparkSession
        pair = session.createDataFrame([], op.plan.schema)
        found["condition"] = _texts(pair, [node.condition])[0]
    if op.plan.event_time_in_key and op.mode is OutputMode.COMPLETE:
        # In other modes windows are forgotten once they are over.
        found["mode"] = "complete"
    return found


def _keys(node: StatefulNode) -> list[str]:
    if isinstance(node, JoinNode):
        return [" = ".join(pair) for pair in zip(*node.on, strict=True)]
    if isinstance(node, DedupNode):
        return list(node.subset)
    if isinstance(node, AggregateNode):
        times = [node.window.time] if isinstance(node.window, WindowSpec | SessionSpec) else []
        return _texts(node.source, [*node.keys, *times])
    return _texts(node.source, list(node.keys)) if isinstance(node, ProcessNode) else []


def _texts(source: DataFrame, columns: list[Column]) -> list[str]:
    """Columns as Spark understands them."""
    if not columns:
        return []
    plan = plans.analyzed(source.select(*columns))
    return [words(source.sparkSession, each, [plans.analyzed(source)]) for each in gateway.items(plan.expressions())]
