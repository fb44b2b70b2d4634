"""Names that users give: of operators, which appear in file names, options and commands, and of columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from headrace.errors import QueryError
from headrace.graph.nodes import Node, Rows, SharedNode, UnionNode
from headrace.spark.expressions import quoted
from headrace.spark.gateway import checked

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _]{0,59}(-\d+)?")
_SOURCE = re.compile(r"source\d+")


def checked_name(operator: Node | None, name: Any, where: str) -> str:
    """The name, if it is valid and there is an operator to give it to."""
    if operator is None or isinstance(operator, SharedNode | UnionNode):
        raise QueryError(
            where=where,
            wanted="the results of a stateful operator",
            found="a stream whose rows come from several operators, or from a source",
            hint="call named right behind agg, dropDuplicates, join, crossJoin or process",
        )
    return well_formed(name, where)


def well_formed(name: Any, where: str) -> str:
    """The name, if an operator may have it."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "a name of at most 60 letters from a to z, digits, spaces and underscores, such as 'daily totals'"
        raise QueryError(where=where, wanted=wanted, found=repr(name))
    if _SOURCE.fullmatch(name):
        raise QueryError(where=where, wanted="a name other than those of sources, which are source0, source1, ...", found=repr(name))
    return name


def resolved_columns(rows: Rows, names: Iterable[str], where: str) -> tuple[str, ...]:
    """The columns of these names, spelt as the rows spell them, each once."""
    if isinstance(names, str):
        raise QueryError(where=where, wanted="a list of column names", found=repr(names))
    wanted = list(names)
    checked(where, lambda: rows.frame.select(*[quoted(name) for name in wanted]))
    by_lower = {column.lower(): column for column in rows.columns}
    return tuple(dict.fromkeys(name if name in rows.columns else by_lower.get(name.lower(), name) for name in wanted))
