"""Partial aggregates and how they merge.

Each aggregate function keeps one or more *partial* columns. The partials of two sets of rows merge into the partial of both sets together.
That is all the engine needs to split, move and combine state. A partial has the layout of Spark's own aggregation buffer, so that Spark
can compute the result from it.

A further partial is a class here and its name in `PARTIALS` (`operators/description.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import QueryError
from headrace.operators import decimals, ordering, sets
from headrace.state.layout import Combine, Indices

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


class Partial(ABC):
    """The partial columns of one aggregate function."""

    @property
    @abstractmethod
    def types(self) -> tuple[pa.DataType, ...]:
        """The type of each column."""

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """What each column holds, in a word or two."""

    @abstractmethod
    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        """One row for each key. Sorted rows come in, and the index at which each key begins."""

    def neutral(self) -> tuple[Any, ...]:
        """The partial of no rows: merging it with another gives the other."""
        return (None,) * len(self.types)

    def labels(self, calls: tuple[str, ...]) -> list[str]:
        """Readable names for the columns, from the texts of the aggregate calls that use the partial."""
        return [calls[0]] if len(self.columns) == 1 else [f"{calls[0]} {name}" for name in self.columns]


@dataclass(frozen=True)
class Count(Partial):
    """A count of rows. It is never null."""

    types: tuple[pa.DataType, ...] = (pa.int64(),)
    columns = ("count",)

    def neutral(self) -> tuple[Any, ...]:
        return (0,)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        return [pa.array(np.add.reduceat(columns[0].to_numpy(), starts))]


@dataclass(frozen=True)
class Sum(Partial):
    """A sum of integers, floats or intervals. It is null if there was no value."""

    type: pa.DataType
    checked: bool = True
    """True if an integer overflow is an error (Spark's ANSI mode); False if it wraps."""
    columns = ("sum",)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.type,)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        values, valid = numbers(columns[0])
        total = np.add.reduceat(values, starts)
        if self.checked and values.dtype.kind == "i":
            _check_overflow(values, total, starts)
        return [from_numbers(total, any_valid(valid, starts), self.type)]


@dataclass(frozen=True)
class DecimalSum(Partial):
    """A sum of decimals, and a flag that says if there was no value yet, as in Spark. A null sum that is not empty has overflowed."""

    type: pa.DataType
    columns = ("sum", "is empty")

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.type, pa.bool_())

    def neutral(self) -> tuple[Any, ...]:
        return (None, True)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        total, empty = columns
        is_empty = empty.to_numpy(zero_copy_only=False)
        overflowed = total.is_null().to_numpy(zero_copy_only=False) & ~is_empty
        sums, too_large = decimals.sum_segments(total, starts)
        lost = np.logical_or.reduceat(overflowed, starts) | too_large
        nothing = np.logical_and.reduceat(is_empty, starts)
        return [decimals.with_nulls(sums, lost), pa.array(nothing)]


@dataclass(frozen=True)
class Extreme(Partial):
    """The least or greatest value by Spark's order, in which NaN is the greatest number. It is null if there was no value."""

    type: pa.DataType
    greatest: bool

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.type,)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("greatest" if self.greatest else "least",)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        column = columns[0]
        if not ordering.is_number_like(self.type):
            return [column.take(pa.array(ordering.extremes([column], starts, greatest=self.greatest), pa.int64()))]
        values, valid = numbers(column)
        if valid is not None:
            values = np.where(valid, values, _neutral(values.dtype, self.greatest))
        # NaN is the greatest number: fmin ignores it, and maximum returns it.
        least_or_greatest = np.maximum if self.greatest else np.fmin
        return [from_numbers(least_or_greatest.reduceat(values, starts), any_valid(valid, starts), self.type)]


@dataclass(frozen=True)
class Moments(Partial):
    """Count, mean, and sum of squared differences from the mean, merged by Chan's formula for all parts of a key at once."""

    types: tuple[pa.DataType, ...] = (pa.float64(), pa.float64(), pa.float64())
    columns = ("n", "mean", "m2")

    def neutral(self) -> tuple[Any, ...]:
        return (0.0, 0.0, 0.0)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        n, mean, m2 = (numbers(c)[0] for c in columns)
        rows = len(n)
        lengths = np.diff(np.append(starts, rows))
        total = np.add.reduceat(n, starts)
        # Means are relative to one of them, so that equal values have a variance of exactly 0, and large values do not overflow.
        first = np.minimum.reduceat(np.where(n > 0, np.arange(rows), rows), starts)
        base = np.where(total > 0, mean[np.minimum(first, rows - 1)], 0.0)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            off = np.where(n > 0, mean - np.repeat(base, lengths), 0.0)
            shift = np.where(total > 0, np.add.reduceat(n * off, starts) / total, 0.0)
            off = np.where(n > 0, off - np.repeat(shift, lengths), 0.0)
            merged_m2 = np.add.reduceat(np.where(n > 0, m2, 0.0), starts) + np.add.reduceat(n * off * off, starts)
            merged_mean = base + shift
        return [pa.array(total), pa.array(merged_mean), pa.array(merged_m2)]


@dataclass(frozen=True)
class Pick(Partial):
    """The value of the row with the least or greatest order. Rows with a null order are ignored.

    Columns: value, order. Among equal orders the least value is picked (the greatest one for the greatest order), so that the result does
    not depend on how rows were distributed.
    """

    value: pa.DataType
    order: pa.DataType
    greatest: bool
    columns = ("value", "order")

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.value, self.order)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        value, order = columns
        winners = pa.array(ordering.extremes([order, value], starts, greatest=self.greatest), pa.int64())
        return [value.take(winners), order.take(winners)]


@dataclass(frozen=True)
class PickRow(Partial):
    """Several values of the one row with the least or greatest order. Rows with a null order are ignored.

    Columns: the values, order, tie. `tie` is a hash of all values that the aggregation picks. It decides among equal orders. So all picks
    of an aggregation, also those with a filter, take the same row, however rows were distributed.
    """

    values: tuple[pa.DataType, ...]
    order: pa.DataType
    greatest: bool

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (*self.values, self.order, pa.int64())

    @property
    def columns(self) -> tuple[str, ...]:
        return (*("value" for _ in self.values), "order", "tie")

    def labels(self, calls: tuple[str, ...]) -> list[str]:
        # Each call picks one of the values.
        return [*(f"{call} value" for call in calls), f"{calls[0]} order", f"{calls[0]} tie"]

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        winners = pa.array(ordering.extremes(columns[-2:], starts, greatest=self.greatest), pa.int64())
        return [column.take(winners) for column in columns]


@dataclass(frozen=True)
class Distinct(Partial):
    """The set of distinct values, as a list in Spark's order."""

    element: pa.DataType
    columns = ("values",)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.list_(self.element),)

    def neutral(self) -> tuple[Any, ...]:
        return ([],)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        return [sets.union_segments(columns[0], starts)]


@dataclass(frozen=True)
class Registers(Partial):
    """The HyperLogLog++ registers that are not zero, as a list of ``index << 8 | rank``. Merging keeps the greatest rank of each index."""

    types: tuple[pa.DataType, ...] = (pa.list_(pa.int32()),)
    columns = ("registers",)

    def neutral(self) -> tuple[Any, ...]:
        return ([],)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        return [sets.union_registers(columns[0], starts)]


@dataclass(frozen=True)
class Both(Partial):
    """Two partials side by side."""

    first: Partial
    second: Partial

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (*self.first.types, *self.second.types)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.first.columns, *self.second.columns)

    def neutral(self) -> tuple[Any, ...]:
        return (*self.first.neutral(), *self.second.neutral())

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        return combine((self.first, self.second))(columns, starts)


def combine(partials: tuple[Partial, ...]) -> Combine:
    """The merge of all partial columns of an operator, for the state layer."""

    def merge(columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        merged: list[pa.Array] = []
        at = 0
        for partial in partials:
            width = len(partial.types)
            merged.extend(partial.merge(columns[at : at + width], starts))
            at += width
        return merged

    return merge


def numbers(column: pa.Array) -> tuple[npt.NDArray[Any], Mask | None]:
    """A column as a numpy array, with 0 for nulls, and a mask of the valid rows (None: all). Times become integers."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_temporal(column.type):
        column = column.cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
    if not column.null_count:
        return column.to_numpy(), None
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return column.fill_null(0).to_numpy(), valid


def from_numbers(values: npt.NDArray[Any], valid: Mask | None, kind: pa.DataType) -> pa.Array:
    """The reverse of ``numbers``."""
    mask = None if valid is None else ~valid
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64(), mask=mask).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(values.astype(np.bool_), mask=mask)
    return pa.array(values, kind, mask=mask)


def any_valid(valid: Mask | None, starts: Indices) -> Mask | None:
    """For each segment, True if it has a valid row; None if all rows are valid."""
    return None if valid is None else np.logical_or.reduceat(valid, starts)


def _neutral(kind: np.dtype[Any], greatest: bool) -> Any:
    """A value that never wins against a real one."""
    if kind.kind == "f":
        return -np.inf if greatest else np.nan
    info = np.iinfo(kind)
    return info.min if greatest else info.max


def _check_overflow(values: npt.NDArray[Any], total: npt.NDArray[Any], starts: Indices) -> None:
    """Raise an error if an integer sum has wrapped: then it is 2^64 away from the floating-point sum. Small values need no second sum."""
    if not len(values):
        return
    longest = int(np.diff(starts, append=len(values)).max())
    largest = max(abs(int(values.max())), abs(int(values.min())))
    if largest * longest <= np.iinfo(values.dtype).max:
        return
    about = np.add.reduceat(values.astype(np.float64), starts)
    info = np.iinfo(values.dtype)
    if bool(np.any(np.abs(about - total.astype(np.float64)) > float(info.max))):
        raise QueryError(
            "a sum of whole numbers must fit into 64 bits",
            where="sum",
            found="an overflow",
            hint="cast to decimal or double before summing, or set spark.sql.ansi.enabled to false to let it wrap",
        )
