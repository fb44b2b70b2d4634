"""Logical plans: from a DataFrame and back, and DataFrames put in the place of others inside a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.errors import require
from headrace.spark.expressions import WATERMARK_KEY
from headrace.spark.gateway import class_name, items, java_frame, java_session, jvm_of, seq, seq_maker
from headrace.spark.trees import MOMENTARY, contains_any, patterns, rewrite, walk

_ROWS_AT_HAND = {"LogicalRDD", "LocalRelation", "Range", "OneRowRelation"}
"""Leaves whose rows do not change between two optimisations of a plan."""

EMPTY_RELATIONS = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"
"""A rule of the optimiser. It replaces all that reads no rows, shuffles too, by a relation without partitions. But every instance of an
operator needs its task: it may have windows to close although no rows come."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A logical plan, or a part of one. Other packages pass it on; only this package looks inside."""

    session: SparkSession
    node: Any

    def frame(self) -> DataFrame:
        """The DataFrame of this plan."""
        return frame_of(self.session, self.node)


def plan_of(what: DataFrame | Plan) -> Plan:
    """A DataFrame's analysed plan. A plan is returned as it is."""
    return what if isinstance(what, Plan) else Plan(what.sparkSession, analyzed(what))


def analyzed(frame: DataFrame) -> Any:
    """A DataFrame's analysed logical plan."""
    return java_frame(frame).queryExecution().analyzed()


def optimized(frame: DataFrame) -> Any:
    """A DataFrame's optimised logical plan."""
    return java_frame(frame).queryExecution().optimizedPlan()


def optimized_stream(frame: DataFrame) -> Any:
    """A streaming DataFrame's optimised logical plan, which Spark makes only for its batches."""
    return java_session(frame.sparkSession).sessionState().optimizer().execute(analyzed(frame))


def can_be_optimized_early(session: SparkSession, plan: Any) -> bool:
    """True if the optimiser returns the same plan now and later. For tables and files it may keep what they contain now."""
    if not plan.deterministic() or contains_any(plan, patterns(session, MOMENTARY)):
        return False
    return all(class_name(node) in _ROWS_AT_HAND for node in walk(plan) if not node.children().size())


def has_subquery(frame: DataFrame) -> bool:
    """True if an expression of a DataFrame contains a query of its own."""
    return contains_any(analyzed(frame), patterns(frame.sparkSession, ("PLAN_EXPRESSION",)))


def has_watermark(frame: DataFrame) -> bool:
    """True if a DataFrame's plan contains ``withWatermark``."""
    return any(class_name(node) == "EventTimeWatermark" for node in walk(analyzed(frame)))


def watermark_delay_ms(frame: DataFrame, name: str) -> int | None:
    """The delay of the watermark on a column, or None if it has none."""
    for output in items(analyzed(frame).output()):
        if output.name() == name and output.metadata().contains(WATERMARK_KEY):
            return int(output.metadata().getLong(WATERMARK_KEY))
    return None


def frame_of(session: SparkSession, plan: Any, analyzed: bool = False) -> DataFrame:
    """The DataFrame of a logical plan. With ``analyzed``, Spark does not analyse the plan again."""
    if analyzed:
        plan.setAnalyzed()
    return DataFrame(jvm_of(session).org.apache.spark.sql.classic.Dataset.ofRows(java_session(session), plan), session)


def project(session: SparkSession, columns: list[Any], plan: Any) -> Any:
    """The plan with only these of its output columns."""
    return jvm_of(session).org.apache.spark.sql.catalyst.plans.logical.Project(seq(session, columns), plan)


def with_equal_watermark_ids(session: SparkSession, plan: Any) -> Any:
    """The plan with the same id in all watermark nodes. Spark gives each a random one, so that equal plans would differ."""
    same = jvm_of(session).java.util.UUID(0, 0)

    def replacement(node: Any) -> Any | None:
        if class_name(node) != "EventTimeWatermark":
            return None
        return node.copy(same, node.eventTime(), node.delay(), rewrite(session, node.child(), replacement))

    return rewrite(session, plan, replacement)


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """A DataFrame without rows. Unlike one made from an empty list it has no partitions, and Spark leaves it out of unions."""
    java = java_session(session)
    return DataFrame(java.createDataFrame(jvm_of(session).java.util.ArrayList(), java.parseDataType(schema.json())), session)


class Binding:
    """A leaf of a plan, the template, that another plan with the same columns replaces.

    Expressions above the leaf refer to the template's columns by their ids. So the replacing plan's columns get those ids, and the
    template's metadata: an event-time column remains one.
    """

    def __init__(self, session: SparkSession, template: Any) -> None:
        jvm = jvm_of(session)
        catalyst = jvm.org.apache.spark.sql.catalyst
        # Looking up a Java name takes a round trip for every dot, and these are used for every batch.
        self._alias, self._project, self._to_seq = catalyst.expressions.Alias, catalyst.plans.logical.Project, seq_maker(session)
        self._none = self._to_seq([])
        self._output = template.output()
        self._columns = [(c.name(), c.exprId(), jvm.scala.Some(c.metadata())) for c in items(self._output)]
        self._named: tuple[str, Any] = ("", None)
        self.ids = tuple(expr_id.id() for _, expr_id, _ in self._columns)

    def to(self, actual: Any) -> Any:
        """The replacing plan, with the template's column ids."""
        match class_name(actual):
            # These nodes take their output columns as an argument. Any additional node costs planning time in every batch.
            case "MapInArrow":
                return actual.copy(actual.functionExpr(), self._output, actual.child(), actual.isBarrier(), actual.profile())
            case "LocalRelation":
                return actual.copy(self._output, actual.data(), actual.isStreaming(), actual.stream())
            case "Repartition":
                return actual.copy(actual.numPartitions(), actual.shuffle(), self.to(actual.child()))
        return self._project(self._names_of(actual.output()), actual)

    def _names_of(self, output: Any) -> Any:
        """Aliases from the actual columns to the template's. The last ones are kept: most batches have the same columns."""
        text = output.toString()
        if self._named[0] != text:
            named = [
                self._alias(now, name, expr_id, self._none, metadata, self._none)
                for (name, expr_id, metadata), now in zip(self._columns, items(output), strict=True)
            ]
            self._named = (text, self._to_seq(named))
        return self._named[1]


def substituted(whole: DataFrame | Plan, actual: Sequence[tuple[DataFrame, DataFrame]]) -> DataFrame:
    """A DataFrame with templates replaced by DataFrames of the same columns. The pairs are in the plan's order.

    The plan must contain each template exactly once. If a plan uses one batch DataFrame twice, Spark gives the columns of the second
    occurrence new ids. That occurrence would remain, and its rows would be missing.
    """
    plan = plan_of(whole)
    session = plan.session
    wanted = [analyzed(template) for template, _ in actual]
    bound = [Binding(session, node).to(analyzed(rows)) for node, (_, rows) in zip(wanted, actual, strict=True)]
    found = [0] * len(wanted)

    def replacement(node: Any) -> Any | None:
        equal = [at for at, each in enumerate(wanted) if node.equals(each)]
        if not equal:
            return None
        # Two templates may be equal. The plan then contains them in the order of the pairs.
        at = next((at for at in equal if not found[at]), equal[-1])
        found[at] += 1
        return bound[at]

    replaced = rewrite(session, plan.node, replacement)
    require(found == [1] * len(wanted), f"every template is in its plan exactly once; they were found {found} times")
    return frame_of(actual[0][1].sparkSession, replaced)
