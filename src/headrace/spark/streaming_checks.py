"""Spark's own checks of streaming queries, with Spark's own words."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headrace.spark.gateway import jvm_of
from headrace.spark.plans import analyzed
from headrace.spark.sinks import FILE_FORMATS

TEMPORARY = ("memory", "console", "noop", "foreach", "foreachbatch")
"""Sinks that get a temporary checkpoint if they have none."""
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_ENABLED = "spark.sql.streaming.unsupportedOperationCheck"


def check_sink(session: SparkSession, format: str, mode: str, name: str | None, checkpoint: str | None) -> None:
    """Raise Spark's AnalysisException if Spark refuses the sink: its output mode, or because it has no name or no checkpoint."""
    errors = jvm_of(session).org.apache.spark.sql.errors.QueryCompilationErrors
    kind = format.lower()
    if kind == "memory" and name is None:
        raise _refusal(errors.queryNameNotSpecifiedForMemorySinkError())
    if kind in FILE_FORMATS and mode != "append":
        raise _refusal(errors.dataSourceOutputModeUnsupportedError(format, _output_mode(session, mode)))
    if kind not in TEMPORARY and checkpoint is None and not session.conf.get(_CHECKPOINTS, None):
        raise _refusal(errors.checkpointLocationNotSpecifiedError())


def _refusal(thrown: Any) -> AnalysisException:
    return AnalysisException(str(thrown.getMessage()))


def _output_mode(session: SparkSession, mode: str) -> Any:
    modes = jvm_of(session).org.apache.spark.sql.streaming.OutputMode
    return {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()


def check_streaming(frame: DataFrame, mode: str) -> None:
    """Raise Spark's AnalysisException if Spark refuses to run the DataFrame as a streaming query in this output mode."""
    session = frame.sparkSession
    if str(session.conf.get(_ENABLED, "true")).lower() != "true":
        return
    checker = jvm_of(session).org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(analyzed(frame), _output_mode(session, mode))
