"""Pandas columns from Arrow and back, by PySpark's own converters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import _create_converter_from_pandas, _create_converter_to_pandas

from headrace.errors import ProcessorError
from headrace.spark.types import to_arrow

_OPTIONS = {"date_as_object": True, "coerce_temporal_nanoseconds": True}


def to_pandas(column: pa.Array, kind: T.DataType, zone: str) -> pd.Series:
    """A column as PySpark gives it to pandas code."""
    convert = _create_converter_to_pandas(
        kind, nullable=True, timezone=zone, struct_in_pandas="dict", error_on_duplicated_field_names=False
    )
    return convert(column.to_pandas(**_OPTIONS))


def array_of(column: pa.Array, kind: T.DataType, zone: str, widened: bool) -> np.ndarray[Any, Any]:
    """The same as a numpy array. ``widened``: numbers have 64 bits, since PySpark makes the frames from Python's numbers."""
    array: np.ndarray[Any, Any] = to_pandas(column, kind, zone).to_numpy()
    if widened and array.dtype.kind in "if" and array.dtype.itemsize < 8:
        return array.astype(np.int64 if array.dtype.kind == "i" else np.float64)
    return array


def from_pandas(series: pd.Series, kind: T.DataType, zone: str, safe: bool) -> pa.Array:
    """A column that pandas code gave, in the kernel's Arrow type. Raises what Arrow raises."""
    if isinstance(series.dtype, pd.CategoricalDtype):
        series = series.astype(series.dtype.categories.dtype)
    convert = _create_converter_from_pandas(kind, timezone=zone, error_on_duplicated_field_names=False)
    series = convert(series)
    wanted = to_arrow(kind)
    mask = None if hasattr(series.array, "__arrow_array__") else series.isnull()
    try:
        found = pa.Array.from_pandas(series, mask=mask, type=wanted, safe=safe)
    except pa.ArrowInvalid:
        found = pa.Array.from_pandas(series, mask=mask).cast(wanted, safe=safe)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def frame_columns(frame: pd.DataFrame, schema: T.StructType, zone: str, safe: bool, by_name: bool, name: str, where: str) -> list[pa.Array]:
    """The columns of a real frame that user code gave back, by name if they have names."""
    if not len(frame.columns) and not len(frame):
        return [pa.array([], to_arrow(f.dataType)) for f in schema.fields]
    named = by_name and any(isinstance(column, str) for column in frame.columns)
    wanted = f"a frame with the columns {', '.join(schema.names)}"
    if (named and any(f.name not in frame.columns for f in schema.fields)) or len(frame.columns) < len(schema.fields):
        found = ", ".join(map(str, frame.columns)) or "no columns"
        raise ProcessorError(f"{name}: a frame to emit", where=where, wanted=wanted, found=found)
    columns = []
    for at, f in enumerate(schema.fields):
        series = frame[f.name] if named else frame.iloc[:, at]
        try:
            columns.append(from_pandas(series, f.dataType, zone, safe))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AssertionError) as refused:
            raise ProcessorError(
                f"{name}: a frame to emit",
                where=where,
                wanted=f"{f.dataType.simpleString()} in column {f.name!r}",
                found=f"{series.dtype}: {refused}",
            ) from None
    return columns
