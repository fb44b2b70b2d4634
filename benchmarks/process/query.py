"""A running count and sum by key: for Headrace in both forms, and for each of Spark's ways. Spark's also run on Headrace as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle  # type: ignore[attr-defined]

import headrace as hr
from benchmarks.aggregate.query import columns, source
from benchmarks.process.bench import BY_ROWS, IN_PANDAS, PER_KEY, REAL_FRAMES, WITH_STATE

OUTPUT = "key long, n long, s long"
STATE = "n long, s long"
VARIABLE = "totals"

# Pickled by value: workers need not be able to import the benchmarks.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

__all__ = ["columns", "query", "source", "write"]


class Vectorised(hr.Processor):
    def process(self, rows: pa.Table, state: hr.KeyedState) -> pa.Table:
        new = rows.group_by("key").aggregate([("v", "count"), ("v", "sum")])
        old = state.get(new)
        n = pc.add(new["v_count"], pc.fill_null(old["n"], 0))
        s = pc.add(new["v_sum"], pc.fill_null(old["s"], 0))
        totals = pa.table({"key": new["key"], "n": n, "s": s})
        state.put(totals)
        return totals


class PerKey(hr.KeyProcessor):
    def process(self, key: Any, rows: Any, state: Any) -> Any:
        state.n = (state.n or 0) + len(rows)
        state.s = (state.s or 0) + sum([row.v for row in rows])
        return ((key, state.n, state.s),)


class InPandas(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState(VARIABLE, STATE)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, s = self.totals.get() or (0, 0)
        for frame in rows:
            n += len(frame)
            s += int(frame["v"].sum())
        self.totals.update((n, s))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})

    def close(self) -> None:
        pass


class InRealFrames(InPandas):
    """Selects rows, so that frames are made and filled; and gives back a frame of series, which is never lazy."""

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, s = self.totals.get() or (0, 0)
        for frame in rows:
            known = frame[frame["v"].notna()]
            n += len(known)
            s += int(known["v"].sum())
        self.totals.update((n, s))
        yield pd.DataFrame({"key": pd.Series([key[0]]), "n": [n], "s": [s]})


class ByRows(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState(VARIABLE, STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, s = self.totals.get() or (0, 0)
        for row in rows:
            n += 1
            s += row.v
        self.totals.update((n, s))
        yield Row(key=key[0], n=n, s=s)

    def close(self) -> None:
        pass


def with_state(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    n, s = state.get if state.exists else (0, 0)
    for frame in frames:
        n += len(frame)
        s += int(frame["v"].sum())
    state.update((n, s))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "s": [s]})


def query(rows: Any, params: dict[str, Any]) -> Any:
    grouped, form = rows.groupBy("key"), params["form"]
    if form in (IN_PANDAS, REAL_FRAMES):
        processor = InPandas() if form == IN_PANDAS else InRealFrames()
        return grouped.transformWithStateInPandas(processor, OUTPUT, "Update", "None")
    if form == BY_ROWS:
        return grouped.transformWithState(ByRows(), OUTPUT, "Update", "None")
    if form == WITH_STATE:
        return grouped.applyInPandasWithState(with_state, OUTPUT, STATE, "Update", "NoTimeout")
    return grouped.process(PerKey() if form == PER_KEY else Vectorised(), OUTPUT, state=STATE)


def write(writer: Any, params: dict[str, Any], folder: Path) -> Any:
    return writer.outputMode("update").format("noop")
