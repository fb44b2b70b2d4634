"""Catalyst expressions: from PySpark columns and back, their types, texts and constants."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.types import DataType, _parse_datatype_json_string

from headrace.spark.gateway import java_frame, jvm_of, seq

WATERMARK_KEY = "spark.watermarkDelayMs"
"""Spark's metadata key for the watermark delay of a column."""


def column(session: SparkSession, expression: Any) -> Column:
    """A Catalyst expression as a PySpark column."""
    return ClassicColumn(jvm_of(session).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def text(expression: Any) -> str:
    """A text that is equal for equal expressions. It contains the SQL, because only SQL tells 1 from '1'."""
    canonical = expression.canonicalized()
    return f"{canonical.toString()} {canonical.sql()}"


def folded(session: SparkSession, constant: Column) -> Column:
    """The literal that a constant expression evaluates to, so that plans that use it need not evaluate it again."""
    optimized = java_frame(session.range(1).select(constant)).queryExecution().optimizedPlan()
    return column(session, optimized.projectList().apply(0).child())


def attribute(session: SparkSession, name: str) -> Any:
    """A Catalyst attribute that Spark looks up by name."""
    return jvm_of(session).org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute(seq(session, [name]))


def quoted(name: str) -> str:
    """A column name in backquotes. Without them, Spark's parser reads a dot as access to a struct field.

    >>> quoted("a.b"), quoted("a`b")
    ('`a.b`', '`a``b`')
    """
    return "`" + name.replace("`", "``") + "`"


def data_type(expression: Any) -> DataType:
    """The PySpark type of an expression."""
    return _parse_datatype_json_string(expression.dataType().json())
