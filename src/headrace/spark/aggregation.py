"""What Spark's analysis makes of ``groupBy(...).agg(...)``: the aggregate calls as plain data, and the results around them.

Only this module knows what Spark calls its aggregate functions, and how it computes their results from its buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType

from headrace.spark import gateway, trees
from headrace.spark.buffers import REPLACEABLE, SparkBuffer, buffer_of, is_a
from headrace.spark.expressions import WATERMARK_KEY, column, data_type, expression_maker, text, without_alias
from headrace.spark.plans import analyzed
from headrace.spark.words import words_over

FUNCTIONS: Mapping[str, str] = {
    "Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max", "StddevSamp": "stddev_samp", "StddevPop": "stddev_pop",
    "VarianceSamp": "var_samp", "VariancePop": "var_pop", "MinBy": "min_by", "MaxBy": "max_by", "First": "first", "Last": "last",
    "CollectSet": "collect_set", "HyperLogLogPlusPlus": "approx_count_distinct", "CollectList": "collect_list", "Corr": "corr",
    "CovPopulation": "covar_pop", "CovSample": "covar_samp", "Skewness": "skewness", "Kurtosis": "kurtosis", "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or", "BitXorAgg": "bit_xor", "RegrR2": "regr_r2", "RegrSXY": "regr_sxy", "RegrSlope": "regr_slope",
    "RegrIntercept": "regr_intercept", "RegrReplacement": "regr_replacement",
}  # fmt: skip
"""By Catalyst class: the name of an aggregate function."""
SEVERAL = {False: "max_by_several", True: "min_by_several"}
"""``max_by`` and ``min_by`` with a number of rows, which not every supported Spark has; by whether the least come first."""
CLASSES = tuple(f"org.apache.spark.sql.catalyst.expressions.aggregate.{name}" for name in FUNCTIONS)
"""The full names of all classes that this module knows."""


@dataclass(frozen=True)
class Argument:
    """An argument of an aggregate call, or the condition of its FILTER clause."""

    column: Column
    type: DataType
    nullable: bool
    text: str
    """Equal for equal expressions."""


@dataclass(frozen=True, eq=False)
class AggregateCall:
    """One call of an aggregate function."""

    sql: str
    function: str
    """One of the values of ``FUNCTIONS``, or "" if Headrace does not know the function."""
    sql_name: str
    """Spark's name of the function."""
    is_distinct: bool
    is_try: bool
    """True if an overflow gives null, as in ``try_sum``."""
    ignores_nulls: bool
    """True if ``first``, ``last``, ``collect_list`` or ``collect_set`` skips nulls; False for other functions."""
    relative_error: float
    """The accuracy that ``approx_count_distinct`` was asked for; 0 for other functions."""
    rows: int
    """How many rows ``max_by`` or ``min_by`` is asked for; 0 for other functions."""
    arguments: tuple[Argument, ...]
    """Empty if Headrace does not know the function."""
    filter: Argument | None
    """The condition of the FILTER clause."""
    _expression: Any = field(repr=False)
    _function: Any = field(repr=False)

    def words(self, source: DataFrame) -> str:
        """The call as text that is the same in every session. ``source`` has the columns that it is over."""
        return words_over(source, self._expression)

    def buffer_type(self, name: str) -> DataType | None:
        """The type of a column of Spark's buffer, or None if there is no column of this name."""
        found = [each for each in gateway.items(self._function.aggBufferAttributes()) if each.name() == name]
        return data_type(found[0]) if found else None

    def buffer_columns(self) -> list[tuple[str, DataType]]:
        """The names and types of the columns of Spark's buffer."""
        return [(str(each.name()), data_type(each)) for each in gateway.items(self._function.aggBufferAttributes())]

    def buffer(self, session: SparkSession) -> SparkBuffer | None:
        """Spark's own buffer for this call. None if Spark cannot run the function in steps."""
        return buffer_of(session, self._function)

    @property
    def result_type(self) -> DataType:
        """The type of the function's result."""
        return data_type(self._function)

    def result(self, session: SparkSession, buffers: Mapping[str, Column]) -> Column:
        """The function's result, as Spark computes it from its buffer. ``buffers`` has the columns of the buffer by name."""
        to_expression = expression_maker(session)
        names = {each.exprId().toString(): str(each.name()) for each in gateway.items(self._function.aggBufferAttributes())}

        def replacement(expression: Any) -> Any | None:
            if gateway.class_name(expression) != "AttributeReference":
                return None
            name = names.get(expression.exprId().toString(), "")
            return to_expression(buffers[name]) if name in buffers else None

        return column(session, trees.rewrite(session, self._function.evaluateExpression(), replacement))


@dataclass(frozen=True, eq=False)
class Aggregation:
    """The analysed aggregates of a query."""

    session: SparkSession
    calls: Mapping[str, AggregateCall]
    """The distinct aggregate calls in the results, by a text that is equal for equal calls."""
    names: tuple[str, ...]
    """The names of the results. A result is an expression over aggregate calls and grouping columns."""
    _results: list[Any] = field(repr=False)
    _groups: list[Any] = field(repr=False)

    def results(self, keys: list[Column], finished: Mapping[str, Column]) -> list[Column]:
        """The columns of the results. ``keys`` take the place of the grouping columns, and ``finished``, by text, that of the calls."""
        to_expression = expression_maker(self.session)
        shown = list(zip(self._groups, [to_expression(key) for key in keys], strict=True))

        def replacement(expression: Any) -> Any | None:
            if gateway.class_name(expression) == "AggregateExpression":
                return to_expression(finished[text(expression)])
            return next((key for group, key in shown if group.semanticEquals(expression)), None)

        rewritten = [trees.rewrite(self.session, without_alias(each), replacement) for each in self._results]
        return [column(self.session, each).alias(name) for each, name in zip(rewritten, self.names, strict=True)]


def aggregation_of(frame: DataFrame, results: int) -> Aggregation | None:
    """The aggregation that a DataFrame consists of, with its last so many columns as results.

    None if the DataFrame is more than an aggregation: its functions give several rows, or look at other groups.
    """
    session, plan = frame.sparkSession, analyzed(frame)
    if gateway.class_name(plan) != "Aggregate":
        return None
    groups = [without_alias(each) for each in gateway.items(plan.groupingExpressions())]
    found = list(gateway.items(plan.aggregateExpressions()))[-results:]
    calls: dict[str, AggregateCall] = {}
    for part in (part for each in found for part in trees.walk(each)):
        if gateway.class_name(part) == "AggregateExpression" and (key := text(part)) not in calls:
            calls[key] = _read(session, part)
    return Aggregation(session, calls, tuple(str(each.name()) for each in found), found, groups)


def event_time_of(frame: DataFrame) -> tuple[Column, DataType] | None:
    """The first column with a watermark and its type, or None if there is none."""
    for output in gateway.items(analyzed(frame).output()):
        if output.metadata().contains(WATERMARK_KEY):
            return column(frame.sparkSession, output), data_type(output)
    return None


def _read(session: SparkSession, expression: Any) -> AggregateCall:
    function = expression.aggregateFunction()
    while is_a(session, function, REPLACEABLE):
        # Spark's optimiser puts another function in its place, such as a count for count_if.
        function = function.replacement()
    name = gateway.class_name(function)
    known = SEVERAL[bool(function.reverse())] if name == "MaxMinByK" else FUNCTIONS.get(name, "")
    condition = expression.filter()
    return AggregateCall(
        sql=str(expression.sql()),
        function=known,
        sql_name=str(function.prettyName()),
        is_distinct=bool(expression.isDistinct()),
        is_try=_is_try(known, function),
        ignores_nulls=_ignores_nulls(known, function),
        relative_error=float(function.relativeSD()) if known == "approx_count_distinct" else 0.0,
        rows=int(function.k()) if known in SEVERAL.values() else 0,
        arguments=tuple(_argument(session, each) for each in gateway.items(function.children())) if known else (),
        filter=None if condition.isEmpty() else _argument(session, condition.get()),
        _expression=expression,
        _function=function,
    )


def _is_try(known: str, function: Any) -> bool:
    if known not in ("sum", "avg"):
        return False
    mode = function.evalContext().evalMode() if known == "sum" else function.evalMode()
    return str(mode.toString()) == "TRY"


def _ignores_nulls(known: str, function: Any) -> bool:
    if known in ("collect_list", "collect_set"):
        # In older versions of Spark they always do.
        return not gateway.has_method(function, "ignoreNulls") or bool(function.ignoreNulls())
    return known in ("first", "last") and bool(function.ignoreNulls())


def _argument(session: SparkSession, expression: Any) -> Argument:
    return Argument(column(session, expression), data_type(expression), bool(expression.nullable()), text(expression))
