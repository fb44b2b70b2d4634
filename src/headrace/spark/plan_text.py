"""A streaming plan in words that are the same in every session.

The text leaves out what differs between sessions: ids of columns and plans, and addresses. It leaves out what changes no row, such as how
rows are distributed. A static DataFrame is described by its columns only.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.gateway import class_name, class_named, items
from headrace.spark.named import has_name
from headrace.spark.plans import Plan, analyzed, plan_of
from headrace.spark.streaming import reads_stream, relations, source_name, source_options
from headrace.spark.trees import walk
from headrace.spark.words import words

_USER_CODE = "org.apache.spark.sql.catalyst.expressions.UserDefinedExpression"
"""The trait of expressions that call users' functions."""
_USER_NAMES = ("UDF", "UserDefined", "V2Aggregator")
"""Parts of the names of such expressions that lack the trait. Versions of Spark differ in these."""
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
"""Gives the lines of a node that is described in another way. None means the usual way."""


def is_without_code(what: DataFrame | Plan) -> bool:
    """True if a plan has no users' functions and is deterministic."""
    plan = plan_of(what)
    users = class_named(plan.session, _USER_CODE)
    expressions = (each for node in walk(plan.node) for each in items(node.expressions()))
    parts = (part for each in expressions for part in walk(each))
    return bool(plan.node.deterministic()) and not any(_is_users(part, users) for part in parts)


def _is_users(expression: Any, users: Any) -> bool:
    name = class_name(expression)
    return any(each in name for each in _USER_NAMES) or bool(users.isInstance(expression))


def lines(what: DataFrame | Plan, known: tuple[DataFrame, list[str]] | None = None) -> list[str]:
    """The lines of a plan, from the results down to the sources. ``known`` is a part of the plan, and the lines that describe it."""
    plan = plan_of(what)
    part, described = (None, []) if known is None else (analyzed(known[0]), known[1])

    def leaf(node: Any) -> list[str] | None:
        return described if part is not None and node.equals(part) else None

    return _lines(plan.session, plan.node, leaf) or [_static(plan.node)]


def _lines(session: SparkSession, node: Any, leaf: Leaf) -> list[str] | None:
    """The lines of a node and those below it; None if there is no streaming source below it."""
    known = leaf(node)
    if known is not None:
        return known
    if reads_stream(node):
        return [_source(node)]
    kind = class_name(node)
    if kind == "WithCTE":
        return _lines(session, node.plan(), _named(session, node, leaf))
    children = list(items(node.children()))
    below = [_lines(session, child, leaf) for child in children]
    if all(each is None for each in below):
        return None
    shown = [[_static(child)] if each is None else each for child, each in zip(children, below, strict=True)]
    if kind in _CHANGE_NO_ROW or has_name(session, node):
        return shown[0]
    line = f"{kind} {', '.join(words(session, each, children) for each in items(node.expressions()))}".strip()
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
        mine = class_name(each) == "CTERelationRef" and each.cteId() in found
        return found[each.cteId()] if mine else leaf(each)

    for definition in items(node.cteDefs()):
        found[definition.id()] = _lines(session, definition.child(), known)
    return known


def _static(node: Any) -> str:
    empty = not node.maxRows().isEmpty() and node.maxRows().get() == 0
    return f"{'no rows of' if empty else STATIC} {_columns(node)}"


def _columns(node: Any) -> str:
    return ", ".join(f"{each.name()} {each.dataType().catalogString()}" for each in items(node.output()))


def sources_in(frame: DataFrame) -> list[str]:
    """The texts of a streaming DataFrame's sources, in the order in which Spark stores their offsets."""
    return [_source(node) for node in relations(frame)]


def without_columns(text: str) -> str:
    """The text of a source without its columns, which it does not need to go on from its offsets.

    >>> without_columns("parquet files of /in: k string, s struct<a:int>")
    'parquet files of /in'
    """
    return text.partition(": ")[0]


def _source(node: Any) -> str:
    """The text of a source: format, path or topic, and columns, without options about the rate or the starting point."""
    name = source_name(node)
    options = sorted(source_options(node).items())
    kept = {key: value for key, value in options if not _TUNING.match(key) and not _SECRET.search(key)}
    said = ", ".join(f"{key}={value}" for key, value in kept.items())
    if name.startswith("FileSource["):
        path = re.sub(r"^file:/+", "/", name.removeprefix("FileSource[").removesuffix("]"))
        return f"{node.dataSource().className()} files of {path.rstrip('/')}{said and f' ({said})'}: {_columns(node)}"
    return f"{name} {said}: {_columns(node)}"
