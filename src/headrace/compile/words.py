"""Expressions in words that are the same in every session, and that differ where expressions do.

Spark's own SQL of an expression is nearly that. It does not tell columns of one name apart, nor the variables of a lambda function.
"""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession

from headrace.spark import gateway, plans, trees
from headrace.spark.expressions import numbered_variables

_SEED = re.compile(r"\b(rand|randn|random|randstr|uniform|shuffle|uuid)\(((?:[^()]*, )?)-?\d{6,}L?\)")
_QUOTED = re.compile(r"`(?:[^`]|``)*`")
_LAMBDA = re.compile(r"\b[xyz]_\d+\b")


def texts(source: DataFrame, columns: list[Column]) -> list[str]:
    """Columns over the rows of a DataFrame, as Spark resolves them."""
    if not columns:
        return []
    plan = plans.analyzed(source.select(*columns))
    return [words(source.sparkSession, each, [plans.analyzed(source)]) for each in gateway.items(plan.expressions())]


def words(session: SparkSession, expression: Any, inputs: list[Any]) -> str:
    """An expression over the results of some plans. Seeds that Spark drew and names that it made up are left out."""
    replaced: dict[int, Any] = _alike(inputs)
    if "namedlambdavariable(" in str(expression.sql()):
        replaced |= numbered_variables(session, expression)
    if replaced:

        def replacement(part: Any) -> Any | None:
            named = gateway.class_name(part) in ("AttributeReference", "NamedLambdaVariable")
            return replaced.get(part.exprId().id()) if named else None

        expression = trees.rewrite(session, expression, replacement)
    text = _QUOTED.sub(_without_variables, str(expression.sql()))
    return text if expression.deterministic() else _SEED.sub(r"\1(\2)", text)


def _alike(inputs: list[Any]) -> dict[int, Any]:
    """Columns that share a name with others, under names that say which they are."""
    names = [str(name).lower() for plan in inputs for name in plan.schema().fieldNames()]
    if len(set(names)) == len(names):
        return {}
    found: dict[int, Any] = {}
    columns = (column for plan in inputs for column in gateway.items(plan.output()))
    for at, (name, column) in enumerate(zip(names, columns, strict=True)):
        if names.count(name) > 1:
            found.setdefault(column.exprId().id(), column.withName(f"{column.name()} in column {at}"))
    return found


def _without_variables(quoted: re.Match[str]) -> str:
    """Columns that nobody named are called by what they are, and there variables of lambda functions have names that Spark makes up."""
    text, names = quoted[0], dict[str, str]()
    if "lambdafunction(" not in text:
        return text
    return _LAMBDA.sub(lambda found: names.setdefault(found[0], f"{found[0][0]}_{len(names)}"), text)
