"""Splits and unions: streams that share their rows, so that a source is read once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.api.origin import user_line
from headrace.errors import MissingError, QueryError, UnsupportedError
from headrace.graph.nodes import Rows, SharedNode, UnionNode
from headrace.graph.steps import FunctionStep
from headrace.spark.gateway import checked
from headrace.spark.plans import empty_frame

Both = Callable[[DataFrame, DataFrame], DataFrame]
"""A union of two DataFrames."""
Branch = TypeVar("Branch")


class Branches(dict[str, Branch], Generic[Branch]):
    """The branches of a split: a dict of streams or DataFrames by name, which can also be read as attributes."""

    def __getattr__(self, name: str) -> Branch:
        try:
            return self[name]
        except KeyError:
            if name.startswith("_"):
                raise AttributeError(name) from None
            raise MissingError(where=user_line(name), wanted=f"a branch: {', '.join(self)}", found=repr(name)) from None


def branch_conditions(conditions: Mapping[str, Column | str], otherwise: str | None, where: str) -> dict[str, Column]:
    """One condition for each branch of a split. Each excludes the rows that an earlier branch takes; null counts as false."""
    if not conditions:
        raise QueryError(where=where, wanted="at least one branch, such as long='seconds > 60'", found="none")
    if otherwise in conditions:
        raise QueryError(where=where, wanted="a name of its own for the rest", found=f"otherwise={otherwise!r}, which is a branch")
    taken: Column | None = None
    branches: dict[str, Column] = {}
    for name, condition in conditions.items():
        holds = F.coalesce(F.expr(condition) if isinstance(condition, str) else condition, F.lit(False))
        branches[name] = holds if taken is None else holds & ~taken
        taken = holds if taken is None else taken | holds
    if otherwise is not None and taken is not None:
        branches[otherwise] = ~taken
    return branches


def union_rows(mine: Rows, theirs: Rows, both: Both, where: str) -> Rows:
    """The rows of both inputs, in the columns that ``both`` gives them."""
    for each in (mine, theirs):
        if each.whole is not None:
            raise UnsupportedError(where=where, found=f"a union with the results of {each.whole}")
    frame = checked(where, lambda: both(mine.frame, theirs.frame))
    if mine.origin is None and theirs.origin is None:
        return Rows(frame)
    # Each side casts its rows to the columns of the union. Spark does this, and fills in missing columns.
    sides = tuple(_aligned(side, frame.schema, both, first=side is mine, where=where) for side in (mine, theirs))
    return Rows(_template(frame), UnionNode(sides, where), append_only=mine.append_only and theirs.append_only)


def shared_rows(rows: Rows, where: str) -> Rows:
    """The same rows, as a node that several streams can read without reading the source again."""
    return rows if rows.origin is not None else Rows(_template(rows.frame), SharedNode(rows, where))


def _aligned(rows: Rows, schema: StructType, both: Both, first: bool, where: str) -> Rows:
    """The same rows in the columns of a union. ``first`` says on which side of the union they are."""

    def align(part: DataFrame) -> DataFrame:
        none = empty_frame(part.sparkSession, schema)
        return both(part, none) if first else both(none, part)

    side = shared_rows(rows, where)
    return replace(side, steps=(*side.steps, FunctionStep("union", align, where)))


def _template(frame: DataFrame) -> DataFrame:
    """An empty DataFrame with the same columns. Event-time columns keep their watermark."""
    return frame.sparkSession.createDataFrame([], frame.schema)
