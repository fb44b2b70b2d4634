"""A streaming plan in words that are the same in every session.

The text leaves out what differs between sessions: ids of columns and plans, and addresses. It leaves out what changes no row, such as how
rows are distributed. A static DataFrame is described by its columns only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from headrace.compile.words import words
from headrace.spark import gateway, streaming, trees

_CHANGE_NO_ROW = {
    "SubqueryAlias",
    "Repartition",
    "RepartitionByExpression",
    "RebalancePartitions",
    "ResolvedHint",
    "CollectMetrics",
    "View",
}
STATIC = "DataFrame"
_TUNING = re.compile(
    r"^(max|min|start|ending|failon|latestfirst|kafka\.|fetchoffset|groupid|includeheaders|cleansource|sourcearchive|numpartitions|rowsper|rampup|ignore|filenameonly|path$)",
    re.I,
)
"""Source options about the rate of reading or the starting point. They do not say what is read."""
_SECRET = re.compile(r"password|secret|token|credential|user|key", re.I)

Leaf = Callable[[Any], list[str] | None]


def is_without_code(plan: Any) -> bool:
    """True if a plan has no users' functions and is deterministic."""
    expressions = (each for node in trees.walk(plan) for each in gateway.items(node.expressions()))
    parts = (part for each in expressions for part in trees.walk(each))
    return bool(plan.deterministic()) and not any("UDF" in gateway.class_name(part) for part in parts)


def lines(session: SparkSession, plan: Any, leaf: Leaf = lambda node: None) -> list[str]:
    """The lines of a plan, from the results down to the sources. `leaf` may give other lines for a node; None means the usual ones."""
    return _lines(session, plan, leaf) or [_static(plan)]


def _lines(session: SparkSession, node: Any, leaf: Leaf) -> list[str] | None:
    """The lines of a node and those below it; None if there is no streaming source below it."""
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
    """A `leaf` function that describes references to the queries of a WITH clause. Each query may use those before it."""
    found: dict[int, list[str] | None] = {}

    def known(each: Any) -> list[str] | None:
        return found.get(each.cteId()) if gateway.class_name(each) == "CTERelationRef" else leaf(each)

    for definition in gateway.items(node.cteDefs()):
        found[definition.id()] = _lines(session, definition.child(), known)
    return known


def _static(node: Any) -> str:
    empty = not node.maxRows().isEmpty() and node.maxRows().get() == 0
    return f"{'no rows of' if empty else STATIC} {_columns(node)}"


def _columns(node: Any) -> str:
    return ", ".join(f"{each.name()} {each.dataType().catalogString()}" for each in gateway.items(node.output()))


def sources_in(plan: Any) -> list[str]:
    """The texts of a plan's sources, in the order in which Spark stores their offsets."""
    return [source_text(node) for node in trees.walk(plan) if gateway.class_name(node) in streaming.RELATIONS]


def source_text(node: Any) -> str:
    """The text of a source: format, path or topic, and columns, without options about the rate or the starting point."""
    name = streaming.source_name(node)
    options = sorted(streaming.source_options(node).items())
    kept = {key: value for key, value in options if not _TUNING.match(key) and not _SECRET.search(key)}
    said = ", ".join(f"{key}={value}" for key, value in kept.items())
    if name.startswith("FileSource["):
        path = re.sub(r"^file:/+", "/", name.removeprefix("FileSource[").removesuffix("]"))
        return f"{node.dataSource().className()} files of {path.rstrip('/')}{said and f' ({said})'}: {_columns(node)}"
    return f"{name} {said}: {_columns(node)}"
