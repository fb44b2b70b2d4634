"""Compiling a node of the graph, whatever it is."""

from __future__ import annotations

from headrace.compile.aggregates import compile_aggregate
from headrace.compile.duplicates import compile_dedup
from headrace.compile.plan import StatefulPlan
from headrace.config import Config
from headrace.graph.nodes import AggregateNode, StatefulNode

__all__ = ["StatefulPlan", "compile_node"]


def compile_node(node: StatefulNode, config: Config) -> StatefulPlan:
    return compile_aggregate(node, config) if isinstance(node, AggregateNode) else compile_dedup(node, config)
