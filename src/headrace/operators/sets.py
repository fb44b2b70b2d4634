"""Unions of list-valued state: distinct values, and HyperLogLog++ registers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import QueryError
from headrace.state.keys import as_bits
from headrace.state.layout import Indices

RANK_BITS = 8


def union_segments(column: pa.Array, starts: Indices) -> pa.Array:
    """For each segment the distinct elements of all its lists, in Spark's order."""
    segment, elements = flattened(column, starts)
    code = _codes(elements)
    order = np.lexsort((code, segment))
    segment, code = segment[order], code[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = (segment[1:] != segment[:-1]) | (code[1:] != code[:-1])
    return rebuilt(segment[first], elements.take(pa.array(order[first])), len(starts), column.type)


def union_registers(column: pa.Array, starts: Indices) -> pa.Array:
    """For each segment and register index the greatest rank."""
    segment, elements = flattened(column, starts)
    code = elements.to_numpy()
    order = np.lexsort((code, segment))
    segment, code = segment[order], code[order]
    # Sorted by (segment, index, rank): the last of each (segment, index) has the greatest rank.
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = (segment[1:] != segment[:-1]) | (code[1:] >> RANK_BITS != code[:-1] >> RANK_BITS)
    return rebuilt(segment[last], pa.array(code[last], pa.int32()), len(starts), column.type)


def flattened(column: pa.Array, starts: Indices) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """The elements of all lists, and for each of them its segment."""
    begins = np.zeros(len(column), dtype=np.int64)
    begins[starts[1:]] = 1
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    return np.repeat(np.cumsum(begins), lengths), column.flatten()


def rebuilt(segment: npt.NDArray[np.int64], elements: pa.Array, segments: int, kind: pa.DataType) -> pa.Array:
    """The reverse: one list for each segment. The elements are in the order of their segments."""
    return pa.ListArray.from_arrays(list_offsets(np.bincount(segment, minlength=segments)), elements).cast(kind)


def list_offsets(lengths: Indices) -> pa.Array:
    """The offsets of lists with these lengths, as 32-bit numbers. Raises an error if there are too many elements for that."""
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise QueryError(
            where="lists in the state of an instance",
            wanted=f"at most {np.iinfo(np.int32).max} elements",
            found=str(offsets[-1]),
            hint="give the operator more instances: query.rescale(n)",
        )
    return pa.array(offsets.astype(np.int32))


def _codes(elements: pa.Array) -> npt.NDArray[np.int64]:
    """Number elements so that equal ones get equal numbers. NaNs and zeros have been normalised by the compiler."""
    if pa.types.is_struct(elements.type):
        return _codes_of_rows([_codes(field) for field in elements.flatten()], len(elements))
    bits = as_bits(elements)
    if bits is not None:
        return bits.astype(np.uint64).view(np.int64)
    encoded = elements.dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


def _codes_of_rows(columns: list[npt.NDArray[np.int64]], rows: int) -> npt.NDArray[np.int64]:
    """Numbers for rows of numbers, so that equal rows get equal numbers."""
    found = np.zeros(rows, dtype=np.int64)
    for column in columns:
        found = np.unique(np.stack([found, column]), axis=1, return_inverse=True)[1].reshape(-1)
    return found
