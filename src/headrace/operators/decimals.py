"""Exact sums of 128-bit decimals by segment, in numpy.

A decimal is a 128-bit two's complement integer. It is split into 32-bit limbs, and each limb is summed in 64 bits, which cannot overflow
below 2^31 rows per segment. Then the carries are added to the next limbs.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.state.layout import Indices

_LIMBS = 4


def sum_segments(column: pa.Array, starts: Indices) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The sum of each segment, with nulls as zero; and True for sums that exceed the type's precision."""
    limbs = _limbs(column)
    sums = [np.add.reduceat(limb, starts) for limb in limbs]
    carry = np.zeros(len(starts), dtype=np.int64)
    out = np.empty((len(starts), _LIMBS), dtype=np.uint32)
    for i, total in enumerate(sums):
        total = total + carry
        out[:, i] = (total & 0xFFFFFFFF).astype(np.uint32)
        carry = total >> 32
    # The top limb was summed as signed, so the bits above 128 must all equal the sign.
    sign = -(out[:, 3] >> np.uint32(31)).astype(np.int64)
    too_large = carry != sign
    data = pa.py_buffer(np.ascontiguousarray(out).tobytes())
    summed = pa.Array.from_buffers(column.type, len(starts), [None, data])
    too_large |= _beyond_precision(out, column.type.precision)
    return summed, too_large


def with_nulls(column: pa.Array, null: npt.NDArray[np.bool_]) -> pa.Array:
    """The column with nulls at the marked rows."""
    if not null.any():
        return column
    valid = np.packbits(~null, bitorder="little").tobytes()
    return pa.Array.from_buffers(column.type, len(column), [pa.py_buffer(valid), column.buffers()[1]])


def _limbs(column: pa.Array) -> list[npt.NDArray[np.int64]]:
    rows = len(column)
    data = column.buffers()[1]
    raw = np.frombuffer(data, dtype=np.uint32, count=rows * _LIMBS, offset=column.offset * 16).reshape(rows, _LIMBS)
    limbs = [raw[:, i].astype(np.int64) for i in range(_LIMBS - 1)]
    limbs.append(raw[:, 3].astype(np.int32).astype(np.int64))
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        for limb in limbs:
            limb[null] = 0
    return limbs


def _beyond_precision(out: npt.NDArray[np.uint32], precision: int) -> npt.NDArray[np.bool_]:
    high = (out[:, 3].astype(np.uint64) << np.uint64(32)) | out[:, 2]
    low = (out[:, 1].astype(np.uint64) << np.uint64(32)) | out[:, 0]
    bound = 10**precision
    negative = (high >> np.uint64(63)).astype(bool)
    magnitude_low = np.where(negative, ~low + np.uint64(1), low)
    carried = negative & (magnitude_low == 0)
    magnitude_high = np.where(negative, ~high + carried.astype(np.uint64), high)
    bound_high, bound_low = np.uint64(bound >> 64), np.uint64(bound & 0xFFFFFFFFFFFFFFFF)
    beyond: npt.NDArray[np.bool_] = (magnitude_high > bound_high) | ((magnitude_high == bound_high) & (magnitude_low >= bound_low))
    return beyond
