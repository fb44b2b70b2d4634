"""Values of state variables: from what users write to Arrow, and from Arrow to what Spark gives to users.

Spark sends every value to the JVM and back. So what a user reads is not always what was written: a struct comes back as a Row, a
timestamp without a time zone in local time, a decimal with the scale of its type.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as T

Values = tuple[Any, ...]
Convert = Callable[[Any], Any]

_SCALARS = frozenset((bool, int, float, str, bytes, datetime.datetime, datetime.date, type(None)))
_TIMESTAMP = T.TimestampType()


@dataclass(frozen=True)
class TupleCodec:
    """The values of one variable, or its map keys."""

    schema: T.StructType

    @cached_property
    def to_arrow(self) -> tuple[Convert | None, ...]:
        """Per column the function from a value to what Arrow takes; None where they are the same."""
        return tuple(_to_arrow(f.dataType) for f in self.schema.fields)

    @cached_property
    def _from_arrow(self) -> tuple[Convert | None, ...]:
        return tuple(_from_arrow(f.dataType) for f in self.schema.fields)

    @cached_property
    def _accept(self) -> tuple[Convert | None, ...]:
        return tuple(_accept(f.dataType) for f in self.schema.fields)

    @cached_property
    def _accepts_scalars(self) -> bool:
        """True if a scalar of Python is taken as it is in all columns."""
        return not any(self._accept)

    def tuples(self, columns: list[pa.Array]) -> list[Values]:
        """One tuple per row."""
        lists = [_python(column, convert) for column, convert in zip(columns, self._from_arrow, strict=True)]
        return list(zip(*lists, strict=True))

    def plain(self, value: Any) -> Values:
        """A tuple as it will come back."""
        if self._accepts_scalars and type(value) is tuple:
            for each in value:
                if type(each) not in _SCALARS:
                    break
            else:
                return value
        found = value if isinstance(value, tuple) else tuple(value)
        accept = self._accept
        if len(found) != len(accept):
            return found
        return tuple(v if v is None else _scalar(v) if a is None else a(_scalar(v)) for v, a in zip(found, accept, strict=True))

    def order(self, keys: list[Values]) -> list[Values]:
        """Map keys in the order of Spark's store: by the bytes of the row that holds them."""
        if len(keys) < 2:
            return keys
        return sorted(keys, key=lambda key: _struct_bytes((self.schema,), (key,)))


def _python(column: pa.Array, convert: Convert | None) -> list[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)
    values = column.to_numpy(zero_copy_only=False).tolist() if numeric and not column.null_count else column.to_pylist()
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _scalar(value: Any) -> Any:
    """The Python value of a scalar of numpy or pandas."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    return value


def _accept(kind: T.DataType) -> Convert | None:
    """The function from a value that a user wrote to what Spark would give back. None: it comes back as it is."""
    if isinstance(kind, T.TimestampType):
        # Spark writes the moment, and reads it in local time.
        return lambda v: v.astimezone().replace(tzinfo=None) if isinstance(v, datetime.datetime) and v.tzinfo is not None else v
    if isinstance(kind, T.DecimalType):
        unit = Decimal(1).scaleb(-kind.scale)
        return lambda v: v.quantize(unit, ROUND_HALF_UP) if isinstance(v, Decimal) and v.is_finite() else v
    if isinstance(kind, T.FloatType):
        return lambda v: float(np.float32(v)) if isinstance(v, int | float) else v
    if isinstance(kind, T.BinaryType):
        return lambda v: bytes(v) if isinstance(v, bytearray | memoryview) else v
    if isinstance(kind, T.ArrayType):
        inner = _inner(kind.elementType)
        return lambda v: [None if x is None else inner(x) for x in v]
    if isinstance(kind, T.MapType):
        key, item = _inner(kind.keyType), _inner(kind.valueType)
        return lambda v: {key(k): None if x is None else item(x) for k, x in v.items()}
    if isinstance(kind, T.StructType):
        parts = [_inner(f.dataType) for f in kind.fields]
        make, names = Row(*kind.names), kind.names

        def as_row(v: Any) -> Any:
            values = [v.get(name) for name in names] if isinstance(v, dict) else list(v)
            if len(values) != len(parts):
                raise ValueError(f"a struct of {len(parts)} fields ({', '.join(names)}) cannot be made of {v!r}")
            return make(*[None if x is None else part(x) for x, part in zip(values, parts, strict=True)])

        return as_row
    return None


def _inner(kind: T.DataType) -> Convert:
    accept = _accept(kind)
    return _scalar if accept is None else lambda v: accept(_scalar(v))


def _from_arrow(kind: T.DataType) -> Convert | None:
    """The function from what Arrow gives to what Spark gives. Timestamps at the top are given as microseconds."""
    if isinstance(kind, T.TimestampType):
        return _TIMESTAMP.fromInternal
    return _nested_from_arrow(kind)


def _nested_from_arrow(kind: T.DataType) -> Convert | None:
    if isinstance(kind, T.TimestampType):
        return lambda v: v.astimezone().replace(tzinfo=None)
    if isinstance(kind, T.ArrayType):
        inner = _nested_from_arrow(kind.elementType)
        return None if inner is None else lambda v: [None if x is None else inner(x) for x in v]
    if isinstance(kind, T.MapType):
        key, item = (_nested_from_arrow(each) or _same for each in (kind.keyType, kind.valueType))
        return lambda v: {key(k): None if x is None else item(x) for k, x in v}
    if isinstance(kind, T.StructType):
        make, parts = Row(*kind.names), [(f.name, _nested_from_arrow(f.dataType) or _same) for f in kind.fields]
        return lambda v: make(*[None if v[name] is None else part(v[name]) for name, part in parts])
    return None


def _to_arrow(kind: T.DataType) -> Convert | None:
    """The function from an accepted value to what Arrow takes."""
    if isinstance(kind, T.TimestampType):
        return _TIMESTAMP.toInternal
    if isinstance(kind, T.ArrayType):
        inner = _to_arrow(kind.elementType)
        return None if inner is None else lambda v: [None if x is None else inner(x) for x in v]
    if isinstance(kind, T.MapType):
        key, item = (_to_arrow(each) or _same for each in (kind.keyType, kind.valueType))
        return lambda v: [(key(k), None if x is None else item(x)) for k, x in v.items()]
    if isinstance(kind, T.StructType):
        parts = [(f.name, _to_arrow(f.dataType) or _same) for f in kind.fields]
        return lambda v: {name: None if x is None else part(x) for (name, part), x in zip(parts, v, strict=True)}
    return None


def _same(value: Any) -> Any:
    return value


_WIDTHS: dict[type[T.DataType], str] = {
    T.BooleanType: "<?7x",
    T.ByteType: "<b7x",
    T.ShortType: "<h6x",
    T.IntegerType: "<i4x",
    T.LongType: "<q",
    T.FloatType: "<f4x",
    T.DoubleType: "<d",
}
_EPOCH = datetime.date(1970, 1, 1)


def _struct_bytes(kinds: tuple[T.DataType, ...], values: Values) -> bytes:
    """The bytes of Spark's ``UnsafeRow``: a bit per null, eight bytes per field, then what is longer."""
    null_bits, fixed, more = 0, b"", b""
    begin = (len(kinds) + 63) // 64 * 8 + 8 * len(kinds)
    for at, (kind, value) in enumerate(zip(kinds, values, strict=True)):
        if value is None:
            null_bits |= 1 << at
            fixed += bytes(8)
            continue
        short = _short_bytes(kind, value)
        if short is not None:
            fixed += short
            continue
        long = _long_bytes(kind, value)
        fixed += struct.pack("<q", (begin + len(more)) << 32 | len(long))
        more += long + bytes(-len(long) % 8)
    return null_bits.to_bytes((len(kinds) + 63) // 64 * 8, "little") + fixed + more


def _short_bytes(kind: T.DataType, value: Any) -> bytes | None:
    width = _WIDTHS.get(type(kind))
    if width is not None:
        return struct.pack(width, value)
    if isinstance(kind, T.TimestampType | T.DayTimeIntervalType):
        return struct.pack("<q", kind.toInternal(value))
    if isinstance(kind, T.TimestampNTZType):
        return struct.pack("<q", (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1))
    if isinstance(kind, T.DateType):
        return struct.pack("<i4x", (value - _EPOCH).days)
    if isinstance(kind, T.DecimalType) and kind.precision <= 18:
        return struct.pack("<q", int(value.scaleb(kind.scale)))
    return None


def _long_bytes(kind: T.DataType, value: Any) -> bytes:
    if isinstance(kind, T.StructType):
        return _struct_bytes(tuple(f.dataType for f in kind.fields), tuple(value))
    if isinstance(kind, T.DecimalType):
        whole = int(value.scaleb(kind.scale))
        return whole.to_bytes((whole.bit_length() + 8) // 8, "big", signed=True)
    return value if isinstance(value, bytes) else str(value).encode()
