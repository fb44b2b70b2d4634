"""The pandas interfaces: frames in and out, as ``transformWithStateInPandas`` and ``applyInPandasWithState`` have them."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from itertools import chain, repeat
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T

from headrace.errors import ProcessorError
from headrace.spark.types import to_arrow
from headrace.spark.user_state.conversion import array_of, frame_columns, from_pandas
from headrace.spark.user_state.lazy import Columns, lazy_frame, lazy_values
from headrace.spark.user_state.rows import iterated

_INTEGERS: frozenset[type] = frozenset((int, np.int8, np.int16, np.int32, np.int64, type(None)))
_FLOATS: frozenset[type] = _INTEGERS | {float, np.float32, np.float64}
_DIRECT: dict[type[T.DataType], frozenset[type]] = {
    **dict.fromkeys((T.ByteType, T.ShortType, T.IntegerType, T.LongType), _INTEGERS),
    **dict.fromkeys((T.FloatType, T.DoubleType), _FLOATS),
    T.StringType: frozenset((str, type(None))),
    T.BooleanType: frozenset((bool, np.bool_, type(None))),
    T.BinaryType: frozenset((bytes, type(None))),
    T.DateType: frozenset((datetime.date, type(None))),
    T.DecimalType: frozenset((Decimal, type(None))),
}
"""By type of an output column: the Python types whose values become the same column without pandas in between."""


class FrameGroups:
    """The rows of a batch as frames, one group per key. Long groups come in several frames."""

    def __init__(self, schema: T.StructType, columns: list[pa.Array], starts: Any, zone: str, rows_max: int, widened: bool) -> None:
        fields = schema.fields
        arrays = {f.name: array_of(column, f.dataType, zone, widened) for f, column in zip(fields, columns, strict=True)}
        self._columns = Columns(arrays, starts)
        self._ends = [*starts.tolist(), len(columns[0]) if columns else 0]
        self._rows_max = rows_max

    def of(self, group: int) -> Iterator[Any]:
        """The frames of a group."""
        begin, end = self._ends[group], self._ends[group + 1]
        if end - begin <= self._rows_max:
            return iter((lazy_frame(self._columns, begin, end, group),))
        return (lazy_frame(self._columns, at, min(at + self._rows_max, end), -1) for at in range(begin, end, self._rows_max))


class KeyedFrames(FrameGroups):
    """The same with keys: Python values for processors, numpy's for functions with a group state."""

    def __init__(self, keys: list[pa.Array], key_schema: T.StructType, numpy_keys: bool, zone: str, *frames: Any) -> None:
        super().__init__(*frames)
        self._keys = key_tuples(keys, key_schema, zone, numpy_keys)

    def keys(self) -> list[Any]:
        """The key of each group: a tuple."""
        return self._keys


def key_tuples(keys: list[pa.Array], schema: T.StructType, zone: str, as_numpy: bool) -> list[tuple[Any, ...]]:
    """Keys as pandas code gets them."""
    return list(zip(*[_key_values(key, f.dataType, zone, as_numpy) for key, f in zip(keys, schema.fields, strict=True)], strict=True))


def _key_values(key: pa.Array, kind: T.DataType, zone: str, as_numpy: bool) -> list[Any]:
    if key.null_count and not isinstance(kind, T.TimestampType | T.TimestampNTZType):
        return list(key.to_pylist())
    array = array_of(key, kind, zone, widened=False)
    if array.dtype.kind in "mM":
        return list(pd.Series(array))
    return list(array) if as_numpy else list(array.tolist())


class FrameOutput:
    """Collects the frames that the user's code emits. Small lazy ones never become real."""

    def __init__(self, schema: T.StructType, zone: str, safe: bool, by_name: bool, name: str, where: str) -> None:
        self._schema, self._zone, self._safe, self._by_name = schema, zone, safe, by_name
        self._name, self._where = name, where
        self._frames: list[pd.DataFrame] = []

    def add(self, emitted: Any) -> None:
        """Take what a call returned: an iterator of frames."""
        if isinstance(emitted, pd.DataFrame):
            raise self._refused("an iterator of pandas frames", "a frame", "yield it, or return iter([frame])")
        for frame in iterated(emitted, "pandas frames", self._name, self._where):
            if not isinstance(frame, pd.DataFrame):
                raise self._refused("pandas frames", type(frame).__name__, "")
            self._frames.append(frame)

    def columns(self) -> list[pa.Array]:
        """All rows, as columns of the output."""
        if not self._frames:
            return [pa.array([], to_arrow(f.dataType)) for f in self._schema.fields]
        direct = self._direct() if self._by_name else None
        if direct is not None:
            return direct
        parts = [self._real(frames) for frames in _alike(self._frames)]
        return [pa.concat_arrays(list(column)) for column in zip(*parts, strict=True)]

    def _direct(self) -> list[pa.Array] | None:
        """The columns, if all frames are lazy and all values have types of which nothing changes on the way through pandas."""
        given = [lazy_values(frame) for frame in self._frames]
        fields = self._schema.fields
        if any(each is None for each in given):
            return None
        known: list[tuple[dict[str, Any], int]] = [each for each in given if each is not None]
        names = [f.name for f in fields]
        if not all(all(name in data for name in names) for data, _ in known):
            return None
        found = []
        for f in fields:
            values = list(chain.from_iterable(v if type(v := data[f.name]) is list else repeat(v, rows) for data, rows in known))
            column = self._column(values, f.dataType)
            if column is None:
                return None
            found.append(column)
        return found

    def _column(self, values: list[Any], kind: T.DataType) -> pa.Array | None:
        types = set(map(type, values))
        allowed = _DIRECT.get(type(kind))
        try:
            if allowed is not None and types <= allowed:
                return pa.array(values, to_arrow(kind), from_pandas=True)
            if isinstance(kind, T.TimestampType | T.TimestampNTZType) and types <= {datetime.datetime, pd.Timestamp, type(None)}:
                zones = {v.tzinfo is None for v in values if v is not None}
                return from_pandas(pd.Series(values), kind, self._zone, self._safe) if len(zones) == 1 else None
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # The long way gives the same column, or says what is wrong.
            return None
        return None

    def _real(self, frames: list[pd.DataFrame]) -> list[pa.Array]:
        whole = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
        return frame_columns(whole, self._schema, self._zone, self._safe, self._by_name, self._name, self._where)

    def _refused(self, wanted: str, found: str, hint: str) -> ProcessorError:
        return ProcessorError(f"{self._name}: what it gives back", where=self._where, wanted=wanted, found=found, hint=hint)


def _alike(frames: list[pd.DataFrame]) -> Iterator[list[pd.DataFrame]]:
    """Runs of frames with the same columns and types. Joining others would change their types."""
    run: list[pd.DataFrame] = []
    before: Any = None
    for frame in frames:
        kind = (tuple(frame.columns), tuple(frame.dtypes))
        if run and kind != before:
            yield run
            run = []
        run.append(frame)
        before = kind
    yield run
