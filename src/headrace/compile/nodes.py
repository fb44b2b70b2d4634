"""Compiling a node of the graph, whatever its class."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from headrace.compile import aggregates, duplicates, joins, limits, partitions, processes, products, stream_joins, user_states
from headrace.compile.plan import StatefulPlan
from headrace.compile.registry import compiler_of
from headrace.config import Config
from headrace.graph.nodes import StatefulNode

__all__ = ["StatefulPlan", "compile_node"]

BUILT_IN = (aggregates, duplicates, joins, limits, partitions, processes, products, stream_joins, user_states)
"""The modules that compile the nodes of `graph.nodes`. Importing a module registers its compiler."""
SETTINGS = "spark.sql."
"""The prefix of the session's settings that the meaning of an expression may depend on."""

_COMPILED: WeakKeyDictionary[StatefulNode, dict[tuple[object, ...], StatefulPlan]] = WeakKeyDictionary()
"""The plans of each node that is alive, by the settings that they were compiled with."""


def compile_node(node: StatefulNode, config: Config) -> StatefulPlan:
    """The plan of a node. It is compiled once for the same settings, when the user builds the node, and used again at the start."""
    conf = node.inputs[0].session.conf.getAll
    settings = (config.hashBits, config.grid, *sorted(each for each in conf.items() if each[0].startswith(SETTINGS)))
    plans = _COMPILED.setdefault(node, {})
    if settings not in plans:
        plans[settings] = compiler_of(node)(node, config)
    return plans[settings]
