"""Where rows may be dropped: checks what the user gave to ``shed``, and adds the place to the graph."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NumericType

from headrace.api import branching
from headrace.api.names import resolved_columns
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import Rows, SharedNode
from headrace.graph.shedding import By, ShedStep
from headrace.spark.expressions import quoted
from headrace.spark.gateway import checked

RANDOM = "random"


def shed_rows(rows: Rows, max_loss: Any, by: Any, weight: Any, where: str) -> Rows:
    """The rows with a place where some may be dropped."""
    if rows.origin is not None and not isinstance(rows.origin, SharedNode):
        raise UnsupportedError(
            "rows are dropped before work is put into them",
            where=where,
            found="a stream of several sources, or the results of a stateful operator",
            hint="call shed on the streams that it is made of",
        )
    if any(isinstance(step, ShedStep) for step in rows.steps):
        raise QueryError(where=where, wanted="one shed on the way from a source", found="a second one")
    if isinstance(max_loss, bool) or not isinstance(max_loss, int | float) or not 0 < max_loss <= 1:
        raise QueryError(where=where, wanted="a max_loss above 0 and at most 1", found=repr(max_loss))
    if weight is not None and (not isinstance(weight, str) or not weight or weight in rows.columns):
        raise QueryError(where=where, wanted="a new name for the column of weights", found=repr(weight))
    kind, columns = _by(rows, by, where)
    if kind is By.WORTH and weight is not None:
        hint = 'use by="random" or a key'
        wanted = "drops that do not depend on the row's value: rows of no worth would have nobody who stands for them"
        raise QueryError(where=where, wanted=wanted, found=f"weight={weight!r} beside the worth of rows", hint=hint)
    base = branching.shared_rows(rows, where)
    step = ShedStep(kind, columns, float(max_loss), weight, where)
    return base.after(step, step.apply(base.frame))


def _by(rows: Rows, by: Any, where: str) -> tuple[By, tuple[Column, ...]]:
    if isinstance(by, Column):
        worth = checked(where, lambda: rows.frame.select(by)).schema.fields[0].dataType
        if not isinstance(worth, NumericType | BooleanType):
            hint = f"to keep or drop rows together that agree in a column, give its name; found {worth.simpleString()}"
            raise QueryError(where=where, wanted="a number as the worth of a row", found=str(by), hint=hint)
        return By.WORTH, (by.cast("double"),)
    if by == RANDOM and RANDOM not in rows.columns:
        return By.ROW, ()
    names = [by] if isinstance(by, str) else by
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise QueryError(where=where, wanted='by="random", names of columns, or a column expression', found=repr(by))
    columns = tuple(F.col(quoted(name)) for name in resolved_columns(rows, names, where))
    checked(where, lambda: rows.frame.select(F.xxhash64(*columns)))
    return By.KEY, columns
