"""Keys with arrays in them: state is kept by their text, from which Spark makes the arrays again.

Kernels compare keys of atomic types, and structs of such. The text is JSON in which equal arrays look the same: one NaN, no negative
zero, times as microseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headrace.compile import event_time
from headrace.compile.types import is_binary_collated, normalize

_WRAPPED = "v"
_TIMES = (T.TimestampType, T.TimestampNTZType)
_EXACT = (T.BooleanType, T.IntegralType, T.FloatType, T.DoubleType, T.DecimalType, T.StringType, T.BinaryType, T.DateType, *_TIMES)
"""Types that JSON gives back as they were."""


def is_kept_as_text(kind: T.DataType) -> bool:
    """True for keys that contain arrays, and nothing that JSON could change."""
    return _has_array(kind) and _is_exact(kind)


def as_text(value: Column, kind: T.DataType) -> Column:
    """A key as text."""
    wrapped = F.struct(_plain(normalize(value, kind), kind).alias(_WRAPPED))
    return F.when(value.isNotNull(), F.to_json(wrapped, {"ignoreNullFields": "false"}))


def from_text(text: Column, kind: T.DataType) -> Column:
    """The reverse of ``as_text``."""
    schema = T.StructType([T.StructField(_WRAPPED, _plain_type(kind))])
    return _restored(F.from_json(text, schema).getField(_WRAPPED), kind)


def _has_array(kind: T.DataType) -> bool:
    return isinstance(kind, T.ArrayType) or (isinstance(kind, T.StructType) and any(_has_array(f.dataType) for f in kind.fields))


def _is_exact(kind: T.DataType) -> bool:
    match kind:
        case T.ArrayType():
            return _is_exact(kind.elementType)
        case T.StructType():
            return all(_is_exact(f.dataType) for f in kind.fields)
    return isinstance(kind, _EXACT) and is_binary_collated(kind)


def _with_times(value: Column, kind: T.DataType, changed: Callable[[Column, T.DataType], Column]) -> Column:
    """A value in which every time is changed, at any depth."""
    match kind:
        case T.ArrayType():
            element = kind.elementType
            return F.transform(value, lambda x: _with_times(x, element, changed))
        case T.StructType():
            fields = [_with_times(value.getField(f.name), f.dataType, changed).alias(f.name) for f in kind.fields]
            return F.when(value.isNotNull(), F.struct(*fields))
    return changed(value, kind) if isinstance(kind, _TIMES) else value


def _plain(value: Column, kind: T.DataType) -> Column:
    """A value with microseconds in the place of times."""
    return _with_times(value, kind, event_time.micros)


def _plain_type(kind: T.DataType) -> T.DataType:
    match kind:
        case T.ArrayType():
            return T.ArrayType(_plain_type(kind.elementType))
        case T.StructType():
            return T.StructType([T.StructField(f.name, _plain_type(f.dataType)) for f in kind.fields])
    return T.LongType() if isinstance(kind, _TIMES) else kind


def _restored(value: Column, kind: T.DataType) -> Column:
    return _with_times(value, kind, event_time.from_micros)
