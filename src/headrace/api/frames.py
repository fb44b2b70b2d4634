"""What only Headrace says, on plain streaming DataFrames: ``hr.groupBy``, ``hr.join``, ``hr.crossJoin`` and ``hr.split``.

Each takes DataFrames and returns DataFrames, so that the program goes on with Spark's methods and with SQL. The query then runs on
Headrace: after ``hr.enable(spark)``, or with ``hr.writeStream(df)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame

from headrace.api import branching, joins
from headrace.api.branching import Branches
from headrace.api.grouped import GroupedStream, grouped
from headrace.api.origin import user_line
from headrace.api.sources import check_source
from headrace.api.spark_frame import SparkFrame
from headrace.errors import QueryError
from headrace.frontend.lowered import results_of
from headrace.frontend.own import as_frame
from headrace.graph.nodes import Rows, StatefulNode
from headrace.graph.steps import MethodStep
from headrace.spark.gateway import checked


def groupBy(df: DataFrame, *cols: Any) -> GroupedStream[DataFrame]:
    """Group a streaming DataFrame for an operator that only Headrace has.

    ``df`` is any streaming DataFrame. ``cols`` are the keys, and at most one window, which may be ``hr.count_window(...)``. On the result
    call ``process`` or ``agg``; it returns a streaming DataFrame.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder).withWatermark("ts", "0 seconds")
    >>> last_two = hr.groupBy(rows, "src", hr.count_window(2, 1)).agg(F.avg("seconds").alias("mean"))
    >>> type(last_two).__name__, last_two.filter("mean > 20").columns
    ('DataFrame', ['src', 'count_window', 'mean'])
    """
    where = user_line("groupBy")
    rows = _rows(df, where)

    def results(node: StatefulNode) -> DataFrame:
        return as_frame(results_of(node), df, "groupBy")

    return grouped(rows, cols, results, where)


def join(
    left: DataFrame,
    right: DataFrame,
    on: str | Sequence[str],
    how: str = "inner",
    *,
    within: str | timedelta | None = None,
    last: int | None = None,
    where: Column | str | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
) -> DataFrame:
    """Join two streaming DataFrames by keys and within a bound; Spark's own ``left.join(right, condition)`` runs too.

    - ``left``, ``right``: streaming DataFrames with a watermark.
    - ``on``: the name of the key column, or a list of names. Both sides must have them.
    - ``how``: ``inner``, ``left``, ``right`` or ``full``.
    - ``within``: the largest difference of event times, such as ``"60 seconds"`` or a ``timedelta``.
    - ``last``: instead of ``within``; a row matches the last so many rows of its key on the other side that precede it in event time.
    - ``where``: a further condition on the columns of the result.
    - ``suffixes``: what to append to column names that both sides have.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder).withWatermark("ts", "10 seconds")
    >>> hr.join(rows, rows, "src", last=2, where="seconds < seconds_right").columns
    ['src', 'ts', 'seconds', 'ts_right', 'seconds_right']
    """
    line = user_line("join")
    mine, theirs = _both(left, right, line)
    node = joins.join_node(mine, theirs, on, how, within, last, where, suffixes, line)
    return as_frame(results_of(node), left, "join")


def crossJoin(
    left: DataFrame,
    right: DataFrame,
    *,
    within: str | timedelta | None = None,
    last_per_cell: int | None = None,
    where: Column | str | None = None,
    suffixes: tuple[str, str] = ("", "_right"),
) -> DataFrame:
    """All pairs of rows of two streaming DataFrames whose event times differ by at most ``within``, and for which ``where`` is true.

    - ``left``, ``right``: streaming DataFrames with a watermark. They may be the same one.
    - ``within``: the largest difference of event times, such as ``"60 seconds"`` or a ``timedelta``.
    - ``last_per_cell``: instead of ``within``; each cell of the grid (``headrace.productGrid``) keeps the last so many rows of either side.
    - ``where``: a condition on the columns of the result: comparisons, arithmetic and mathematical functions.
    - ``suffixes``: what to append to column names that both sides have.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder).withWatermark("ts", "10 seconds")
    >>> hr.crossJoin(rows, rows, within="1 minute", where="abs(seconds - seconds_right) < 5 and src < src_right").columns
    ['src', 'ts', 'seconds', 'src_right', 'ts_right', 'seconds_right']
    """
    line = user_line("crossJoin")
    mine, theirs = _both(left, right, line)
    node = joins.product_node(mine, theirs, within, last_per_cell, where, suffixes, line)
    return as_frame(results_of(node), left, "crossJoin")


def split(df: DataFrame, *, otherwise: str | None = None, **conditions: Column | str) -> Branches[DataFrame]:
    """Split a streaming DataFrame into branches. Each row goes to the first branch whose condition is true.

    ``conditions`` maps names of branches to conditions: columns, or SQL text. ``otherwise`` names the branch of all other rows; without it
    they are dropped. Returns the branches by name. What ``df`` computes is computed once for all branches that one query writes: pass
    their writers to ``hr.start``.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder)
    >>> parts = hr.split(rows, long="seconds > 60", short=F.col("seconds") <= 10, otherwise="rest")
    >>> list(parts), parts.long.columns
    (['long', 'short', 'rest'], ['src', 'ts', 'seconds'])
    """
    where = user_line("split")
    base = branching.shared_rows(_rows(df, where), where)
    branches: Branches[DataFrame] = Branches()
    for name, condition in branching.branch_conditions(conditions, otherwise, where).items():
        step = MethodStep("filter", (condition,), (), where)
        branches[name] = as_frame(base.after(step, checked(where, partial(step.apply, base.frame))), df, "split")
    return branches


def _rows(df: DataFrame, where: str) -> Rows:
    if not isinstance(df, DataFrame):
        raise QueryError(where=where, wanted="a streaming DataFrame", found=type(df).__name__)
    check_source(df, where)
    return SparkFrame(df).rows(where)


def _both(left: DataFrame, right: DataFrame, where: str) -> tuple[Rows, Rows]:
    """The rows of both sides. A DataFrame that is joined with itself is one input."""
    mine = _rows(left, where)
    return (mine, mine) if left is right else (mine, _rows(right, where))
