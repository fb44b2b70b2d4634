"""Rows on their way from kernels to Spark.

Texts and bytes in kernels and runs have offsets of 64 bits, so that a column may hold more than 2 GiB of them. Spark's own have 32 bits, so
rows go to it in pieces that fit, and in its types.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

BATCH_ROWS = 200_000
BATCH_BYTES = 1 << 26
"""Rows go to Spark in pieces of at most this; but a row is never cut."""


def spark_batches(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in order, as Spark takes them."""
    schema = spark_schema(rows.schema)
    for piece in _pieces(rows):
        yield piece if schema is rows.schema else _narrow(piece, schema)


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with Spark's types; the same object where nothing changes."""
    types = [spark_type(field.type) for field in schema]
    if all(mine is field.type for mine, field in zip(types, schema, strict=True)):
        return schema
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, types, strict=True)], schema.metadata)


def spark_type(kind: pa.DataType) -> pa.DataType:
    """With offsets of 32 bits.

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
        # A few rows of a large column lie far behind its beginning: copied, they have one of their own.
        return rows.take(pa.array(np.arange(rows.num_rows))).cast(schema)
