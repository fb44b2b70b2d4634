"""Spark expressions that convert event times to microseconds and back, for TIMESTAMP and TIMESTAMP_NTZ."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.operators.windows import TimeWindow

WINDOW_END = 1
"""The place of the end among the fields of a window. Its names may be the user's."""
_NTZ_EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"


def micros(time: Column, kind: T.DataType) -> Column:
    """An event time as microseconds since the epoch. The event time of a window is its end, as in Spark."""
    if isinstance(kind, T.StructType):
        end = kind.fields[WINDOW_END]
        return micros(time.getField(end.name), end.dataType)
    if isinstance(kind, T.TimestampNTZType):
        return F.timestamp_diff("MICROSECOND", F.expr(_NTZ_EPOCH), time)
    # The text "timestamp" would mean what spark.sql.timestampType says.
    return F.unix_micros(time.cast(T.TimestampType()))


def from_micros(value: Column, kind: T.DataType) -> Column:
    """Microseconds since the epoch as a timestamp column of this type."""
    if isinstance(kind, T.TimestampNTZType):
        return F.timestamp_add("MICROSECOND", value, F.expr(_NTZ_EPOCH))
    return F.timestamp_micros(value)


def pane(us: Column, window: TimeWindow) -> Column:
    """The start of the pane that contains this time, in microseconds."""
    if window.is_instant:
        return us
    within = F.pmod(us - F.lit(window.offset_us), F.lit(window.advance_us).cast("long"))
    base = us - within
    remainder = window.remainder_us
    if remainder == 0:
        return base
    return F.when(within < remainder, base).otherwise(base + F.lit(remainder))
