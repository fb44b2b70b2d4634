"""Compiling a node of the graph, whatever it is."""

from __future__ import annotations

from headrace.compile.aggregates import compile_aggregate
from headrace.compile.duplicates import compile_dedup
from headrace.compile.joins import compile_join
from headrace.compile.plan import StatefulPlan
from headrace.compile.processes import compile_process
from headrace.compile.products import compile_product
from headrace.config import Config
from headrace.graph.nodes import AggregateNode, JoinNode, ProcessNode, ProductNode, StatefulNode

__all__ = ["StatefulPlan", "compile_node"]


def compile_node(node: StatefulNode, config: Config) -> StatefulPlan:
    if isinstance(node, JoinNode):
        return compile_join(node, config)
    if isinstance(node, ProcessNode):
        return compile_process(node, config)
    if isinstance(node, ProductNode):
        return compile_product(node, config)
    return compile_aggregate(node, config) if isinstance(node, AggregateNode) else compile_dedup(node, config)
