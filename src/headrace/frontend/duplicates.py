"""Lowering ``dropDuplicates`` and ``dropDuplicatesWithinWatermark``."""

from __future__ import annotations

from headrace.frontend.lowered import Lowered, results_of
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.nodes import DedupNode, DedupWithinNode
from headrace.spark.logical import Logical, key_places


@lowers("Deduplicate", "DeduplicateWithinWatermark")
def lower_deduplicate(node: Logical, lowering: Lowering) -> Lowered:
    """The columns are those of the input, so that its names can be restored."""
    below = lowering.lower(node.children[0]).uniquely_named()
    columns = below.rows.columns
    subset = tuple(dict.fromkeys(columns[at] for at in key_places(node)))
    kind = DedupNode if node.kind == "Deduplicate" else DedupWithinNode
    return Lowered(node, results_of(kind(below.rows, subset, lowering.where)), lowering.where)
