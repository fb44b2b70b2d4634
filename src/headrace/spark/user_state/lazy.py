"""Pandas frames and series that are only filled when somebody looks.

Making a real frame takes 50 to 200 microseconds, as much as all else that is done for a key. Much code never needs one: it takes the
length, a sum or a value of a column, and gives back a small frame made of a dict. So frames begin as objects that know where their values
are. What they answer themselves is listed in their classes. As soon as anything else of pandas is used, the object becomes a plain
``DataFrame`` or ``Series``, of exactly that class, and all further work is pandas' own.

    frame = LazyFrame           len(frame), frame["x"]   -> no pandas
    frame.groupby("x")          -> pandas asks for frame._mgr -> the frame fills itself and its class is DataFrame
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

Array = np.ndarray[Any, Any]

LAZY_VALUES_MAX = 256
"""A frame that user code makes of longer columns is made at once."""
_SCALARS = (str, int, float, bool, type(None))
_original_init = pd.DataFrame.__init__


class Columns:
    """The columns of all rows of a batch as arrays, in which each key has a range."""

    def __init__(self, arrays: dict[str, Array], starts: Array) -> None:
        self.arrays = arrays
        self._starts = starts
        self._sums: dict[str, list[Any]] = {}

    def sum_of(self, name: str, group: int) -> Any:
        """The sum of an integer column over a group. All groups are summed at once, the first time."""
        sums = self._sums.get(name)
        if sums is None:
            sums = self._sums[name] = list(np.add.reduceat(self.arrays[name], self._starts))
        return sums[group]


def lazy_frame(columns: Columns, begin: int, end: int, group: int) -> pd.DataFrame:
    """A frame of the rows in a range. ``group`` is the number of the key if the range holds all its rows, else -1."""
    frame = _new(LazyFrame)
    frame.__dict__["_lazy"] = (columns, begin, end, group)
    return frame


_new = object.__new__


class LazyFrame(pd.DataFrame):  # type: ignore[misc]
    """A frame of rows that a task got. Without pandas: ``len``, ``shape``, ``empty``, columns by name, ``itertuples``, records."""

    def __len__(self) -> int:
        _, begin, end, _ = self.__dict__["_lazy"]
        return int(end - begin)

    def __getitem__(self, key: Any) -> Any:
        columns, begin, end, group = self.__dict__["_lazy"]
        if type(key) is str and key in columns.arrays:
            series = _new(LazySeries)
            series.__dict__["_lazy"] = (columns, key, begin, end, group)
            return series
        return _filled_frame(self)[key]

    @property
    def shape(self) -> tuple[int, int]:
        columns, begin, end, _ = self.__dict__["_lazy"]
        return int(end - begin), len(columns.arrays)

    @property
    def empty(self) -> bool:
        return not len(self) or not self.__dict__["_lazy"][0].arrays

    def itertuples(self, index: bool = True, name: str | None = "Pandas") -> Any:
        columns, begin, end, _ = self.__dict__["_lazy"]
        if not all(map(_is_plain, columns.arrays.values())):
            return _filled_frame(self).itertuples(index, name)
        lists: list[Any] = [array[begin:end].tolist() for array in columns.arrays.values()]
        names = list(columns.arrays)
        if index:
            lists, names = [range(end - begin), *lists], ["Index", *names]
        rows = zip(*lists, strict=True)
        return rows if name is None else map(_tuple_class(name, tuple(names))._make, rows)

    def to_dict(self, orient: str = "dict", **more: Any) -> Any:
        columns, begin, end, _ = self.__dict__["_lazy"]
        if orient != "records" or more or not all(map(_is_plain, columns.arrays.values())):
            return _filled_frame(self).to_dict(orient, **more)
        names = list(columns.arrays)
        lists = [array[begin:end].tolist() for array in columns.arrays.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]

    def __getattr__(self, name: str) -> Any:
        lazy = self.__dict__.get("_lazy")
        if lazy is not None and name in lazy[0].arrays:
            return self[name]
        return getattr(_filled_frame(self), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _filled_frame(self).__reduce_ex__(protocol)


class LazySeries(pd.Series):  # type: ignore[misc]
    """A column of a `LazyFrame`. Without pandas: ``len``, iteration, lists, ``iloc[i]``, and ``sum``, ``min``, ``max`` of numbers."""

    def __len__(self) -> int:
        _, _, begin, end, _ = self.__dict__["_lazy"]
        return int(end - begin)

    def __iter__(self) -> Iterator[Any]:
        array = self._array()
        return iter(array.tolist()) if _is_plain(array) else iter(_filled_series(self))

    def tolist(self) -> list[Any]:
        array = self._array()
        return list(array.tolist() if _is_plain(array) else _filled_series(self).tolist())

    to_list = tolist

    def sum(self, *args: Any, **more: Any) -> Any:
        columns, name, _, _, group = self.__dict__["_lazy"]
        array = self._array()
        if args or more or array.dtype.kind not in "if":
            return _filled_series(self).sum(*args, **more)
        if array.dtype == np.int64 and group >= 0:
            return columns.sum_of(name, group)
        return self._unless_nan(array.sum(dtype=np.int64 if array.dtype.kind == "i" else None), "sum")

    def min(self, *args: Any, **more: Any) -> Any:
        return self._least("min", args, more)

    def max(self, *args: Any, **more: Any) -> Any:
        return self._least("max", args, more)

    def _least(self, method: str, args: Any, more: Any) -> Any:
        array = self._array()
        if args or more or array.dtype.kind not in "if" or not len(array):
            return getattr(_filled_series(self), method)(*args, **more)
        return self._unless_nan(getattr(array, method)(), method)

    def _unless_nan(self, found: Any, method: str) -> Any:
        """Pandas skips NaN, numpy does not."""
        return found if found == found else getattr(_filled_series(self), method)()

    @property
    def iloc(self) -> Any:
        array = self._array()
        return _At(self, array) if array.dtype.kind in "ifbO" else _filled_series(self).iloc

    def _array(self) -> Array:
        columns, name, begin, end, _ = self.__dict__["_lazy"]
        array: Array = columns.arrays[name][begin:end]
        return array

    def __getattr__(self, name: str) -> Any:
        return getattr(_filled_series(self), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _filled_series(self).__reduce_ex__(protocol)


class _At:
    """``series.iloc`` of a lazy series. A single position needs no pandas."""

    def __init__(self, series: pd.Series, array: Array) -> None:
        self._series, self._array = series, array

    def __getitem__(self, at: Any) -> Any:
        return self._array[at] if type(at) is int and -len(self._array) <= at < len(self._array) else self._filled()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        self._filled()[at] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filled(), name)

    def _filled(self) -> Any:
        return (_filled_series(self._series) if type(self._series) is LazySeries else self._series).iloc


class LazyResult(pd.DataFrame):  # type: ignore[misc]
    """A frame that user code made of a dict of short lists. Without pandas: ``len``, and what collects results."""

    def __len__(self) -> int:
        return int(self.__dict__["_lazy"][1])

    def __getattr__(self, name: str) -> Any:
        return getattr(_filled_result(self), name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _filled_result(self).__reduce_ex__(protocol)


def _filled_frame(frame: pd.DataFrame) -> pd.DataFrame:
    lazy = frame.__dict__.pop("_lazy", None)
    if lazy is None:
        raise AttributeError("a frame that is being filled")
    columns, begin, end, _ = lazy
    object.__setattr__(frame, "__class__", pd.DataFrame)
    _original_init(frame, {name: array[begin:end] for name, array in columns.arrays.items()})
    return frame


def _filled_series(series: pd.Series) -> pd.Series:
    lazy = series.__dict__.pop("_lazy", None)
    if lazy is None:
        raise AttributeError("a series that is being filled")
    columns, name, begin, end, _ = lazy
    object.__setattr__(series, "__class__", pd.Series)
    pd.Series.__init__(series, columns.arrays[name][begin:end].copy(), name=name)
    return series


def _filled_result(frame: pd.DataFrame) -> pd.DataFrame:
    lazy = frame.__dict__.pop("_lazy", None)
    if lazy is None:
        raise AttributeError("a frame that is being filled")
    data, _, index = lazy
    object.__setattr__(frame, "__class__", pd.DataFrame)
    _original_init(frame, data, index=index)
    return frame


def lazy_values(frame: pd.DataFrame) -> tuple[dict[str, Any], int] | None:
    """The columns of a frame that is still lazy, and its length: per column a list, or a scalar for all rows."""
    if type(frame) is not LazyResult:
        return None
    data, rows, _ = frame.__dict__["_lazy"]
    return data, rows


def _init(self: pd.DataFrame, data: Any = None, index: Any = None, columns: Any = None, dtype: Any = None, copy: Any = None) -> None:
    if type(self) is pd.DataFrame and type(data) is dict and columns is None and dtype is None and copy is None:
        one_row = type(index) is list and len(index) == 1
        rows = 1 if one_row else -1
        kept: dict[str, Any] = {}
        for name, values in data.items():
            kind = type(values)
            if type(name) is not str:
                break
            if kind is list or kind is tuple:
                if rows == -1:
                    rows = len(values)
                if len(values) != rows:
                    break
                # The user may change the list afterwards, and a frame would not see that.
                kept[name] = list(values)
            elif kind in _SCALARS:
                kept[name] = values
            else:
                break
        else:
            if rows >= 0 and rows * len(kept) <= LAZY_VALUES_MAX and kept and (index is None or one_row):
                self.__dict__["_lazy"] = (kept, rows, index)
                object.__setattr__(self, "__class__", LazyResult)
                return
    _original_init(self, data, index, columns, dtype, copy)


@contextmanager
def lazy_results() -> Iterator[None]:
    """Inside, frames that are made of a dict of short lists are lazy. Only for the time in which user code runs in a task."""
    constructor: Any = pd.DataFrame
    constructor.__init__ = _init
    try:
        yield
    finally:
        constructor.__init__ = _original_init


def _is_plain(array: Array) -> bool:
    """True if pandas gives the values of this array to Python as ``tolist`` does."""
    return array.dtype.kind in "ifbO"


@cache
def _tuple_class(name: str, names: tuple[str, ...]) -> Any:
    return namedtuple(name, names, rename=True)
