"""Spark types from JSON and Arrow types, and back. PySpark's functions for this are not part of its public API."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type
from pyspark.sql.types import DataType, _parse_datatype_json_string

from headrace.spark.versions import dialect


def to_arrow(kind: DataType) -> pa.DataType:
    """The Arrow type of a Spark type. Timestamps are in UTC; strings and binaries have 64-bit offsets."""
    return to_arrow_type(kind, prefers_large_types=True, **dialect().arrow_in_utc)


def from_arrow(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type. A timestamp without a time zone becomes TIMESTAMP_NTZ."""
    return from_arrow_type(kind, prefer_timestamp_ntz=True)


def from_json(text: str) -> DataType:
    """The Spark type that a JSON text describes."""
    return _parse_datatype_json_string(text)
