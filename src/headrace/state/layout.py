"""What the rows of one operator's state look like.

Every run of an operator, and every batch on its way into one, has the same columns in the same order:

    h | k0 k1 ... | sub | p0 p1 ...          (sub only where the operator has a second level, such as panes)

``h`` is the key's hash as an unsigned number, the ``k`` columns are the key itself (two keys may share a hash), ``sub`` tells the
rows of one key apart, and the ``p`` columns are the values. Rows are sorted by (h, key, sub).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import require

HASH = "h"
SUB = "sub"
DELETED = "deleted"

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

Combine = Callable[[list[pa.Array], Indices], list[pa.Array]]
"""Merges the value columns of sorted rows, one result row per segment that begins at an index."""


class Policy(StrEnum):
    """What two rows of one key in two runs mean."""

    REPLACE = "replace"
    """The newer row is the state; the older is history."""
    COMBINE = "combine"
    """Each row is a part of the state; the whole is what the operator's merge makes of them."""
    KEEP = "keep"
    """Each row stands for itself, also beside another of the same key and sub-key: a buffer of rows."""


@dataclass(frozen=True)
class Layout:
    """The columns of an operator's state."""

    keys: tuple[tuple[str, pa.DataType], ...]
    values: tuple[tuple[str, pa.DataType], ...]
    has_sub: bool = False
    policy: Policy = Policy.REPLACE

    @property
    def key_names(self) -> list[str]:
        return [name for name, _ in self.keys]

    @property
    def value_names(self) -> list[str]:
        return [name for name, _ in self.values]

    @property
    def schema(self) -> pa.Schema:
        sub = [(SUB, pa.int64())] if self.has_sub else []
        return pa.schema([(HASH, pa.uint64()), *self.keys, *sub, *self.values])

    @property
    def fingerprint(self) -> str:
        """Changes whenever old files could be misread under this layout."""
        return hashlib.sha256(f"{self.schema}|{self.policy}".encode()).hexdigest()[:16]

    def empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)


def one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of a table as one batch, with the columns that the schema names in its types.

    The table's hashes are signed, as Spark's are. Types are changed first: pieces of texts with short offsets may not fit into one.
    """
    columns = {}
    for name in table.schema.names:
        column = table.column(name)
        if name == HASH and column.type == pa.int64():
            column = pa.chunked_array([chunk.view(pa.uint64()) for chunk in column.chunks], pa.uint64())
        wanted = schema.field(name).type if name in schema.names else column.type
        column = column if column.type == wanted else column.cast(wanted)
        # Raises where the values do not fit into one array, unlike Table.combine_chunks, which leaves several.
        columns[name] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    require(rows.num_rows == table.num_rows, f"{table.num_rows} rows as one batch have become {rows.num_rows}")
    return rows


def hashes(rows: pa.RecordBatch) -> Hashes:
    """The hash column as numpy, without a copy."""
    array: Any = rows.column(HASH)
    return np.asarray(array.to_numpy(zero_copy_only=True), dtype=np.uint64)


def subs(rows: pa.RecordBatch) -> Indices:
    """The sub-key column as numpy, without a copy."""
    array: Any = rows.column(SUB)
    return np.asarray(array.to_numpy(zero_copy_only=True), dtype=np.int64)
