"""What feeds an operator and what it computes, in words that are the same in every session: its identity.

State belongs to the operator that wrote it, wherever that stands in the program. So an operator is known by what it reads (sources, steps,
operators before it) and by what it computes from that (keys, windows, calls), or by the name that the user gave it. Nothing that differs
from one session to the next enters: ids of columns and plans, addresses, names of lambda variables, seeds that Spark draws, the session's
settings; nor anything that changes no row, such as how rows are distributed. Users' own functions enter by their names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession

from headrace.compile.words import words
from headrace.graph.nodes import AggregateNode, DedupNode, JoinNode, ProcessNode, ProductNode, SessionSpec, StatefulNode, WindowSpec
from headrace.operators.kernel import OutputMode
from headrace.spark import gateway, plans, streaming, trees

if TYPE_CHECKING:
    from headrace.compile.dataflow import Branch, Dataflow, Op

_CHANGE_NO_ROW = {
    "SubqueryAlias",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "CollectMetrics",
    "View",
}
_STATIC = "DataFrame"
_TUNING = re.compile(
    r"^(max|min|start|ending|failon|latestfirst|kafka\.|fetchoffset|groupid|includeheaders|cleansource|sourcearchive|numpartitions|rowsper|rampup|ignore|filenameonly|path$)",
    re.I,
)
"""Options that say how fast a source is read, or from where on, but not what it is."""
_SECRET = re.compile(r"password|secret|token|credential|user|key", re.I)

Leaf = Callable[[Any], list[str] | None]


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


def lineages(flow: Dataflow, by_name: bool = False) -> dict[str, Lineage]:
    """Per operator. ``by_name``: operators before it that have a name stand for all that feeds them."""
    found: dict[str, Lineage] = {}
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
    static = any(line.strip().startswith(_STATIC) for read in lineages(flow)[op.id].reads for line in read)
    return not static and all(says_all(flow, above) for above in flow.upstream(op))


def is_without_code(plan: Any) -> bool:
    """Whether a plan has neither functions of users nor chance in it."""
    expressions = (each for node in trees.walk(plan) for each in gateway.items(node.expressions()))
    parts = (part for each in expressions for part in trees.walk(each))
    return bool(plan.deterministic()) and not any("UDF" in gateway.class_name(part) for part in parts)


def _branch(flow: Dataflow, branch: Branch, known: dict[str, Lineage], by_name: bool) -> list[str]:
    frame, steps = branch.begin(flow)
    if frame is not None:
        below = lines(flow.session, plans.analyzed(frame))
    else:
        above = flow.by_id[branch.source]
        below = [f"operator named {above.name}" if above.name and by_name else f"operator {known[above.id].fingerprint}"]
    if not steps:
        return below
    leaf, plan = _stepped(flow, branch)
    return lines(flow.session, plan, lambda node: below if node.equals(leaf) else None)


def _stepped(flow: Dataflow, branch: Branch) -> tuple[Any, Any]:
    """The plan of a branch's steps, and the leaf that they are done on."""
    frame, steps = branch.begin(flow)
    rows = flow.session.createDataFrame([], flow.by_id[branch.source].plan.schema if frame is None else frame.schema)
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


def lines(session: SparkSession, plan: Any, leaf: Leaf = lambda node: None) -> list[str]:
    """A plan in words, results first; of static DataFrames only the columns. ``leaf`` says what stands for a node, if anything does."""
    return _lines(session, plan, leaf) or [_static(plan)]


def _lines(session: SparkSession, node: Any, leaf: Leaf) -> list[str] | None:
    """None for what has no streaming leaf in it."""
    known = leaf(node)
    if known is not None:
        return known
    kind = gateway.class_name(node)
    if kind in streaming.RELATIONS:
        return [source_text(node)]
    if kind == "WithCTE":
        return _lines(session, node.plan(), _named(session, node, leaf))
    children = list(gateway.items(node.children()))
    below = [_lines(session, child, leaf) for child in children]
    if all(each is None for each in below):
        return None
    shown = [[_static(child)] if each is None else each for child, each in zip(children, below, strict=True)]
    if kind in _CHANGE_NO_ROW:
        return shown[0]
    line = f"{kind} {', '.join(words(session, each, children) for each in gateway.items(node.expressions()))}".strip()
    if kind == "Generate" and node.outer():
        line += " outer"
    if kind == "EventTimeWatermark":
        line += f" delay {node.delay().toString()}"
    if kind == "Join":
        line += f" {node.joinType().sql()}"
    if len(shown) == 1:
        return [line, *shown[0]]
    return [line, *(f"  {text}" for each in shown for text in each)]


def _named(session: SparkSession, node: Any, leaf: Leaf) -> Leaf:
    """What stands for queries that are named in a WITH clause, where they are used. Each may use those before it."""
    found: dict[int, list[str] | None] = {}

    def known(each: Any) -> list[str] | None:
        return found.get(each.cteId()) if gateway.class_name(each) == "CTERelationRef" else leaf(each)

    for definition in gateway.items(node.cteDefs()):
        found[definition.id()] = _lines(session, definition.child(), known)
    return known


def _static(node: Any) -> str:
    empty = not node.maxRows().isEmpty() and node.maxRows().get() == 0
    return f"{'no rows of' if empty else _STATIC} {_columns(node)}"


def _columns(node: Any) -> str:
    return ", ".join(f"{each.name()} {each.dataType().catalogString()}" for each in gateway.items(node.output()))


def sources_in(plan: Any) -> list[str]:
    """What a plan reads, in the order in which Spark keeps its offsets."""
    return [source_text(node) for node in trees.walk(plan) if gateway.class_name(node) in streaming.RELATIONS]


def source_text(node: Any) -> str:
    """What a source reads: format, path or topic, and columns. Neither how fast it is read nor from where on."""
    name = streaming.source_name(node)
    options = sorted(streaming.source_options(node).items())
    kept = {key: value for key, value in options if not _TUNING.match(key) and not _SECRET.search(key)}
    said = ", ".join(f"{key}={value}" for key, value in kept.items())
    if name.startswith("FileSource["):
        path = re.sub(r"^file:/+", "/", name.removeprefix("FileSource[").removesuffix("]"))
        return f"{node.dataSource().className()} files of {path.rstrip('/')}{said and f' ({said})'}: {_columns(node)}"
    return f"{name} {said}: {_columns(node)}"
