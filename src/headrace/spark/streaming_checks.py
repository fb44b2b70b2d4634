"""Spark's own checks of streaming queries, with Spark's own words."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark.expressions import data_type, expression_maker
from headrace.spark.gateway import class_name, has_method, items, jvm_of, seq
from headrace.spark.plans import analyzed
from headrace.spark.trees import rewrite, walk

_ENABLED = "spark.sql.streaming.unsupportedOperationCheck"


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
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    wanted = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]()
    checked = _without_more(session, plan)
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(checked, wanted)


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
