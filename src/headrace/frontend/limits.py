"""Lowering ``limit`` where it counts the rows of all batches: in append mode, and below an aggregate."""

from __future__ import annotations

from headrace.errors import UnsupportedError
from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import LimitNode
from headrace.spark.logical import Logical


@lowers("GlobalLimit")
def lower_limit(node: Logical, lowering: Lowering) -> Lowered:
    """Spark has put a limit of each partition below it, which changes nothing."""
    limit = node.limit
    if limit is None:
        raise UnsupportedError(where=lowering.where, found="a limit that is no constant")
    child = node.children[0]
    below = lowering.lower(child.children[0] if child.kind == "LocalLimit" else child)
    return Lowered(node, results_of(LimitNode(below.rows, limit, lowering.where)), lowering.where)
