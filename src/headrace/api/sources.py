"""Checks of sources: a streaming DataFrame of a classic session."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame

from headrace.errors import SessionError, SourceError, UnsupportedError
from headrace.spark.contract import check_contract
from headrace.spark.gateway import is_connect
from headrace.spark.stateful import several_rows
from headrace.spark.streaming import source_names

_SELECTING = ("select", "selectExpr", "withColumn", "withColumns")


def check_source(frame: Any, where: str) -> None:
    """Refuse a source that is no streaming DataFrame of a classic session."""
    if is_connect(frame):
        raise SessionError(
            where=where,
            wanted="a DataFrame of a classic Spark session",
            found="one of Spark Connect",
            hint="start the session with a master (hr.session, or SparkSession.builder.master(...)), not with remote(...)",
        )
    if not isinstance(frame, DataFrame):
        hint = "give the DataFrame that hr.stream(...) got" if type(frame).__name__ == "Stream" else ""
        raise SourceError(where=where, wanted="a streaming DataFrame", found=type(frame).__name__, hint=hint)
    if not frame.isStreaming:
        raise SourceError(where=where, wanted="a streaming DataFrame", found="a batch DataFrame", hint="read it with spark.readStream")
    check_contract(frame.sparkSession)
    # Raises an error for a source of a class that Headrace does not know.
    source_names(frame)


def check_step(before: DataFrame, after: DataFrame, method: str, where: str) -> None:
    """Refuse a step that added an aggregate or a window function: Spark would compute it for each batch separately."""
    if method in _SELECTING and several_rows(after) > several_rows(before):
        raise UnsupportedError(
            "Spark would compute it over each batch alone, which is never what was meant",
            where=where,
            found=f"a function that looks at several rows, in {method}",
            hint="use groupBy(...).agg(...) on the stream",
        )
