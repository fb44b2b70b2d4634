"""Converts rows of kernels to the Arrow types and sizes that Spark takes.

In kernels and runs, texts and bytes have 64-bit offsets, so that a column may hold more than 2 GiB of them. Spark's Arrow types have 32-bit
offsets. So rows are converted to Spark's types, in pieces that are small enough for them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

BATCH_ROWS = 200_000
BATCH_BYTES = 1 << 26
"""The size of a piece. A single row may be larger; it is never divided."""


def spark_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in Spark's types and in pieces that Spark takes."""
    schema = spark_schema(rows.schema)
    for piece in _pieces(rows):
        yield piece if schema is rows.schema else _narrow(piece, schema)


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with Spark's types. Returns the same object if nothing changes."""
    types = [spark_type(field.type) for field in schema]
    if all(mine is field.type for mine, field in zip(types, schema, strict=True)):
        return schema
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, types, strict=True)], schema.metadata)


def spark_type(kind: pa.DataType) -> pa.DataType:
    """The type with 32-bit offsets.

    >>> spark_type(pa.list_(pa.large_string()))
    ListType(list<item: string>)
    """
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        fields = [field.with_type(spark_type(field.type)) for field in kind]
        return kind if all(new.type is old.type for new, old in zip(fields, kind, strict=True)) else pa.struct(fields)
    if pa.types.is_list(kind):
        element = kind.value_field.with_type(spark_type(kind.value_type))
        return kind if element.type is kind.value_type else pa.list_(element)
    if pa.types.is_map(kind):
        key, item = (field.with_type(spark_type(field.type)) for field in (kind.key_field, kind.item_field))
        return kind if key.type is kind.key_type and item.type is kind.item_type else pa.map_(key, item)
    return kind


def _pieces(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if rows.num_rows <= 1 or (rows.num_rows <= BATCH_ROWS and rows.nbytes <= BATCH_BYTES):
        yield rows
        return
    half = rows.num_rows // 2
    yield from _pieces(rows.slice(0, half))
    yield from _pieces(rows.slice(half))


def _narrow(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    try:
        return rows.cast(schema)
    except pa.ArrowInvalid:
        # A slice of a large column may have offsets beyond 32 bits. A copy of it begins at 0.
        return rows.take(pa.array(np.arange(rows.num_rows))).cast(schema)
