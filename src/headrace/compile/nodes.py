"""Compiling a node of the graph, whatever it is."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from headrace.compile.aggregates import compile_aggregate
from headrace.compile.duplicates import compile_dedup
from headrace.compile.joins import compile_join
from headrace.compile.plan import StatefulPlan
from headrace.compile.processes import compile_process
from headrace.compile.products import compile_product
from headrace.config import Config
from headrace.graph.nodes import AggregateNode, JoinNode, ProcessNode, ProductNode, StatefulNode

__all__ = ["StatefulPlan", "compile_node"]


SETTINGS = ("spark.sql.ansi.enabled", "spark.sql.session.timeZone", "spark.sql.caseSensitive")
"""Of the session, those that an expression's meaning depends on."""

_COMPILED: WeakKeyDictionary[StatefulNode, dict[tuple[object, ...], StatefulPlan]] = WeakKeyDictionary()
"""Plans of the nodes that are alive, by what the compilation depended on."""


def compile_node(node: StatefulNode, config: Config) -> StatefulPlan:
    """Done once for a node: it is asked for when the user builds the node, and again when the query starts."""
    conf = node.inputs[0].session.conf
    circumstances = (config.hashBits, config.grid, *(conf.get(name) for name in SETTINGS))
    plans = _COMPILED.setdefault(node, {})
    if circumstances not in plans:
        plans[circumstances] = _compiled(node, config)
    return plans[circumstances]


def _compiled(node: StatefulNode, config: Config) -> StatefulPlan:
    if isinstance(node, JoinNode):
        return compile_join(node, config)
    if isinstance(node, ProcessNode):
        return compile_process(node, config)
    if isinstance(node, ProductNode):
        return compile_product(node, config)
    return compile_aggregate(node, config) if isinstance(node, AggregateNode) else compile_dedup(node, config)
