"""Expressions as text that is the same in every session, and different for different expressions.

Spark's own SQL text of an expression is nearly that. But it is the same for two columns with one name, and it has generated names for the
variables of lambda functions.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from headrace.spark.expressions import numbered_variables
from headrace.spark.gateway import class_name, items
from headrace.spark.plans import analyzed
from headrace.spark.trees import rewrite

_SEED = re.compile(r"\b(rand|randn|random|randstr|uniform|shuffle|uuid)\(((?:[^()]*, )?)-?\d{6,}L?\)")
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_GIVEN = re.compile(r"\b_pyspark_[0-9a-f]{32}\.")
"""The name that PySpark gives a DataFrame that is an argument of ``spark.sql``: another one for each call."""
_LAMBDA = re.compile(r"\b[xyz]_\d+\b")


def texts(source: DataFrame, columns: list[Column]) -> list[str]:
    """The text of each column over a DataFrame, as Spark resolves it."""
    if not columns:
        return []
    return [words_over(source, each) for each in items(analyzed(source.select(*columns)).expressions())]


def words_over(source: DataFrame, expression: Any) -> str:
    """The text of an expression over the columns of a DataFrame."""
    return words(source.sparkSession, expression, [analyzed(source)])


def words(session: SparkSession, expression: Any, inputs: list[Any]) -> str:
    """The text of an expression over the columns of some plans, without random seeds and generated names."""
    replaced: dict[int, Any] = _alike(inputs)
    if "namedlambdavariable(" in str(expression.sql()):
        replaced |= numbered_variables(session, expression)
    if replaced:

        def replacement(part: Any) -> Any | None:
            named = class_name(part) in ("AttributeReference", "NamedLambdaVariable")
            return replaced.get(part.exprId().id()) if named else None

        expression = rewrite(session, expression, replacement)
    text = _QUOTED.sub(_without_variables, _GIVEN.sub("", str(expression.sql())))
    return text if expression.deterministic() else _SEED.sub(r"\1(\2)", text)


def _alike(inputs: list[Any]) -> dict[int, Any]:
    """For columns that share a name, by id: the column under a name with its position."""
    names = [str(name).lower() for plan in inputs for name in plan.schema().fieldNames()]
    if len(set(names)) == len(names):
        return {}
    found: dict[int, Any] = {}
    columns = (column for plan in inputs for column in items(plan.output()))
    for at, (name, column) in enumerate(zip(names, columns, strict=True)):
        if names.count(name) > 1:
            found.setdefault(column.exprId().id(), column.withName(f"{column.name()} in column {at}"))
    return found


def _without_variables(quoted: re.Match[str]) -> str:
    """A quoted column name, with lambda variables numbered. Spark names a column without alias after its expression."""
    text, names = quoted[0], dict[str, str]()
    if "lambdafunction(" not in text:
        return text
    return _LAMBDA.sub(lambda found: names.setdefault(found[0], f"{found[0][0]}_{len(names)}"), text)
