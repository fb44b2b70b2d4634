"""The layout of a store: the columns of its rows.

All runs of a store, and all batches that become runs, have the same columns in the same order:

    h | k0 k1 ... | sub | p0 p1 ...          (sub only if a key can have several rows, for example one per pane)

``h`` is the key's hash as an unsigned number. The ``k`` columns are the key itself, since two keys may share a hash. ``sub`` distinguishes
the rows of one key. The ``p`` columns are the values. Rows are sorted by (h, key, sub).
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

from headrace.errors import InvariantError, require

HASH = "h"
SUB = "sub"
DELETED = "deleted"
"""Extra column of runs with deletions: true for a row that deletes its key."""

Hashes = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

Combine = Callable[[list[pa.Array], Indices], list[pa.Array]]
"""Combines the value columns of sorted rows: one result row for each segment that begins at an index."""


class Policy(StrEnum):
    """What two rows with the same key and sub-key mean."""

    REPLACE = "replace"
    """The newer row is the state; the older one no longer counts."""
    COMBINE = "combine"
    """Each row is a part of the state. The parts are combined."""
    KEEP = "keep"
    """Each row stands for itself: a buffer of rows."""


@dataclass(frozen=True)
class Layout:
    """The columns of a store, and its policy."""

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
        """A hash that differs if files of another layout would be misread under this one."""
        return hashlib.sha256(f"{self.schema}|{self.policy}".encode()).hexdigest()[:16]

    def empty(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in self.schema], schema=self.schema)


def never_combined(columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
    """The `Combine` of layouts whose rows are replaced or kept."""
    raise InvariantError("rows of this store are never combined")


def one_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """All rows of a table as one batch. Columns that the schema names get the schema's types.

    Spark's hashes are signed; they become unsigned. Columns are cast before their chunks are joined, since a string column with 32-bit
    offsets may be too small for all chunks.
    """
    columns = {}
    for name in table.schema.names:
        column = table.column(name)
        if name == HASH and column.type == pa.int64():
            column = pa.chunked_array([chunk.view(pa.uint64()) for chunk in column.chunks], pa.uint64())
        wanted = schema.field(name).type if name in schema.names else column.type
        column = column if column.type == wanted else column.cast(wanted)
        # Raises if the values do not fit into one array. Table.combine_chunks would leave several.
        columns[name] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    rows = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    require(rows.num_rows == table.num_rows, f"{table.num_rows} rows as one batch have become {rows.num_rows}")
    return rows


def hashes(rows: pa.RecordBatch) -> Hashes:
    """The hash column as a numpy array, without a copy."""
    array: Any = rows.column(HASH)
    return np.asarray(array.to_numpy(zero_copy_only=True), dtype=np.uint64)


def subs(rows: pa.RecordBatch) -> Indices:
    """The sub-key column as a numpy array, without a copy."""
    array: Any = rows.column(SUB)
    return np.asarray(array.to_numpy(zero_copy_only=True), dtype=np.int64)
