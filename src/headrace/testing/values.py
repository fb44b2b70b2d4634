"""Converts Python values to rows of a Spark schema: for a file that a source reads, and as Spark's ``collect`` returns them.

Times may be given as text. Text without an offset is in the session's time zone, as in Spark's SQL. A ``datetime`` without a time zone is
in the local time zone, as in PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import types as T

from headrace.compile.types import arrow_type
from headrace.errors import QueryError
from headrace.logs import logger

_log = logger(__name__)

Converted = Callable[[Any, T.DataType, tzinfo], Any]


def schema_of(session: SparkSession, schema: str | T.StructType) -> T.StructType:
    """The schema; it may be given as text: ``"src string, ts timestamp"``."""
    if isinstance(schema, T.StructType):
        return schema
    return session.createDataFrame([], schema).schema


def zone_of(session: SparkSession) -> tzinfo:
    """The session's time zone."""
    name = str(session.conf.get("spark.sql.session.timeZone"))
    if name in ("UTC", "GMT", "Z"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as unknown:
        _log.debug("%r is no region, so it must be an offset: %s", name, unknown)
    try:
        found = datetime.fromisoformat(f"2000-01-01T00:00:00{name.removeprefix('UTC').removeprefix('GMT')}").tzinfo
    except ValueError:
        found = None
    if found is None:
        raise QueryError(
            where="spark.sql.session.timeZone", wanted="a zone that Python knows", found=repr(name), hint="give times as datetimes"
        )
    return found


def to_table(rows: Iterable[Any], schema: T.StructType, zone: tzinfo, where: str) -> pa.Table:
    """Rows as an Arrow table. A row is a tuple, a Row or a dict. For a schema of one column, it may be a value."""
    cells = [_cells(row, schema, where) for row in rows]
    arrays = [_column([row[at] for row in cells], field, zone, where) for at, field in enumerate(schema.fields)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([pa.field(f.name, arrow_type(f.dataType)) for f in schema.fields]))


def collected(rows: Iterable[Any], schema: T.StructType, zone: tzinfo, where: str) -> list[tuple[Any, ...]]:
    """Rows as Spark's ``collect`` would return them: times are local datetimes without a time zone."""
    found = []
    for row in rows:
        cells = _cells(row, schema, where)
        found.append(tuple(_checked(as_collected, cell, field, zone, where) for cell, field in zip(cells, schema.fields, strict=True)))
    return found


def _cells(row: Any, schema: T.StructType, where: str) -> tuple[Any, ...]:
    """The row's values in the order of the columns. Columns that a dict lacks are null."""
    names = schema.fieldNames()
    if isinstance(row, dict):
        if unknown := [name for name in row if name not in names]:
            raise QueryError(where=where, wanted=f"columns among {', '.join(names)}", found=", ".join(map(str, unknown)))
        return tuple(row.get(name) for name in names)
    if not isinstance(row, tuple | list):
        if len(names) > 1:
            raise QueryError(where=where, wanted=f"rows of {', '.join(names)}, as tuples or dicts", found=repr(row))
        return (row,)
    if len(row) != len(names):
        raise QueryError(where=where, wanted=f"rows of {len(names)} values: {', '.join(names)}", found=f"{len(row)} values: {row!r}")
    return tuple(row)


def _column(values: list[Any], field: T.StructField, zone: tzinfo, where: str) -> pa.Array:
    kind = arrow_type(field.dataType)
    converted = [_checked(as_written, value, field, zone, where) for value in values]
    try:
        return pa.array(converted, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        wrong = next(given for given, value in zip(values, converted, strict=True) if not _fits(value, kind))
        raise _misfit(wrong, field, where) from None


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return False
    return True


def _checked(convert: Converted, value: Any, field: T.StructField, zone: tzinfo, where: str) -> Any:
    try:
        return convert(value, field.dataType, zone)
    except (ValueError, TypeError, ArithmeticError, AttributeError):
        raise _misfit(value, field, where) from None


def _misfit(value: Any, field: T.StructField, where: str) -> QueryError:
    return QueryError(where=where, wanted=f"{field.dataType.simpleString()} in column {field.name!r}", found=repr(value))


def as_written(value: Any, kind: T.DataType, zone: tzinfo) -> Any:
    """A value in the form that Arrow takes."""
    if value is None:
        return None
    match kind:
        case T.TimestampType():
            return _moment(value, zone).astimezone(UTC)
        case T.TimestampNTZType():
            return datetime.fromisoformat(value) if isinstance(value, str) else value
        case T.DateType():
            return date.fromisoformat(value) if isinstance(value, str) else value
        case T.DecimalType():
            return value if isinstance(value, Decimal) else Decimal(str(value))
        case T.StructType():
            cells = _cells(value, kind, "a struct")
            return {f.name: as_written(cell, f.dataType, zone) for f, cell in zip(kind.fields, cells, strict=True)}
        case T.ArrayType():
            return [as_written(each, kind.elementType, zone) for each in value]
        case T.MapType():
            return [(as_written(k, kind.keyType, zone), as_written(v, kind.valueType, zone)) for k, v in value.items()]
        case _:
            return value


def as_collected(value: Any, kind: T.DataType, zone: tzinfo) -> Any:
    """A value in the form that Spark's ``collect`` returns."""
    if value is None:
        return None
    match kind:
        case T.TimestampType():
            return _moment(value, zone).astimezone().replace(tzinfo=None)
        case T.StructType():
            return tuple(as_collected(cell, f.dataType, zone) for f, cell in zip(kind.fields, _cells(value, kind, "a struct"), strict=True))
        case T.ArrayType():
            return [as_collected(each, kind.elementType, zone) for each in value]
        case T.MapType():
            return {as_collected(k, kind.keyType, zone): as_collected(v, kind.valueType, zone) for k, v in value.items()}
        case T.TimestampNTZType() | T.DateType() | T.DecimalType():
            return as_written(value, kind, zone)
        case T.DoubleType():
            return float(value)
        case T.FloatType():
            # Rounded to 32 bits, as in Spark.
            return float(np.float32(value))
        case _:
            return value


def _moment(value: Any, zone: tzinfo) -> datetime:
    """A value as a datetime. A text gets the session's time zone if it has no offset."""
    if not isinstance(value, str):
        if not isinstance(value, datetime):
            raise TypeError(value)
        return value
    moment = datetime.fromisoformat(value)
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment


def sorted_rows(rows: Iterable[Any]) -> list[Any]:
    """Rows in the order of their columns, nulls first.

    >>> sorted_rows([("b", 1), ("a", None), ("a", 10), ("a", 9)])
    [('a', None), ('a', 9), ('a', 10), ('b', 1)]
    """
    return sorted(rows, key=_order)


def _order(value: Any) -> Any:
    """A sort key for values of one column, whatever their type."""
    if value is None:
        return (0,)
    if isinstance(value, bool | int | float | Decimal):
        return (1, value != value, 0 if value != value else value)
    if isinstance(value, tuple | list):
        return (2, tuple(_order(each) for each in value))
    if isinstance(value, dict):
        return (3, tuple(sorted((_order(k), _order(v)) for k, v in value.items())))
    return (4, str(value))
