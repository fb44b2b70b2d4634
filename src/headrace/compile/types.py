"""How Spark's types travel: as Arrow, through the shuffle into Python, into runs, and back.

Most types travel as they are. Year-month intervals have no type in pyarrow and travel as months. Floating keys are normalised (one NaN,
no negative zero), as Spark does when it groups.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from headrace.errors import UnsupportedError

_ATOMIC = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.CharType,
    T.VarcharType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
    T.YearMonthIntervalType,
) + ((T.TimeType,) if hasattr(T, "TimeType") else ())


def is_atomic(kind: T.DataType) -> bool:
    if isinstance(kind, T.StringType) and not is_binary_collated(kind):
        return False
    return isinstance(kind, _ATOMIC)


def is_binary_collated(kind: T.DataType) -> bool:
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def check_key(kind: T.DataType, where: str) -> None:
    """Keys are atomic types and structs of them."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            check_key(field.dataType, f"{where}.{field.name}")
    elif not is_atomic(kind):
        raise UnsupportedError(
            where=where,
            wanted="a key of an atomic type or a struct of such (strings in the default collation)",
            found=kind.simpleString(),
            hint="group by its parts, or by a hash or string of it",
        )


def check_value(kind: T.DataType, where: str) -> None:
    if not is_atomic(kind):
        raise UnsupportedError(
            where=where, wanted="a value of an atomic type (strings in the default collation)", found=kind.simpleString()
        )


def transport_type(kind: T.DataType) -> T.DataType:
    if isinstance(kind, T.StructType):
        # In Arrow the fields of a null struct are null, whatever Spark says of them.
        return T.StructType([T.StructField(f.name, transport_type(f.dataType)) for f in kind.fields])
    return T.IntegerType() if isinstance(kind, T.YearMonthIntervalType) else kind


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The type in runs. Instants are kept in UTC whatever the session's time zone, so files outlive a change of it."""
    if isinstance(kind, T.YearMonthIntervalType):
        return pa.int32()
    if isinstance(kind, T.TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in kind.fields])
    return to_arrow_type(kind, timezone="UTC")


def encode(value: Column, kind: T.DataType) -> Column:
    """A value as it travels."""
    if isinstance(kind, T.YearMonthIntervalType):
        return value.cast("interval month").cast("int")
    if isinstance(kind, T.StructType) and _contains(kind, T.YearMonthIntervalType):
        fields = [encode(value[f.name], f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value


def decode(value: Column, kind: T.DataType) -> Column:
    """The reverse of ``encode``."""
    if isinstance(kind, T.YearMonthIntervalType):
        return F.make_ym_interval(F.lit(0), value).cast(kind)
    if isinstance(kind, T.StructType) and _contains(kind, T.YearMonthIntervalType):
        fields = [decode(value[f.name], f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value


def normalize(value: Column, kind: T.DataType) -> Column:
    """Equal keys become the same bits: one NaN, no negative zero."""
    if isinstance(kind, T.FloatType | T.DoubleType):
        nan, zero = F.lit(float("nan")).cast(kind), F.lit(0.0).cast(kind)
        return F.when(F.isnan(value), nan).when(value == zero, zero).otherwise(value)
    if isinstance(kind, T.StructType) and _contains(kind, T.FloatType, T.DoubleType):
        fields = [normalize(value[f.name], f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    return value


def _contains(kind: T.DataType, *wanted: Any) -> bool:
    if isinstance(kind, T.StructType):
        return any(_contains(f.dataType, *wanted) for f in kind.fields)
    return isinstance(kind, wanted)
