"""Spark's own checks of streaming queries, with Spark's own words."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark.expressions import data_type, expression_maker
from headrace.spark.gateway import class_name, has_method, items, jvm_of, seq
from headrace.spark.plans import analyzed
from headrace.spark.sinks import FILE_FORMATS
from headrace.spark.trees import rewrite, walk

TEMPORARY = ("memory", "console", "noop", "foreach", "foreachbatch")
"""Sinks that get a temporary checkpoint if they have none."""
_CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_ENABLED = "spark.sql.streaming.unsupportedOperationCheck"


def check_sink(session: SparkSession, format: str, mode: str, name: str | None, checkpoint: str | None) -> None:
    """Raise Spark's error if Spark refuses the sink: its output mode, or because it has no checkpoint, no name, or one that is taken."""
    errors = jvm_of(session).org.apache.spark.sql.errors.QueryCompilationErrors
    kind = format.lower()
    if kind == "memory" and name is None:
        raise _refusal(errors.queryNameNotSpecifiedForMemorySinkError())
    if kind in FILE_FORMATS and mode != "append":
        raise _refusal(errors.dataSourceOutputModeUnsupportedError(format, _output_mode(session, mode)))
    if kind not in TEMPORARY and checkpoint is None and not session.conf.get(_CHECKPOINTS, None):
        raise _refusal(errors.checkpointLocationNotSpecifiedError())
    if name is not None and any(query.name == name for query in session.streams.active):
        raise IllegalArgumentException(
            f"Cannot start query with name {name} as a query with that name is already active in this SparkSession"
        )


def _refusal(thrown: Any) -> AnalysisException:
    return AnalysisException(str(thrown.getMessage()))


def _output_mode(session: SparkSession, mode: str) -> Any:
    modes = jvm_of(session).org.apache.spark.sql.streaming.OutputMode
    return {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()


def check_streaming(frame: DataFrame, mode: str) -> None:
    """Raise Spark's AnalysisException if Spark refuses to run the DataFrame as a streaming query in this output mode.

    What Headrace runs and Spark does not passes: window functions and distinct aggregates. Spark checks the query without them.
    """
    session = frame.sparkSession
    if str(session.conf.get(_ENABLED, "true")).lower() != "true":
        return
    jvm = jvm_of(session)
    plan = analyzed(frame)
    nodes = [class_name(each) for each in walk(plan) if each.isStreaming()]
    if mode == "complete" and "Window" in nodes and "Aggregate" not in nodes:
        # Complete mode is for aggregates in Spark. All rows of window functions are kept in the same way.
        mode = "append"
    checked = _without_more(session, plan)
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(checked, _output_mode(session, mode))


def _without_more(session: SparkSession, plan: Any) -> Any:
    """A plan whose streaming parts have no window functions and no distinct aggregates. Columns keep their ids and types."""
    logical = jvm_of(session).org.apache.spark.sql.catalyst.plans.logical
    to_expression = expression_maker(session)

    def without_call(alias: Any) -> Any:
        null = to_expression(F.lit(None).cast(data_type(alias)))
        return alias.withNewChildren(seq(session, [null]))

    def not_distinct(part: Any) -> Any | None:
        if class_name(part) != "AggregateExpression" or not part.isDistinct():
            return None
        return part.copy(part.aggregateFunction(), part.mode(), False, part.filter(), part.resultId())

    def replacement(node: Any) -> Any | None:
        if not node.isStreaming():
            return node
        if class_name(node) == "Window":
            below = rewrite(session, node.child(), replacement)
            columns = [*items(below.output()), *(without_call(each) for each in items(node.windowExpressions()))]
            return logical.Project(seq(session, columns), below)
        if class_name(node) == "Aggregate":
            calls = [rewrite(session, each, not_distinct) for each in items(node.aggregateExpressions())]
            more = [node.hint()] if has_method(node, "hint") else []
            below = rewrite(session, node.child(), replacement)
            return node.copy(node.groupingExpressions(), seq(session, calls), below, *more)
        return None

    return rewrite(session, plan, replacement)
