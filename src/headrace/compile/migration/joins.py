"""Carrying over the rows that joins of two streams keep."""

from __future__ import annotations

import re
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile.migration.registry import Carried, carries, check_same_types, fields_of
from headrace.compile.plan import StatefulPlan
from headrace.compile.sides import SideColumns, column_named
from headrace.compile.stream_joins import OUTER, side_of
from headrace.compile.types import encode
from headrace.errors import UnsupportedError
from headrace.graph.nodes import StreamJoinNode
from headrace.operators.pairing import LEFT, NAMES, RIGHT
from headrace.spark.expressions import quoted
from headrace.spark.spark_state import SparkState
from headrace.state.layout import SUB

_MATCHED = "matched"
_COMPUTED = "__headrace_"
_KEY = re.compile(r"__headrace_key(\d+)_[lr]")
_RENAMED = re.compile(r"(.+)_\d+")


@carries(StreamJoinNode, "symmetricHashJoin")
def carry_join(node: StreamJoinNode, plan: StatefulPlan, state: SparkState) -> Carried:
    """The rows of both sides. Those of outer sides and of semi joins must not be emitted again."""
    sides = [_rows(node, which, state) for which in (LEFT, RIGHT)]
    if node.how == "semi":
        # A row of the left side that had a partner has been emitted, and counts no more.
        sides[LEFT] = sides[LEFT].filter(~F.col(_MATCHED))
    for which in (LEFT, RIGHT):
        if node.how == "full":
            _check_keys(node, sides[which], which, state)
        if OUTER[node.how][which]:
            _check_partners(node, sides, which, state)
    found = {}
    for which, rows in enumerate(sides):
        side = side_of(node, tuple(each.frame for each in node.inputs), which)
        found[NAMES[which]] = _stored(side, rows).select(plan.input.hashed, "*")
    return found


def _stored(side: SideColumns, rows: DataFrame) -> DataFrame:
    values = [encode(column_named(f.name), f.dataType).alias(f"p{at}") for at, f in enumerate(side.rest)]
    return rows.select(*side.fixed(), *values).withColumn(SUB, F.col(SUB).cast("long"))


def _rows(node: StreamJoinNode, which: int, state: SparkState) -> DataFrame:
    """The rows of a side in the columns of our input, and ``matched``. Columns that nobody reads are null: Spark does not keep them."""
    rows = state.rows(storeName=f"{NAMES[which]}-keyWithIndexToValue")
    frame, other = node.inputs[which].frame, node.inputs[LEFT].frame.columns if which == RIGHT else []
    theirs = {f.name: f for f in fields_of(rows, "value")}
    matched = theirs.pop(_MATCHED, None)
    if matched is None:
        hint = "let the query run on a Spark that keeps this, or carry over an inner join"
        raise UnsupportedError(where=state.where, wanted="which rows have had a partner", found="a format of state without", hint=hint)
    if len(theirs) != len(fields_of(rows, "value")) - 1:
        raise UnsupportedError(where=state.where, found=f"several columns of one name on the {NAMES[which]} side")
    columns: list[Column] = []
    known: set[str] = set()
    for f in frame.schema.fields:
        if f.name.startswith(_COMPUTED):
            columns.append(_key(rows, f, state).alias(f.name))
            continue
        name = _name(f.name, theirs, other)
        if name is None:
            columns.append(F.lit(None).cast(f.dataType).alias(f.name))
            continue
        check_same_types(state.where, [theirs[name]], [(f.name, f.dataType)])
        known.add(name)
        columns.append(F.col("value").getField(name).cast(f.dataType).alias(f.name))
    # Either leaves out columns that nobody reads, but not one column each: then the sides are not the same.
    if known != set(theirs) and len(known) < len([f for f in frame.schema.fields if not f.name.startswith(_COMPUTED)]):
        raise UnsupportedError(
            where=state.where,
            wanted=f"the columns of the {NAMES[which]} side: {', '.join(frame.columns)}",
            found=", ".join(theirs),
            hint="the program must be the one that wrote the checkpoint",
        )
    return rows.select(*columns, F.coalesce(F.col("value").getField(_MATCHED), F.lit(False)).alias(_MATCHED))


def _key(rows: DataFrame, field: T.StructField, state: SparkState) -> Column:
    """A computed key column: Spark has it in its key."""
    number = _KEY.fullmatch(field.name)
    if number is None:
        raise UnsupportedError(
            where=state.where,
            found="a condition with a part that is computed before the join",
            hint="compute it in a column of its own side in the program",
        )
    return F.col("key").getField(fields_of(rows, "key")[int(number[1])].name).cast(field.dataType)


def _name(ours: str, theirs: dict[str, T.StructField], taken: list[str]) -> str | None:
    """Spark's name of a column. On the right side, names that the left side has too have a number at their end for us."""
    if ours in theirs:
        return ours
    renamed = _RENAMED.fullmatch(ours)
    return renamed[1] if renamed and renamed[1] in theirs and renamed[1] in taken else None


def _check_keys(node: StreamJoinNode, rows: DataFrame, which: int, state: SparkState) -> None:
    """Refuse rows without a key in a full outer join. Spark keeps them until they are emitted; we never keep them."""
    found = rows.filter(reduce(or_, (F.col(quoted(name)).isNull() for name in node.on[which]))).count()
    if found:
        raise UnsupportedError(
            where=state.where,
            found=f"{found:,} rows of the {NAMES[which]} side whose key is null",
            hint="let Spark run until they are emitted, or filter them in the program",
        )


def _check_partners(node: StreamJoinNode, sides: list[DataFrame], which: int, state: SparkState) -> None:
    """Refuse rows of an outer side that have had a partner which Spark has forgotten: we would emit them without one."""
    rows, others = sides[which].filter(F.col(_MATCHED)).drop(_MATCHED), sides[1 - which].drop(_MATCHED)
    pairs = zip(node.on[which], node.on[1 - which], strict=True)
    equal = [F.col(quoted(mine)) == F.col(quoted(theirs)) for mine, theirs in pairs]
    condition = reduce(and_, [*equal, *([] if node.condition is None else [node.condition])])
    lost = rows.join(others, condition, "left_anti").count()
    if lost:
        raise UnsupportedError(
            "an outer join of ours finds out by the other side's rows whether a row has had a partner",
            where=state.where,
            wanted="that Spark still has the partners of all rows that have had one",
            found=f"{lost:,} rows of the {NAMES[which]} side whose partners are forgotten",
            hint="start a new checkpoint for this query, or carry it over when its sources have been quiet for as long as rows are kept",
        )
