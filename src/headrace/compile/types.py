"""How Spark's types are represented in the shuffle, in kernels and in runs: as Arrow types.

Most types have an Arrow type of their own. Year-month intervals have none in pyarrow and are encoded as months. Floating-point keys are
normalised (one NaN, no negative zero), as Spark does when it groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.errors import UnsupportedError
from headrace.spark.types import to_arrow

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
    """True for types without parts; strings only in the default collation."""
    if isinstance(kind, T.StringType) and not is_binary_collated(kind):
        return False
    return isinstance(kind, _ATOMIC)


def is_binary_collated(kind: T.DataType) -> bool:
    """True if strings of this type are compared byte by byte."""
    return getattr(kind, "collation", "UTF8_BINARY") == "UTF8_BINARY"


def check_key(kind: T.DataType, where: str) -> None:
    """Refuse key types that are not atomic, or structs of atomic types."""
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
    """Refuse value types that are not atomic."""
    if not is_atomic(kind):
        raise UnsupportedError(
            where=where, wanted="a value of an atomic type (strings in the default collation)", found=kind.simpleString()
        )


def check_order(kind: T.DataType, where: str) -> None:
    """Refuse types that values cannot be ordered by. Atomic types and structs of them are allowed."""
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            check_order(field.dataType, f"{where}, field {field.name}")
    elif not is_atomic(kind):
        wanted = "values to compare of an atomic type or a struct of such (strings in the default collation)"
        raise UnsupportedError(where=where, wanted=wanted, found=kind.simpleString(), hint="compare by its parts")


def check_carried(kind: T.DataType, where: str) -> None:
    """Refuse types that cannot be stored and returned. Values are not compared, so structs, arrays and maps are allowed."""
    if isinstance(kind, T.StructType | T.ArrayType | T.MapType):
        for part in _parts(kind):
            check_carried(part, where)
    elif not is_atomic(kind):
        wanted = "a value of an atomic type (strings in the default collation), or a struct, array or map of such"
        raise UnsupportedError(where=where, wanted=wanted, found=kind.simpleString())


def transport_type(kind: T.DataType) -> T.DataType:
    """Spark's type of an encoded value, as it is shuffled and stored."""
    if isinstance(kind, T.StructType):
        # In Arrow the fields of a null struct are null, even if Spark calls them not nullable.
        return T.StructType([T.StructField(f.name, transport_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(transport_type(kind.elementType), kind.containsNull)
    if isinstance(kind, T.MapType):
        return T.MapType(transport_type(kind.keyType), transport_type(kind.valueType), kind.valueContainsNull)
    return T.IntegerType() if isinstance(kind, T.YearMonthIntervalType) else kind


def arrow_type(kind: T.DataType) -> pa.DataType:
    """The Arrow type in kernels and runs.

    Timestamps are stored in UTC, so files stay valid if the session's time zone changes. Strings and bytes have 64-bit offsets, so a
    column may hold more than 2 GiB of them.
    """
    if isinstance(kind, T.YearMonthIntervalType):
        return pa.int32()
    if isinstance(kind, T.TimestampType):
        return pa.timestamp("us", tz="UTC")
    if isinstance(kind, T.StructType):
        return pa.struct([pa.field(f.name, arrow_type(f.dataType)) for f in kind.fields])
    if isinstance(kind, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType), kind.containsNull))
    if isinstance(kind, T.MapType):
        return pa.map_(arrow_type(kind.keyType), pa.field("value", arrow_type(kind.valueType), kind.valueContainsNull))
    return to_arrow(kind)


def encode(value: Column, kind: T.DataType) -> Column:
    """A value in its transport type: the form in which it is shuffled and stored."""
    if isinstance(kind, T.YearMonthIntervalType):
        return value.cast("interval month").cast("int")
    return _rebuilt(value, kind, encode, T.YearMonthIntervalType)


def decode(value: Column, kind: T.DataType) -> Column:
    """The reverse of ``encode``."""
    if isinstance(kind, T.YearMonthIntervalType):
        return F.make_ym_interval(F.lit(0), value).cast(kind)
    return _rebuilt(value, kind, decode, T.YearMonthIntervalType)


def _rebuilt(value: Column, kind: T.DataType, change: Callable[[Column, T.DataType], Column], *wanted: Any) -> Column:
    """A value in which `change` is applied to all parts. A value that contains none of the wanted types is returned as it is."""
    if not _contains(kind, *wanted):
        return value
    if isinstance(kind, T.StructType):
        fields = [change(value.getField(f.name), f.dataType).alias(f.name) for f in kind.fields]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.transform(value, lambda x: change(x, element))
    if isinstance(kind, T.MapType):
        key, item = kind.keyType, kind.valueType
        return F.transform_values(F.transform_keys(value, lambda k, _: change(k, key)), lambda _, v: change(v, item))
    return value


def hashable(value: Column, kind: T.DataType) -> list[Column]:
    """Columns to hash so that nulls and maps count too. Spark's own hash skips nulls and refuses maps."""
    inner = value
    if isinstance(kind, T.StructType):
        inner = F.struct(*[each for f in kind.fields for each in hashable(value.getField(f.name), f.dataType)])
    elif isinstance(kind, T.ArrayType):
        element = kind.elementType
        inner = F.struct(F.size(value), F.transform(value, lambda x: F.struct(*hashable(x, element))))
    elif isinstance(kind, T.MapType):
        entries = T.ArrayType(T.StructType([T.StructField("key", kind.keyType), T.StructField("value", kind.valueType)]))
        return hashable(F.map_entries(value), entries)
    return [value.isNull(), inner]


def normalize(value: Column, kind: T.DataType) -> Column:
    """Give equal keys the same bits: one NaN, no negative zero."""
    if isinstance(kind, T.FloatType | T.DoubleType):
        nan, zero = F.lit(float("nan")).cast(kind), F.lit(0.0).cast(kind)
        return F.when(F.isnan(value), nan).when(value == zero, zero).otherwise(value)
    return value if isinstance(kind, T.MapType) else _rebuilt(value, kind, normalize, T.FloatType, T.DoubleType)


def _contains(kind: T.DataType, *wanted: Any) -> bool:
    return any(_contains(part, *wanted) for part in _parts(kind)) or isinstance(kind, wanted)


def _parts(kind: T.DataType) -> list[T.DataType]:
    """The types of a nested type's parts; empty for an atomic type."""
    if isinstance(kind, T.StructType):
        return [f.dataType for f in kind.fields]
    if isinstance(kind, T.ArrayType):
        return [kind.elementType]
    return [kind.keyType, kind.valueType] if isinstance(kind, T.MapType) else []
