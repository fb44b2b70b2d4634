"""Lazy frames and series against real ones: whatever is asked of them, they answer the same."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from headrace.errors import ProcessorError
from headrace.spark.user_state.frames import FrameOutput
from headrace.spark.user_state.lazy import Columns, LazyFrame, LazyResult, lazy_frame, lazy_results

ARRAYS = {
    "n": np.array([3, -1, 4, 1, 5, 9, 2, 6], dtype=np.int64),
    "x": np.array([0.1, np.nan, 2.5, -1.0, 0.2, 0.3, 1e300, 4.0]),
    "small": np.arange(8, dtype=np.int32),
    "flag": np.array([True, False] * 4),
    "word": np.array(["a", None, "c", "d", "e", "f", "g", "h"], dtype=object),
    "at": pd.to_datetime(["2024-01-01", None] * 4).to_numpy(),
    "not a name": np.arange(8, dtype=np.int64),
}
RANGES = [(0, 3), (3, 4), (4, 8)]
LAZY: dict[str, Callable[[Any], Any]] = {
    "length": len,
    "shape": lambda f: f.shape,
    "empty": lambda f: f.empty,
    "sum": lambda f: f["n"].sum(),
    "sum of attribute": lambda f: f.n.sum(),
    "least": lambda f: (f["n"].min(), f["small"].max()),
    "iteration": lambda f: list(f["n"]) + list(f["word"]) + list(f["flag"]),
    "list": lambda f: f["x"].tolist() + f["word"].to_list(),
    "first": lambda f: (f["n"].iloc[0], f["word"].iloc[-1], f["x"].iloc[0], len(f["n"])),
}
FILLING: dict[str, Callable[[Any], Any]] = {
    "floats": lambda f: (f["x"].sum(), f["x"].min(), f["x"].max(), f["flag"].sum(), f["small"].sum()),
    "tuples": lambda f: list(f[["n", "word"]].itertuples()),
    "records": lambda f: f.drop(columns="at").to_dict("records"),
    "dict": lambda f: f.to_dict(),
    "mean": lambda f: (f["n"].mean(), f["n"].std(), f["x"].count(), f["word"].nunique()),
    "times": lambda f: (f["at"].max(), list(f["at"]), f["at"].iloc[0]),
    "values": lambda f: (f["n"].values.tolist(), f["n"].to_numpy().dtype),
    "dtypes": lambda f: f.dtypes.to_dict(),
    "columns": lambda f: list(f.columns),
    "filter": lambda f: f[f["n"] > 1].to_dict("list"),
    "groups": lambda f: f.groupby("flag")["n"].sum().to_dict(),
    "sort": lambda f: f.sort_values("n")["n"].tolist(),
    "concat": lambda f: pd.concat([f, f])["n"].tolist(),
    "iterrows": lambda f: [(i, row["n"], row["word"]) for i, row in f.iterrows()],
    "apply": lambda f: f["n"].apply(lambda v: v + 1).tolist(),
    "arithmetic": lambda f: (f["n"] * 2 + f["small"]).tolist(),
    "numpy": lambda f: (int(np.sum(f["n"])), np.asarray(f["n"]).tolist()),
    "copy": lambda f: copy.deepcopy(f)["n"].tolist(),
    "pickle": lambda f: pickle.loads(pickle.dumps(f))["n"].tolist() + pickle.loads(pickle.dumps(f["x"])).tolist(),
    "text": str,
    "axis": lambda f: f["n"].sum(skipna=False),
    "slice": lambda f: f.iloc[0]["n"] + f["n"].iloc[0:1].sum(),
    "rename": lambda f: list(f.rename(columns={"n": "m"}).columns),
    "merge": lambda f: len(f.merge(f, on="n")),
}


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        # Pandas makes a new class for each call of itertuples.
        kinds = (getattr(each, "_fields", type(each)) for each in (a, b))
        return next(kinds) == next(kinds) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    return type(a) is type(b) and (a == b or (pd.isna(a) and pd.isna(b)))


@pytest.mark.parametrize("name", [*LAZY, *FILLING])
def test_a_lazy_frame_answers_as_a_real_one_does(name: str) -> None:
    ask = {**LAZY, **FILLING}[name]
    columns = Columns(ARRAYS, np.array([begin for begin, _ in RANGES]))
    for group, (begin, end) in enumerate(RANGES):
        lazy = lazy_frame(columns, begin, end, group)
        real = pd.DataFrame({name: array[begin:end] for name, array in ARRAYS.items()})
        assert isinstance(lazy, pd.DataFrame)
        assert equal(ask(lazy), ask(real)), (group, ask(real))
        assert name not in LAZY or type(lazy) is LazyFrame, "it has become real"
        # In the end it is a plain frame, and equal to the real one.
        pd.testing.assert_frame_equal(lazy, real)
        assert type(lazy) is pd.DataFrame


def test_what_user_code_changes_is_only_in_its_own_frame() -> None:
    columns = Columns(ARRAYS, np.array([0, 3, 4]))
    frame, before = lazy_frame(columns, 0, 3, 0), ARRAYS["n"].copy()
    frame["n"] = frame["n"] + 1
    frame.loc[0, "x"] = 7.0
    series = lazy_frame(columns, 0, 3, 0)["n"]
    series.iloc[0] = 100
    series[1] = 101
    assert series.tolist() == [100, 101, 4]
    assert frame["n"].tolist() == [4, 0, 5]
    assert (ARRAYS["n"] == before).all()
    assert ARRAYS["x"][0] == 0.1


def test_a_result_is_lazy_only_where_that_cannot_be_seen() -> None:
    with lazy_results():
        values = [1, 2]
        lazy = pd.DataFrame({"k": values, "s": ("a", "b"), "one": 5})
        values.append(3)
        kinds = [
            type(lazy),
            type(pd.DataFrame({"k": [1]}, index=[0])),
            type(pd.DataFrame({"k": pd.Series([1])})),
            type(pd.DataFrame({"k": [1]}, dtype="float64")),
            type(pd.DataFrame([{"k": 1}])),
            type(pd.DataFrame({"k": list(range(1_000))})),
            type(pd.DataFrame()),
        ]
        with pytest.raises(ValueError, match="same length"):
            pd.DataFrame({"a": [1], "b": [1, 2]})
        with pytest.raises(ValueError, match="scalar values"):
            pd.DataFrame({"a": 1})
    assert kinds == [LazyResult, LazyResult, *[pd.DataFrame] * 5]
    assert type(pd.DataFrame({"k": [1]})) is pd.DataFrame
    pd.testing.assert_frame_equal(lazy, pd.DataFrame({"k": [1, 2], "s": ("a", "b"), "one": 5}))


RESULT = T.StructType(
    [
        T.StructField("n", T.LongType()),
        T.StructField("x", T.DoubleType()),
        T.StructField("s", T.StringType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("items", T.ArrayType(T.LongType())),
    ]
)
FRAMES: list[Callable[[], pd.DataFrame]] = [
    lambda: pd.DataFrame({"n": [1], "x": [2], "s": ["a"], "at": [pd.Timestamp("2024-01-01 12:00")], "items": [[1, 2]]}),
    lambda: pd.DataFrame(
        {"x": [float("nan"), None], "n": [None, 3], "s": None, "at": pd.Timestamp("2024-06-01", tz="UTC"), "items": [None, []]}
    ),
    lambda: pd.DataFrame(
        {"n": [np.int64(4)], "x": [np.float64(1.5)], "s": ["b"], "at": [None], "items": [np.array([7])], "more": ["ignored"]}
    ),
    lambda: pd.DataFrame({"n": [5.0, 6.9], "x": [1, 2], "s": ["c", "d"], "at": [None, None], "items": [(1,), None]}),
    lambda: pd.DataFrame(columns=["n", "x", "s", "at", "items"]),
    lambda: pd.DataFrame(),
]


@pytest.mark.parametrize("chosen", [[0], [1], [2], [3], [4], [5], [0, 1, 2, 3, 4, 5], [3, 2, 1, 0]])
def test_results_become_the_columns_that_pyspark_makes_of_them(chosen: list[int]) -> None:
    conversion = pytest.importorskip("pyspark.sql.conversion")
    if not hasattr(conversion, "PandasToArrowConversion"):
        pytest.skip("this PySpark converts elsewhere")
    wanted: list[dict[str, Any]] = []
    for at in chosen:
        batch = conversion.PandasToArrowConversion.convert(
            FRAMES[at](), RESULT, timezone="America/New_York", safecheck=False, arrow_cast=True, assign_cols_by_name=True
        )
        wanted += batch.to_pylist()
    output = FrameOutput(RESULT, "America/New_York", False, True, "Mine", "here")
    with lazy_results():
        output.add(iter([FRAMES[at]() for at in chosen]))
    columns = output.columns()
    found = [dict(zip(RESULT.names, row, strict=True)) for row in zip(*[column.to_pylist() for column in columns], strict=True)]
    assert found == wanted
    assert columns[3].type == pa.timestamp("us", tz="UTC")


def collected(output: FrameOutput, frame: Any) -> list[pa.Array]:
    output.add(iter([frame]))
    return output.columns()


def test_frames_that_do_not_fit_are_refused() -> None:
    for frame, message in (
        (pd.DataFrame({"n": [1]}), "a frame with the columns n, x, s, at, items; found n"),
        (pd.DataFrame({"n": ["no number"], "x": [1], "s": [""], "at": [None], "items": [None]}), "bigint in column 'n'"),
        ("text", "pandas frames; found str"),
    ):
        output = FrameOutput(RESULT, "UTC", False, True, "Mine", "here")
        with pytest.raises(ProcessorError, match=message):
            collected(output, frame)
    output = FrameOutput(RESULT, "UTC", False, True, "Mine", "here")
    with pytest.raises(ProcessorError, match="an iterator of pandas frames; found None; yield the rows"):
        output.add(None)
    with pytest.raises(ProcessorError, match="yield it"):
        output.add(FRAMES[0]())
