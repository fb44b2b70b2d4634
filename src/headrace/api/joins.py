"""The nodes of joins and products. Wrong arguments are refused at the user's line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.compile.sides import the_event_time
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.nodes import JoinNode, ProductNode, Rows
from headrace.graph.steps import FunctionStep
from headrace.spark.expressions import duration_us
from headrace.spark.gateway import checked

_HOW = {
    **dict.fromkeys(("inner",), "inner"),
    **dict.fromkeys(("left", "leftouter"), "left"),
    **dict.fromkeys(("right", "rightouter"), "right"),
    **dict.fromkeys(("full", "outer", "fullouter"), "full"),
}
"""Kinds of joins by Spark's spellings. Case and underscores do not matter."""
_BOUND = "write within='60 seconds', so that rows older than that can be forgotten, or {}=100 for the last 100 rows"


def join_node(
    rows: Rows,
    other: Rows,
    on: Any,
    how: str,
    within: str | timedelta | None,
    last: int | None,
    condition: Column | str | None,
    suffixes: tuple[str, str],
    where: str,
) -> JoinNode:
    """Check the arguments of ``join`` with another stream and return the node."""
    kind = _kind(how, where, tuple(dict.fromkeys(_HOW.values())))
    names = _names(rows, other, on, where)
    times = tuple(the_event_time(each.frame, where).name for each in (rows, other))
    if last is None and within is None and any(pair == times for pair in zip(*names, strict=True)):
        # The event times are keys, so matching rows have equal times: no bound is narrower.
        within = timedelta(0)
    within_us = _bound(rows, within, last, "last", where)
    if last is not None and kind != "inner":
        raise UnsupportedError(where=where, found=f"how={how!r} with last={last}", supported=("inner",))
    inputs = (rows,) if rows.same_as(other) else (rows, other)
    return JoinNode(inputs, names, within_us, last, kind, as_column(condition), check_suffixes(suffixes, where), where)


def product_node(
    rows: Rows,
    other: Rows,
    within: str | timedelta | None,
    last_per_cell: int | None,
    condition: Column | str | None,
    suffixes: tuple[str, str],
    where: str,
) -> ProductNode:
    """Check the arguments of ``crossJoin`` and return the node."""
    within_us = _bound(rows, within, last_per_cell, "last_per_cell", where)
    inputs = (rows,) if rows.same_as(other) else (rows, other)
    return ProductNode(inputs, within_us, last_per_cell, as_column(condition), check_suffixes(suffixes, where), where)


def with_static(rows: Rows, other: DataFrame, on: Any, how: str, unwanted: dict[str, Any], where: str) -> Rows:
    """A stream joined with a static DataFrame. This is Spark's own join; Spark decides whether to broadcast or to shuffle."""
    given = [name for name, value in unwanted.items() if value is not None]
    if given:
        hint = "filter the result instead" if given == ["where"] else "leave it out: every row of the DataFrame is always there"
        raise UnsupportedError(where=where, found=f"{given[0]} in a join with a DataFrame that is no stream", hint=hint)
    kind = _kind(how, where, ("inner", "left"))
    if kind not in ("inner", "left"):
        raise UnsupportedError(
            "a row of the DataFrame has no partner only once the stream has ended",
            where=where,
            found=f"how={how!r} with a DataFrame that is no stream",
            supported=("inner", "left"),
        )
    if on is None:
        raise QueryError(where=where, wanted="on='column', a list of columns, or a condition", found="none")

    def step(part: DataFrame) -> DataFrame:
        return part.join(other, on, kind)

    return rows.after(FunctionStep("join with a DataFrame", step, where), checked(where, lambda: step(rows.frame)))


def _bound(rows: Rows, within: str | timedelta | None, last: int | None, name: str, where: str) -> int | None:
    """The time bound of a join in microseconds, or None if the bound is a number of rows. One of the two must be given."""
    if within is not None and last is not None:
        raise QueryError(where=where, wanted=f"within or {name}", found="both")
    if last is not None:
        if not isinstance(last, int) or isinstance(last, bool) or last < 1:
            raise QueryError(where=where, wanted=f"a whole number of rows above 0 as {name}", found=repr(last))
        return None
    if within is None:
        raise QueryError("two streams can only be joined within a bound", where=where, hint=_BOUND.format(name))
    return within_microseconds(rows, within, where)


def within_microseconds(rows: Rows, within: str | timedelta, where: str) -> int:
    """The duration of ``within`` in microseconds."""
    if isinstance(within, timedelta):
        us = within // timedelta(microseconds=1)
    elif isinstance(within, str):
        us = duration_us(rows.session, within, where)
    else:
        raise QueryError(where=where, wanted="a duration such as within='60 seconds'", found=repr(within))
    if not 0 <= us < 2**60:
        raise QueryError(where=where, wanted="a duration that is not negative", found=repr(within))
    return us


def as_column(condition: Column | str | None) -> Column | None:
    """A condition as a column; text is SQL."""
    return F.expr(condition) if isinstance(condition, str) else condition


def check_suffixes(suffixes: Any, where: str) -> tuple[str, str]:
    """The two suffixes, or an error."""
    if not (isinstance(suffixes, tuple | list) and len(suffixes) == 2 and all(isinstance(s, str) for s in suffixes)):
        raise QueryError(where=where, wanted="two suffixes, such as ('', '_right')", found=repr(suffixes))
    return suffixes[0], suffixes[1]


def _kind(how: str, where: str, supported: Sequence[str]) -> str:
    kind = _HOW.get(str(how).lower().replace("_", ""))
    if kind is None:
        raise UnsupportedError(where=where, found=f"how={how!r}", supported=supported)
    return kind


def _names(rows: Rows, other: Rows, on: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the key columns, as each side spells them. Case does not matter."""
    if on is None:
        hint = "write on='column'; for pairs of any rows use crossJoin"
        raise QueryError(where=where, wanted="the columns that must be equal", found="none", hint=hint)
    names = [on] if isinstance(on, str) else list(on) if isinstance(on, list | tuple) else [on]
    if not names or not all(isinstance(name, str) for name in names):
        hint = "rename columns so that both streams have them under one name; other conditions go into where="
        raise UnsupportedError(where=where, wanted="on as a column name or a list of names", found=repr(on), hint=hint)
    found = []
    for which, each in (("left", rows), ("right", other)):
        by_lower = {column.lower(): column for column in each.columns}
        if len(by_lower) < len(each.columns):
            lower = [column.lower() for column in each.columns]
            double = ", ".join(column for column in each.columns if lower.count(column.lower()) > 1)
            wanted = "names that differ by more than case"
            raise QueryError(where=where, wanted=wanted, found=f"{double} on the {which} side", hint="rename columns before the join")
        missing = [name for name in names if name.lower() not in by_lower]
        if missing:
            raise QueryError(
                where=where,
                wanted=f"a column {missing[0]!r} on the {which} side",
                found=", ".join(each.columns),
                hint="use one of these, or rename columns before the join",
            )
        found.append(tuple(dict.fromkeys(by_lower[name.lower()] for name in names)))
    return found[0], found[1]
