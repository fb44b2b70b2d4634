"""``hr.shed``: where rows may be dropped when a query has more to do than it can; and ``hr.coverage``, what results saw of the input."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.api.origin import user_line
from headrace.api.places import RANDOM, shed_rows
from headrace.api.sources import check_source
from headrace.api.spark_frame import SparkFrame
from headrace.api.stream import Stream
from headrace.errors import QueryError
from headrace.frontend.own import as_frame
from headrace.spark.expressions import quoted

Frame = TypeVar("Frame", DataFrame, Stream)


def shed(stream: Frame, *, max_loss: float, by: str | list[str] | Column = RANDOM, weight: str | None = None) -> Frame:
    """Allow rows of ``stream`` to be dropped when the query has more to do than it can. Returns what is left, in the same form.

    ``stream`` is a streaming DataFrame, whose query then runs on Headrace (``hr.enable(spark)`` or ``hr.writeStream``), or a ``Stream``.

    Without it nothing is ever dropped. With it, rows are dropped only as far as the deadline of the writers needs it, and on those streams
    first that matter least to the weights of the sinks (``writeStream.deadline("2 seconds")``, ``.weight(2.0)``). Event time goes on as if
    nothing had been dropped, and a batch that is repeated drops the same rows.

    - ``max_loss``: the largest share of rows that may be dropped from a batch, above 0 and at most 1.
    - ``by``: what decides which rows go first. ``"random"``: each row on its own. A column's name, or a list of names: rows that agree in
      them stay or go together, so that the results of the keys that stay are exact. A column expression with a number as its value: what a
      row is worth; rows of the least value go first.
    - ``weight``: the name of a column to add: how many rows that came each row stands for. Sums of it are unbiased estimates of what the
      result would be without drops; see ``hr.coverage``.

    Call it on a stream of a source, behind ``withWatermark`` and before a stateful operator. Raises ``QueryError`` for wrong arguments,
    and ``UnsupportedError`` for the results of a stateful operator.

    >>> hr.shed(calls, max_loss=0.3, by="src", weight="stands_for").columns
    ['src', 'ts', 'seconds', 'stands_for']
    """
    where = user_line("shed")
    if isinstance(stream, Stream):
        return Stream(shed_rows(stream.rows, max_loss, by, weight, where))
    if not isinstance(stream, DataFrame):
        raise QueryError(where=where, wanted="a streaming DataFrame or a stream", found=type(stream).__name__)
    check_source(stream, where)
    return as_frame(shed_rows(SparkFrame(stream).rows(where), max_loss, by, weight, where), stream, "shed")


def coverage(weight: str) -> Column:
    """An aggregate: the share of the input that a result has seen, from 0 to 1. ``weight`` is the column that ``hr.shed`` has added.

    A window that lost 12% of its rows says 0.88. Divide sums and counts by it to scale them up, or sum ``weight`` and ``weight * x``.

    >>> seen = hr.shed(calls, max_loss=0.5, weight="w").groupBy("src").agg(F.count("*").alias("calls"), hr.coverage("w").alias("share"))
    >>> seen.columns
    ['src', 'calls', 'share']
    """
    if not isinstance(weight, str):
        wanted = "the name of the column that hr.shed(..., weight=...) adds"
        raise QueryError(where=user_line("coverage"), wanted=wanted, found=repr(weight))
    return F.count(F.lit(1)) / F.sum(F.col(quoted(weight)))
