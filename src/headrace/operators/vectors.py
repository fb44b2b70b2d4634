"""Columns in the form in which expressions are evaluated: numpy arrays, with facts about their values.

These facts save passes over pairs. Without nulls no validity mask is needed. If all values are finite, comparisons need no check for NaN.
If the bounds of the operands exclude an overflow, no check for overflow is needed.

Texts are ranks. All texts of an evaluation (columns of both sides, literals) share one sorted dictionary, so comparing two texts is
comparing two integers. `columns_from_arrow` encodes a batch once; `align` then converts the columns of one evaluation to one dictionary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.operators.expressions import Column, Expr, Literal, TextTest, columns, walk

Array: TypeAlias = npt.NDArray[Any]
Bounds: TypeAlias = tuple[int, int] | tuple[float, float]
NO_TEXTS = pa.array([], pa.binary())
REMEMBERED_MAX = 64
"""When a cache has this many trees, it is emptied."""
_T = TypeVar("_T")


@dataclass(slots=True)
class Values:
    """The value of an expression: an array that broadcasts against the others."""

    values: Array
    valid: Array | None = None
    """False where the value is null. None: there are no nulls."""
    bounds: Bounds | None = None
    """Bounds of all values, also of those behind nulls. For floats they also say that there is no NaN and no infinity."""
    failed: Array | None = None
    """The errors that Spark would raise, as bits of `evaluate.FAILURES`. None only if no possible value of the columns can fail."""
    owned: bool = False
    """True if the array is a buffer: the consumer may overwrite it, and must give it back."""


@dataclass(frozen=True, eq=False)
class Vector:
    """A column of one side."""

    values: Array
    valid: Array | None
    bounds: Bounds | None
    texts: Any = None
    """For texts: the sorted dictionary whose indices the values are."""

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Array | slice) -> Vector:
        # The bounds of all rows also hold for a part of them.
        return Vector(self.values[rows], None if self.valid is None else self.valid[rows], self.bounds, self.texts)


Side: TypeAlias = Mapping[str, Vector]


def columns_from_arrow(batch: pa.RecordBatch | pa.Table, names: Iterable[str]) -> dict[str, Vector]:
    """The named columns of a batch, ready for evaluation."""
    found = {}
    for name in names:
        column = batch.column(name)
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        found[name] = vector(column, name)
    return found


def vector(column: pa.Array, name: str = "") -> Vector:
    """An Arrow column as a vector."""
    valid = None if not column.null_count else np.asarray(column.is_valid().to_numpy(zero_copy_only=False))
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _text_vector(column, valid)
    if pa.types.is_null(kind):
        return Vector(np.zeros(len(column), dtype=bool), np.zeros(len(column), dtype=bool), None)
    if pa.types.is_decimal128(kind) and kind.precision <= 18:
        # A value has two words, the low one first. Up to 18 digits and the sign fit into the low word.
        words = np.frombuffer(column.buffers()[1], dtype=np.int64)
        return of_values(words[2 * column.offset : 2 * (column.offset + len(column)) : 2], valid)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time64(kind):
        micros = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us") if pa.types.is_duration(kind) else kind
        column = column.cast(micros).view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    elif not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise UnsupportedError(where=name, wanted="a column that a condition can be evaluated on", found=str(kind))
    filled = column.fill_null(False if pa.types.is_boolean(kind) else 0) if valid is not None else column
    return of_values(np.asarray(filled.to_numpy(zero_copy_only=False)), valid)


def of_values(values: Array, valid: Array | None) -> Vector:
    """A vector of these values. Its bounds are computed from them."""
    # Strided values (decimals) are copied, because they would be slow at every use.
    values = np.ascontiguousarray(values)
    if valid is not None:
        values = np.where(valid, values, values.dtype.type(0))
    return Vector(values, valid, bounds_of(values))


def bounds_of(values: Array) -> Bounds | None:
    """The least and the greatest value; None for booleans, for no values, and if one is not finite."""
    if values.dtype == bool or not values.size:
        return None
    low, high = values.min().item(), values.max().item()
    if values.dtype.kind == "f" and not (np.isfinite(low) and np.isfinite(high)):
        return None
    return low, high


def _text_vector(column: pa.Array, valid: Array | None) -> Vector:
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    encoded = column.cast(pa.large_binary() if wide else pa.binary()).dictionary_encode()
    texts, ranks = _sorted(encoded.dictionary)
    codes = np.asarray(encoded.indices.fill_null(0).to_numpy(zero_copy_only=False))
    values = ranks[codes] if len(texts) else np.zeros(len(column), dtype=np.int32)
    return Vector(values, valid, (0, max(len(texts) - 1, 0)), texts)


def _sorted(texts: pa.Array) -> tuple[pa.Array, Array]:
    """Distinct texts sorted by their bytes, and the new index of each."""
    order = np.asarray(pc.sort_indices(texts).to_numpy())
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    return texts.take(pa.array(order)), ranks


def align(expr: Expr, sides: Mapping[str, Side]) -> tuple[dict[str, dict[str, Vector]], pa.Array]:
    """The columns that the expression reads, with all texts and text literals as ranks in one dictionary; and that dictionary."""
    reads, literals, tests_texts = _reads(expr)
    named: dict[str, dict[str, Vector]] = {side: {} for side in sides}
    for column in reads:
        named[column.side][column.name] = sides[column.side][column.name]
    dictionaries = [v.texts for side in named.values() for v in side.values() if v.texts is not None]
    if not dictionaries and not literals and not tests_texts:
        return named, NO_TEXTS
    if dictionaries and _is_common(dictionaries, literals):
        return named, dictionaries[0]
    pieces = [pa.array(sorted(literals), pa.large_binary()), *(each.cast(pa.large_binary()) for each in dictionaries)]
    texts, _ = _sorted(pa.concat_arrays(pieces).unique())
    for side in named.values():
        for name, each in side.items():
            if each.texts is not None and len(each.texts):
                places = np.asarray(pc.index_in(each.texts.cast(pa.large_binary()), texts).to_numpy(), dtype=np.int32)
                side[name] = Vector(places[each.values], each.valid, (0, len(texts) - 1), texts)
    return named, texts


def remembered(make: Callable[[Expr], _T]) -> Callable[[Expr], _T]:
    """A cache around `make`, since the same condition is prepared for every block of pairs.

    Trees are looked up by identity: equal trees can mean different things, such as 0.0 and -0.0.
    """
    known: dict[int, tuple[Expr, _T]] = {}

    def found(expr: Expr) -> _T:
        if id(expr) not in known:
            if len(known) >= REMEMBERED_MAX:
                known.clear()
            # The tree itself is kept too, so that no other tree can get its id.
            known[id(expr)] = (expr, make(expr))
        return known[id(expr)][1]

    return found


@remembered
def _reads(expr: Expr) -> tuple[set[Column], set[bytes], bool]:
    """The columns and the text literals of an expression, and True if it tests parts of texts. The texts of such tests are left out."""
    literals = {node.value for node in walk(expr) if isinstance(node, Literal) and isinstance(node.value, bytes)}
    return columns(expr), literals, any(isinstance(node, TextTest) for node in walk(expr))


def _is_common(dictionaries: list[pa.Array], literals: set[bytes]) -> bool:
    """True if the columns already share a dictionary that contains the literals."""
    first = dictionaries[0]
    if first.type != pa.large_binary() or any(each is not first for each in dictionaries):
        return False
    return not literals or pc.index_in(pa.array(sorted(literals), pa.large_binary()), first).null_count == 0


def literal_code(value: bytes, texts: pa.Array) -> int:
    """The rank of a text literal in a dictionary that contains it."""
    return int(pc.index_in(pa.scalar(value, texts.type), texts).as_py())


def is_one_sided(expr: Expr) -> str | None:
    """The side that the expression reads; None if it reads both or none."""
    found = {node.side for node in walk(expr) if isinstance(node, Column)}
    return found.pop() if len(found) == 1 else None
