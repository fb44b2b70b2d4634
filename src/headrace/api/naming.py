"""``hr.named``: names of operators that last, on plain DataFrames and on streams."""

from __future__ import annotations

from typing import TypeVar

from pyspark.sql import DataFrame

from headrace.api.names import well_formed
from headrace.api.origin import user_line
from headrace.api.stream import Stream
from headrace.errors import QueryError
from headrace.frontend.lower import has_state
from headrace.spark.named import with_name

Frame = TypeVar("Frame", DataFrame, Stream)


def named(frame: Frame, name: str) -> Frame:
    """Give a name to the stateful operator that the rows of ``frame`` come from, and return the same rows.

    ``frame`` is a streaming DataFrame or a ``Stream``. Call it on the results of an aggregate, a join, ``dropDuplicates`` or code with
    state; steps without state may lie between. ``name`` is the operator's id in options, commands and reports, and its state is found by
    it after a restart and by ``query.replace``, wherever the operator then is in the program. Plain Spark ignores the name.

    >>> rows = spark.readStream.schema(calls.schema).parquet(folder)
    >>> totals = hr.named(rows.groupBy("src").agg(F.sum("seconds").alias("seconds")), "totals by caller")
    >>> totals.columns
    ['src', 'seconds']
    """
    where = user_line("named")
    if isinstance(frame, Stream):
        return frame.named(name)
    if not isinstance(frame, DataFrame) or not has_state(frame):
        found = "no stateful operator" if isinstance(frame, DataFrame) else type(frame).__name__
        raise QueryError(where=where, wanted="the results of a stateful operator: a streaming DataFrame or a stream", found=found)
    return with_name(frame, well_formed(name, where))
