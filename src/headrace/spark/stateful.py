"""Spark's own operators that read several rows or keep state between batches, recognised in its plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from headrace.spark.gateway import class_name, items
from headrace.spark.plans import analyzed
from headrace.spark.trees import contains_any, patterns, walk

SEVERAL_ROWS = ("Aggregate", "Window")
"""Nodes that read several rows, and that an expression in ``select`` can add."""
STATEFUL = {
    "Aggregate": "groupBy(...).agg(...)",
    "Distinct": "distinct()",
    "Deduplicate": "dropDuplicates(...)",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark(...)",
    "Window": "a window function",
    "Sort": "sort(...)",
    "GlobalLimit": "limit(...)",
    "LocalLimit": "limit(...)",
    "Offset": "offset(...)",
    "Tail": "tail(...)",
    "Intersect": "intersect(...)",
    "Except": "exceptAll(...) or subtract(...)",
    "Pivot": "pivot(...)",
    "MapGroups": "mapGroups(...)",
    "CoGroup": "cogroup(...)",
    "FlatMapGroupsWithState": "flatMapGroupsWithState(...)",
    "FlatMapGroupsInPandas": "applyInPandas(...)",
    "FlatMapGroupsInArrow": "applyInArrow(...)",
    "FlatMapCoGroupsInPandas": "applyInPandas(...)",
    "FlatMapCoGroupsInArrow": "applyInArrow(...)",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState(...)",
    "TransformWithState": "transformWithState(...)",
    "TransformWithStateInPySpark": "transformWithState(...)",
    "TransformWithStateInPandas": "transformWithStateInPandas(...)",
    "UpdateEventTimeWatermarkColumn": "transformWithState(...)",
}
"""Nodes that, on a stream, read several rows or keep state between batches, with the methods that make them."""


def stateful_step(frame: DataFrame) -> str | None:
    """The user's name for an operator of a streaming DataFrame that reads several rows or keeps state; None if there is none.

    Static DataFrames that are joined with the stream may have any operators.
    """
    return stateful_node(analyzed(frame))


def stateful_node(plan: Any) -> str | None:
    """The same for the plan of a streaming DataFrame."""
    for node in _streaming_nodes(plan):
        kind = class_name(node)
        if kind in STATEFUL:
            return STATEFUL[kind]
        if kind == "Join" and all(child.isStreaming() for child in items(node.children())):
            return "a join of two streams"
    return None


def several_rows(frame: DataFrame) -> int:
    """The number of nodes of a DataFrame that read several rows. Static DataFrames that are joined may have some."""
    plan = analyzed(frame)
    if not contains_any(plan, patterns(frame.sparkSession, ("AGGREGATE", "WINDOW"))):
        return 0
    return sum(class_name(node) in SEVERAL_ROWS for node in walk(plan))


def _streaming_nodes(node: Any) -> Iterator[Any]:
    """The streaming nodes of a plan, parents first; static parts are left out."""
    if node.isStreaming():
        yield node
        for child in items(node.children()):
            yield from _streaming_nodes(child)
