"""Rows that only Headrace can compute, as plain DataFrames: the other direction of lowering.

Spark gets a stand-in with the same columns, and a program goes on with it as with any DataFrame. When the query starts, lowering finds the
stand-in in the plan and takes the rows that it stands for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pyspark.sql import DataFrame

from headrace.errors import QueryError
from headrace.frontend.lowered import Lowered
from headrace.graph.nodes import Rows
from headrace.spark.logical import Logical
from headrace.spark.stand_ins import stand_in, stand_in_of

_STANDS_FOR: dict[str, Rows] = {}
"""The rows by the names of their stand-ins. They are kept while the program runs: a view may hold a stand-in without any DataFrame."""
_NUMBERS = itertools.count(1)
_MADE: ContextVar[list[str] | None] = ContextVar("headrace-made", default=None)


def as_frame(rows: Rows, source: DataFrame, what: str) -> DataFrame:
    """A plain DataFrame that stands for ``rows``. ``source`` is a stream that they are computed from, and ``what`` says by what."""
    name = f"{what} {next(_NUMBERS)}"
    _STANDS_FOR[name] = rows
    made = _MADE.get()
    if made is not None:
        made.append(name)
    return stand_in(source, rows.schema, name)


@contextmanager
def forgotten() -> Iterator[None]:
    """Stand-ins that this thread makes inside are forgotten at the end: nobody will start a query with them."""
    made: list[str] = []
    token = _MADE.set(made)
    try:
        yield
    finally:
        _MADE.reset(token)
        for name in made:
            _STANDS_FOR.pop(name, None)


def is_own(node: Logical) -> bool:
    """True if a node stands for rows that only Headrace can compute."""
    return stand_in_of(node) is not None


def own_rows(node: Logical, where: str) -> Lowered:
    """The rows that a stand-in stands for."""
    name = stand_in_of(node) or ""
    if name not in _STANDS_FOR:
        raise QueryError(where=where, wanted="an operator of Headrace that this program has made", found=f"one of another program: {name}")
    return Lowered(node, _STANDS_FOR[name], where)
