"""Windows among grouping columns: Spark's ``F.window(...)`` and ``F.session_window(...)``, and ``hr.count_window``.

Spark's windows are recognised by the function that the column calls.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.api.origin import user_line
from headrace.errors import QueryError, UnsupportedError
from headrace.graph.windows import CountSpec, SessionSpec, WindowSpec
from headrace.spark.expressions import WrittenArgument, duration_us, written_call
from headrace.spark.gateway import checked


def as_window(session: SparkSession, source: DataFrame, column: Column, where: str) -> WindowSpec | SessionSpec | None:
    """The window that a grouping column describes, or None if it is an ordinary column."""
    call = written_call(session, column, ("window", "session_window"))
    if call is None:
        return None
    time, *durations = call.arguments
    if call.function == "session_window":
        (gap,) = durations
        if gap.constant is None:
            raise UnsupportedError(where=where, found="a gap that differs from row to row", supported=("a duration such as '5 minutes'",))
        gap_us = _microseconds(session, gap, where)
        checked(where, lambda: source.groupBy(column).count())
        return SessionSpec(call.alias or "session_window", _instant(source, time.column), gap_us)
    size, *rest = [_microseconds(session, duration, where) for duration in durations]
    advance = rest[0] if rest else size
    offset = rest[1] if len(rest) > 1 else 0
    checked(where, lambda: source.groupBy(column).count())
    return WindowSpec(call.alias or "window", _instant(source, time.column), size, advance, offset % advance)


def _instant(source: DataFrame, time: Column) -> Column:
    """The event time of a row. As in Spark, a window column from an earlier aggregate counts as its last microsecond."""
    return F.window_time(time) if isinstance(source.select(time).schema.fields[0].dataType, StructType) else time


def count_window(size: int, advance: int | None = None, order: str = "event time") -> CountSpec:
    """A window of ``size`` rows of each key, to be used in ``groupBy``. A new window begins at every ``advance``-th row.

    Without ``advance`` windows do not overlap. Its column in the result is ``count_window``; ``.alias(name)`` renames it.

    ``order`` says in which order rows are counted. With ``"event time"`` the result does not depend on the order of arrival; a window is
    emitted when the watermark passes its last row. With ``"arrival"`` windows do not wait, but which rows share a window depends on the
    batches. Raises ``QueryError`` if a number is below 1 or the order is unknown.

    >>> last_two = calls.withWatermark("ts", "0 seconds").groupBy("src", hr.count_window(2, 1)).agg(F.avg("seconds").alias("mean"))
    >>> last_two.columns
    ['src', 'count_window', 'mean']
    """
    where = user_line("count_window")
    advance = size if advance is None else advance
    for name, value in (("size", size), ("advance", advance)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise QueryError(where=where, wanted=f"a whole number of rows above 0 as {name}", found=repr(value))
    if order not in ("event time", "arrival"):
        raise QueryError(where=where, wanted="order='event time' or order='arrival'", found=repr(order))
    return CountSpec("count_window", size, advance, order == "arrival")


def _microseconds(session: SparkSession, duration: WrittenArgument, where: str) -> int:
    if duration.constant is None:
        raise QueryError(where=where, wanted="a duration such as '1 hour'", found=duration.text)
    return duration_us(session, duration.constant, where)
