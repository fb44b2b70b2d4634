"""Lowering ``transformWithState``, ``transformWithStateInPandas`` and ``applyInPandasWithState``."""

from __future__ import annotations

from headrace.errors import UnsupportedError
from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.user_states import input_of, is_user_state, node_of
from headrace.spark.logical import Logical


@lowers("FlatMapGroupsInPandasWithState", "TransformWithStateInPySpark", "UpdateEventTimeWatermarkColumn")
def lower_user_state(node: Logical, lowering: Lowering) -> Lowered:
    """The user's code gets the rows under the names that it knows, so these must differ from one another."""
    if not is_user_state(node):
        found = f"{node.kind} on results of {node.children[0].kind}"
        raise UnsupportedError("Headrace cannot run this yet", where=lowering.where, found=found)
    base = Logical(node.session, input_of(node).node)
    below = lowering.lower(base).named(base.column_names)
    return Lowered(node, results_of(node_of(node, below.rows, lowering.where)), lowering.where)
