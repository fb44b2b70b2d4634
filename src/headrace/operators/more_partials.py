"""Partial aggregates beyond sums and extremes: moments of higher order and of two variables, bits, and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.partials import Floats, Partial, any_valid, from_numbers, numbers
from headrace.operators.sets import list_offsets
from headrace.state.layout import Indices


@dataclass(frozen=True)
class Lists(Partial):
    """Lists, put one after the other.

    The elements are the values of ``collect_list``, or buffers that Spark has filled. Merging buffers is Spark's work: it merges those of
    a list before it computes the result, and before the state is written where `operators.settled` is used.
    """

    element: pa.DataType
    columns = ("parts",)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.list_(self.element),)

    def neutral(self) -> tuple[Any, ...]:
        return ([],)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        # Rows are sorted by key, so the elements of a key are together already, and only the offsets change.
        lengths = pc.fill_null(pc.list_value_length(columns[0]), 0).to_numpy()
        return [pa.ListArray.from_arrays(list_offsets(np.add.reduceat(lengths, starts)), columns[0].flatten()).cast(self.types[0])]


@dataclass(frozen=True)
class Bits(Partial):
    """Integers combined bit by bit. It is null if there was no value."""

    type: pa.DataType
    both: bool = False
    """True for "and"."""
    differ: bool = False
    """True for "exclusive or"."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (self.type,)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("bits",)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        values, valid = numbers(columns[0])
        if valid is not None and self.both:
            values = np.where(valid, values, values.dtype.type(-1))
        step = np.bitwise_and if self.both else np.bitwise_xor if self.differ else np.bitwise_or
        return [from_numbers(step.reduceat(values, starts), any_valid(valid, starts), self.type)]


class _AroundMean:
    """The parts of each key, and how far their means are from the mean of all its rows."""

    def __init__(self, n: Floats, starts: Indices) -> None:
        self.n, self.starts, self.rows = n, starts, len(n)
        self.lengths = np.diff(np.append(starts, self.rows))
        self.total = np.add.reduceat(n, starts)
        first = np.minimum.reduceat(np.where(n > 0, np.arange(self.rows), self.rows), starts)
        self.first = np.minimum(first, self.rows - 1)

    def means(self, mean: Floats) -> tuple[Floats, Floats]:
        """The mean of each key, and the distance of each part's mean from it.

        Means are relative to one of them, so that equal values have moments of exactly 0, and large values do not overflow.
        """
        base = np.where(self.total > 0, mean[self.first], 0.0)
        off = np.where(self.n > 0, mean - np.repeat(base, self.lengths), 0.0)
        shift = np.where(self.total > 0, self.sum(self.n * off) / self.total, 0.0)
        return base + shift, np.where(self.n > 0, off - np.repeat(shift, self.lengths), 0.0)

    def sum(self, values: Floats) -> Floats:
        """The sum over the parts of each key that have rows."""
        return np.asarray(np.add.reduceat(np.where(self.n > 0, values, 0.0), self.starts), dtype=np.float64)


@dataclass(frozen=True)
class HigherMoments(Partial):
    """Count, mean, and sums of the second to fourth powers of the differences from the mean, for all parts of a key at once.

    If ``d`` is the distance of a part's mean from the mean of all rows, a part adds m2 + n d^2 to the second moment,
    m3 + 3 d m2 + n d^3 to the third, and m4 + 4 d m3 + 6 d^2 m2 + n d^4 to the fourth.
    """

    fourth: bool
    """False: only up to the third."""

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(),) * (5 if self.fourth else 4)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("n", "mean", "m2", "m3", "m4")[: len(self.types)]

    def neutral(self) -> tuple[Any, ...]:
        return (0.0,) * len(self.types)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        n, mean, m2, m3, *rest = (_floats(c) for c in columns)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            around = _AroundMean(n, starts)
            merged, d = around.means(mean)
            found = [around.total, merged, around.sum(m2 + n * d * d), around.sum(m3 + 3 * d * m2 + n * d * d * d)]
            found += [around.sum(m4 + 4 * d * m3 + 6 * d * d * m2 + n * d * d * d * d) for m4 in rest]
        return [pa.array(each, pa.float64()) for each in found]


@dataclass(frozen=True)
class CoMoments(Partial):
    """Count, both means, and sums of products of the differences from them: of both variables, and of each with itself if ``squares``."""

    squares: bool

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return (pa.float64(),) * (6 if self.squares else 4)

    @property
    def columns(self) -> tuple[str, ...]:
        return ("n", "mean of x", "mean of y", "products", "squares of x", "squares of y")[: len(self.types)]

    def neutral(self) -> tuple[Any, ...]:
        return (0.0,) * len(self.types)

    def merge(self, columns: list[pa.Array], starts: Indices) -> list[pa.Array]:
        n, mean_x, mean_y, products, *squares = (_floats(c) for c in columns)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            around = _AroundMean(n, starts)
            (x, dx), (y, dy) = around.means(mean_x), around.means(mean_y)
            found = [around.total, x, y, around.sum(products + n * dx * dy)]
            found += [around.sum(each + n * d * d) for each, d in zip(squares, (dx, dy), strict=False)]
        return [pa.array(each, pa.float64()) for each in found]


def _floats(column: pa.Array) -> npt.NDArray[np.float64]:
    return np.asarray(numbers(column)[0], dtype=np.float64)
