"""Checks of sources: a streaming DataFrame that can be replayed, without stateful operators of Spark's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import SessionError, SourceError, UnsupportedError
from headrace.spark.contract import check_contract
from headrace.spark.gateway import class_name, is_connect, items
from headrace.spark.plans import analyzed
from headrace.spark.trees import patterns, walk

_WITHOUT_REPLAY = ("socket", "TextSocket")
_SELECTING = ("select", "selectExpr", "withColumn", "withColumns")
_SEVERAL_ROWS = ("Aggregate", "Window")
"""Nodes of Spark's plans that read several rows, and that an expression in one of these steps can add."""
_STATEFUL = {
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


def check_source(frame: Any, where: str) -> None:
    """Refuse a source that is no streaming DataFrame, cannot be replayed, or has a stateful operator of Spark's."""
    if is_connect(frame):
        raise SessionError(
            where=where,
            wanted="a DataFrame of a classic Spark session",
            found="one of Spark Connect",
            hint="start the session with a master (hr.session, or SparkSession.builder.master(...)), not with remote(...)",
        )
    if not isinstance(frame, DataFrame):
        raise SourceError(where=where, wanted="a streaming DataFrame", found=type(frame).__name__)
    if not frame.isStreaming:
        raise SourceError(where=where, wanted="a streaming DataFrame", found="a batch DataFrame", hint="read it with spark.readStream")
    check_contract(frame.sparkSession)
    for node in walk(analyzed(frame)):
        if class_name(node) == "StreamingRelationV2" and node.sourceName() in _WITHOUT_REPLAY:
            raise SourceError(
                "results are exact only if a batch can be read again after a crash",
                where=where,
                found=f"the {node.sourceName()} source, which cannot replay",
                hint="write its data to files or Kafka first",
            )
    refuse_state(frame, where)


def refuse_state(frame: DataFrame, where: str) -> None:
    """Refuse a streaming DataFrame with an operator of Spark's that keeps state or reads several rows.

    Spark emits results of such an operator one batch after the watermark has passed them, so our operators would drop them as late.
    Static DataFrames that are joined with the stream may have any operators.
    """
    for node in _streaming_nodes(analyzed(frame)):
        kind = class_name(node)
        both = kind == "Join" and all(child.isStreaming() for child in items(node.children()))
        if kind in _STATEFUL or both:
            raise UnsupportedError(
                "Spark's own state below hr.stream is not Headrace's: rows that it emits late would be dropped",
                where=where,
                wanted="a streaming DataFrame without stateful operators",
                found="a join of two streams" if both else _STATEFUL[kind],
                hint="wrap the DataFrame before that step, hr.stream(df), and call the operator on the stream: "
                "groupBy(...).agg(...), dropDuplicates, join(..., within=...), process",
            )


def check_step(before: DataFrame, after: DataFrame, method: str, where: str) -> None:
    """Refuse a step that added an aggregate or a window function: Spark would compute it for each batch separately."""
    if method in _SELECTING and _several_rows(after) > _several_rows(before):
        raise UnsupportedError(
            "Spark would compute it over each batch alone, which is never what was meant",
            where=where,
            found=f"a function that looks at several rows, in {method}",
            hint="use groupBy(...).agg(...) on the stream",
        )


def _several_rows(frame: DataFrame) -> int:
    """The number of nodes that read several rows. Static DataFrames that are joined may have some."""
    plan = analyzed(frame)
    if not any(plan.containsPattern(each) for each in patterns(frame.sparkSession, ("AGGREGATE", "WINDOW"))):
        return 0
    return sum(class_name(node) in _SEVERAL_ROWS for node in walk(plan))


def _streaming_nodes(node: Any) -> Iterator[Any]:
    """The streaming nodes of a plan, parents first; static parts are left out."""
    if node.isStreaming():
        yield node
        for child in items(node.children()):
            yield from _streaming_nodes(child)
