"""Comparing keys column by column, by the rules of Spark's groupBy.

Null equals null, and NaN equals NaN: Spark normalises floating-point keys in the JVM, so there is only one NaN. Structs are compared field
by field. Columns of fixed width are compared as bits, and all others by Arrow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def leaves(column: pa.Array) -> list[pa.Array]:
    """The atomic columns of a key column: for a struct, its fields, and its own validity if it has nulls."""
    if not pa.types.is_struct(column.type):
        return [column]
    found = [column.is_valid()] if column.null_count else []
    for field in column.flatten():
        found.extend(leaves(field))
    return found


def equal(left: list[pa.Array], right: list[pa.Array], rows: int) -> Mask:
    """For each row: whether the left and the right key are equal."""
    same = np.ones(rows, dtype=np.bool_)
    for a, b in zip(left, right, strict=True):
        if pa.types.is_struct(a.type):
            same &= pc.equal(a.is_valid(), b.is_valid()).to_numpy(zero_copy_only=False)
            same &= equal(a.flatten(), b.flatten(), rows)
        else:
            same &= _equal_atomic(a, b)
    return same


def ranks(columns: list[pa.Array]) -> list[npt.NDArray[np.int64]]:
    """The dense rank of each value, for each atomic column. They order the keys, the same way in every file."""
    found = []
    for leaf in (leaf for column in columns for leaf in leaves(column)):
        bits = as_bits(leaf)
        if bits is not None:
            _, dense = np.unique(bits, return_inverse=True)
            rank = dense.astype(np.int64) + 1
        else:
            ordered = leaf
            if pa.types.is_decimal(leaf.type) or pa.types.is_boolean(leaf.type):
                ordered = leaf.cast(pa.string())
            rank = pc.rank(ordered, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        if leaf.null_count:
            rank[leaf.is_null().to_numpy(zero_copy_only=False)] = 0
        found.append(rank)
    return found


def as_ranks(column: pa.Array) -> npt.NDArray[np.int64]:
    """Integers in the same order as the values, which are numbers, times or strings. Null comes first.

    >>> as_ranks(pa.array([0.5, None, -2.0])).tolist()
    [2, 0, 1]
    """
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        signed = column.view(pa.int64() if kind.bit_width == 64 else pa.int32()) if pa.types.is_temporal(kind) else column
        return np.asarray(signed.to_numpy(), dtype=np.int64)
    rank = np.asarray(pc.rank(column, sort_keys="ascending", tiebreaker="dense").to_numpy(), dtype=np.int64)
    if column.null_count:
        rank[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return rank


def as_bits(column: pa.Array) -> npt.NDArray[np.unsignedinteger] | None:
    """A column of fixed width as unsigned integers, without a copy; None for any other type."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_nested(kind) or not _fixed_width(kind):
        return None
    width = kind.bit_width // 8
    if width not in _BITS:
        return None
    data = column.buffers()[1]
    if data is None:
        return np.zeros(len(column), dtype=_BITS[width])
    return np.frombuffer(data, dtype=_BITS[width], count=len(column), offset=column.offset * width)


def _fixed_width(kind: pa.DataType) -> bool:
    try:
        return bool(kind.bit_width % 8 == 0)
    except ValueError:
        return False


def _equal_atomic(a: pa.Array, b: pa.Array) -> Mask:
    bits_a, bits_b = as_bits(a), as_bits(b)
    if bits_a is not None and bits_b is not None:
        same: Mask = bits_a == bits_b
        if not a.null_count and not b.null_count:
            return same
    else:
        same = pc.fill_null(pc.equal(a, b), False).to_numpy(zero_copy_only=False)
    null_a, null_b = (x.is_null().to_numpy(zero_copy_only=False) for x in (a, b))
    result: Mask = (same & ~null_a & ~null_b) | (null_a & null_b)
    return result
