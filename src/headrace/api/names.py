"""Names that users give to operators: part of file names, of options and of commands."""

from __future__ import annotations

import re
from typing import Any

from headrace.errors import QueryError
from headrace.graph.nodes import Node, SharedNode, UnionNode

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _]{0,59}(-\d+)?")


def checked_name(operator: Node | None, name: Any, where: str) -> str:
    """The name, if it is one, and there is an operator to bear it."""
    if operator is None or isinstance(operator, SharedNode | UnionNode):
        raise QueryError(
            where=where,
            wanted="the results of a stateful operator",
            found="a stream whose rows come from several operators, or from a source",
            hint="call named right behind agg, dropDuplicates, join, crossJoin or process",
        )
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        wanted = "a name of at most 60 letters, digits, spaces and underscores, such as 'daily totals'"
        raise QueryError(where=where, wanted=wanted, found=repr(name))
    return name
