"""Event time as microseconds and back, for both kinds of Spark timestamps."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.operators.windows import TimeWindow

_NTZ_EPOCH = "timestamp_ntz'1970-01-01 00:00:00'"


def micros(time: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.TimestampNTZType):
        return F.timestamp_diff("MICROSECOND", F.expr(_NTZ_EPOCH), time)
    return F.unix_micros(time.cast("timestamp"))


def from_micros(value: Column, kind: T.DataType) -> Column:
    if isinstance(kind, T.TimestampNTZType):
        return F.timestamp_add("MICROSECOND", value, F.expr(_NTZ_EPOCH))
    return F.timestamp_micros(value)


def pane(us: Column, window: TimeWindow) -> Column:
    """Start of the pane that a moment falls into."""
    if window.is_instant:
        return us
    within = F.pmod(us - F.lit(window.offset_us), F.lit(window.advance_us).cast("long"))
    base = us - within
    remainder = window.remainder_us
    if remainder == 0:
        return base
    return F.when(within < remainder, base).otherwise(base + F.lit(remainder))
