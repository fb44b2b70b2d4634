"""Catalyst expressions: from PySpark columns and back, their types, texts and constants.

It also parses durations and reads the tables of approximate counts, because both must be exactly Spark's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType

from headrace.errors import QueryError
from headrace.spark.gateway import class_name, fields, items, java_frame, jvm_of, seq
from headrace.spark.trees import walk
from headrace.spark.types import from_json

WATERMARK_KEY = "spark.watermarkDelayMs"
"""Spark's metadata key for the watermark delay of a column."""

HYPERLOGLOG_BITS_MIN, HYPERLOGLOG_BITS_MAX = 4, 18
"""Spark has bias tables for these numbers of index bits only."""


def column(session: SparkSession, expression: Any) -> Column:
    """A Catalyst expression as a PySpark column."""
    return ClassicColumn(jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def expression_maker(session: SparkSession) -> Callable[[Column], Any]:
    """The function from a PySpark column to its Catalyst expression."""
    convert = jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils.expression
    return lambda column: convert(column._jc)


@dataclass(frozen=True)
class WrittenArgument:
    """An argument as the user wrote it, before Spark's analysis."""

    column: Column
    text: str
    constant: str | None
    """The value of a literal as text; None if the argument is no literal."""


@dataclass(frozen=True)
class WrittenCall:
    """A function call as the user wrote it, before Spark's analysis."""

    function: str
    alias: str | None
    arguments: tuple[WrittenArgument, ...]


def written_call(session: SparkSession, column: Column, functions: tuple[str, ...]) -> WrittenCall | None:
    """The call that a column consists of, or None if it does not call one of these functions."""
    get: Callable[[], Any] = column._jc.node  # type: ignore[assignment]
    node, alias = get(), None
    if class_name(node) == "Alias":
        alias, node = str(node.name().apply(0)), node.child()
    if class_name(node) != "UnresolvedFunction" or node.functionName() not in functions:
        return None
    return WrittenCall(str(node.functionName()), alias, tuple(_written_argument(session, each) for each in items(node.arguments())))


def _written_argument(session: SparkSession, node: Any) -> WrittenArgument:
    constant = str(node.value()) if class_name(node) == "Literal" else None
    return WrittenArgument(ClassicColumn(jvm_of(session).org.apache.spark.sql.Column(node)), str(node.toString()), constant)


def without_alias(expression: Any) -> Any:
    """The expression below an alias, or the expression itself."""
    return expression.child() if class_name(expression) == "Alias" else expression


def text(expression: Any) -> str:
    """A text that is equal for equal expressions. It contains the SQL, because only SQL tells 1 from '1'."""
    canonical = expression.canonicalized()
    return f"{canonical.toString()} {canonical.sql()}"


def folded(session: SparkSession, constant: Column) -> Column:
    """The literal that a constant expression evaluates to, so that plans that use it need not evaluate it again."""
    optimized = java_frame(session.range(1).select(constant)).queryExecution().optimizedPlan()
    return column(session, optimized.projectList().apply(0).child())


def quoted(name: str) -> str:
    """A column name in backquotes. Without them, Spark's parser reads a dot as access to a struct field.

    >>> quoted("a.b"), quoted("a`b")
    ('`a.b`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"


def data_type(expression: Any) -> DataType:
    """The PySpark type of an expression."""
    return from_json(expression.dataType().json())


def numbered_variables(session: SparkSession, expression: Any) -> dict[int, Any]:
    """Per lambda variable in an expression, by id: a column named by its number. Spark's own names differ between sessions."""
    jvm = jvm_of(session)
    reference, nothing = jvm.org.apache.spark.sql.catalyst.expressions.AttributeReference, seq(session, [])
    metadata = jvm.org.apache.spark.sql.types.Metadata.empty()
    found: dict[int, Any] = {}
    for part in walk(expression):
        if class_name(part) == "NamedLambdaVariable" and (key := part.exprId().id()) not in found:
            found[key] = reference(f"variable {len(found)}", part.dataType(), part.nullable(), metadata, part.exprId(), nothing)
    return found


def interval(session: SparkSession, text: str) -> tuple[int, int, int]:
    """A duration such as '1 hour', parsed by Spark: months, days and microseconds. Raises what Spark raises."""
    jvm = jvm_of(session)
    parsed = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils.stringToInterval(
        jvm.org.apache.spark.unsafe.types.UTF8String.fromString(text)
    )
    months, days, microseconds = (int(each) for each in fields(parsed, "months", "days", "microseconds"))
    return months, days, microseconds


def hyperloglog_tables(session: SparkSession, bits: int) -> tuple[list[float], list[float], float]:
    """Spark's tables for HyperLogLog++ with so many index bits: raw estimates, their biases, and the threshold of linear counting."""
    if bits > HYPERLOGLOG_BITS_MAX:
        return [], [], 0.0
    helper = jvm_of(session).org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper
    row = bits - HYPERLOGLOG_BITS_MIN
    raw, bias = ([float(x) for x in table[row]] for table in (helper.RAW_ESTIMATE_DATA(), helper.BIAS_DATA()))
    return raw, bias, float(helper.THRESHOLDS()[row])


def duration_us(session: SparkSession, text: str, where: str) -> int:
    """The length in microseconds of a duration such as '1 hour'. ``where`` names the place in the query for errors."""
    try:
        months, days, microseconds = interval(session, text)
    except Exception:
        raise QueryError(where=where, wanted="a duration such as '1 hour'", found=repr(text)) from None
    if months:
        raise QueryError(where=where, wanted="a duration of days or less", found=repr(text), hint="months have no fixed length")
    return days * 86_400_000_000 + microseconds
