"""Buffers that are used again: allocating memory for every temporary array costs more than the arithmetic on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from headrace.operators.vectors import Array, Values

SIZE_MIN = 16_384
"""For smaller arrays numpy's own allocation is as fast."""


class Scratch:
    """A pool of arrays. Each array has one owner at a time: the `Values` whose `owned` is True."""

    def __init__(self) -> None:
        self._free: dict[Any, list[Array]] = {}

    def result(self, dtype: np.dtype[Any], *operands: Values) -> Array | None:
        """An array for the result: one that an operand owns, if it fits, or else a buffer. None: let numpy allocate it."""
        shape = np.broadcast_shapes(*(each.values.shape for each in operands))
        if math.prod(shape) < SIZE_MIN:
            return None
        for each in operands:
            if each.owned and each.values.dtype == dtype and each.values.shape == shape:
                return each.values
        return self.take(shape, dtype)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array | None:
        size = math.prod(shape)
        if size < SIZE_MIN:
            return None
        free = self._free.setdefault(dtype, [])
        buffer = free.pop() if free else np.empty(size, dtype)
        if buffer.size < size:
            buffer = np.empty(size, dtype)
        return buffer[:size].reshape(shape)

    def give_owned(self, *values: Values, but: Array | None = None) -> None:
        """Return the buffers of consumed operands to the pool, except the one that holds the result."""
        for each in values:
            if each.owned and each.values is not but:
                self.give(each.values)

    def give(self, array: Array) -> None:
        buffer = array.base
        if isinstance(buffer, np.ndarray) and buffer.ndim == 1 and buffer.size >= SIZE_MIN:
            self._free.setdefault(buffer.dtype, []).append(buffer)
