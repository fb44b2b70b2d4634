"""Spark's batch answer to a query under test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.api.stream import Stream
from headrace.compile.nodes import compile_node
from headrace.config import Config
from headrace.errors import QueryError
from headrace.graph.nodes import SharedNode, UnionNode
from headrace.spark.expressions import quoted
from headrace.testing.results import CollectingSink


def grouping_columns(stream: Stream) -> tuple[str, ...] | None:
    """The columns that identify a result of the stream's operator, such as those that an aggregate groups by, if the stream has them."""
    node = stream.rows.origin
    if node is None or isinstance(node, SharedNode | UnionNode):
        return None
    names = compile_node(node, Config()).results.keys
    return names if names is not None and all(name in stream.columns for name in names) else None


def expected(
    reference: Callable[..., Any], frames: Sequence[DataFrame], results: CollectingSink, watermark_ms: int, due: str | None, where: str
) -> DataFrame:
    """The result of the reference over batch DataFrames; in append mode, only results whose time the watermark has passed."""
    answer = _answer(reference, frames, results.name, where)
    if results.mode != "append":
        return answer
    times = [F.expr(due)] if due is not None else [F.col(f"{quoted(name)}.end") for name in _windows(answer.schema)]
    for time in times:
        # Spark moves a filter below the aggregate, where sessions are not merged yet. It would drop the last rows of an open session, and
        # return the rest as a result. A condition that is not deterministic stays where it is.
        answer = answer.filter(F.when(F.monotonically_increasing_id() >= 0, time <= F.timestamp_millis(F.lit(watermark_ms))))
    return answer


def _answer(reference: Callable[..., Any], frames: Sequence[DataFrame], sink: str, where: str) -> DataFrame:
    hint = "give a function of batch DataFrames: assert_same_as_spark(lambda rows: ...)"
    try:
        answer = reference(*frames)
    except (TypeError, AttributeError, QueryError) as refused:
        found = f"{type(refused).__name__}: {refused}"
        raise QueryError(where=where, wanted="a query that Spark's DataFrames can run", found=found, hint=hint) from refused
    if isinstance(answer, dict) and sink in answer:
        answer = answer[sink]
    if not isinstance(answer, DataFrame):
        raise QueryError(where=where, wanted="a DataFrame", found=type(answer).__name__, hint=hint)
    return answer


def _windows(schema: T.StructType) -> list[str]:
    """The names of columns that look like time windows: structs of a start and an end."""
    return [f.name for f in schema.fields if isinstance(f.dataType, T.StructType) and _is_window(f.dataType)]


def _is_window(kind: T.StructType) -> bool:
    times = (T.TimestampType, T.TimestampNTZType)
    return kind.names == ["start", "end"] and all(isinstance(f.dataType, times) for f in kind.fields)
