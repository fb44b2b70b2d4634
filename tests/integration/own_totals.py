"""Running totals as users' own operators in both forms, and rows for them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

import headrace as hr

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

START = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k string, part int, ts timestamp, v long"


def rows(seed: int, count: int, begin_s: float = 0, length_s: float = 60, keys: int = 20) -> pa.Table:
    random = np.random.default_rng(seed)
    names = [None if k == 0 else f"key {k}" for k in random.integers(0, keys, count)]
    times = sorted(random.integers(int(begin_s * 1000), int((begin_s + length_s) * 1000), count).tolist())
    return pa.table(
        {
            "k": pa.array(names, pa.string()),
            "part": pa.array(random.integers(0, 2, count), pa.int32()),
            "ts": pa.array([START + timedelta(milliseconds=t) for t in times], pa.timestamp("us", tz="UTC")),
            "v": pa.array(random.integers(-100, 100, count), pa.int64()),
        }
    )


class Totals(hr.Processor):
    """Count and sum of each key, all keys at once."""

    def process(self, rows: pa.Table, state: Any) -> pa.Table:
        new = rows.group_by(["k", "part"]).aggregate([("v", "count"), ("v", "sum")])
        old = state.get(new)
        count = pc.add(new["v_count"], pc.fill_null(old["count"], 0))
        total = pc.add(new["v_sum"], pc.fill_null(old["total"], 0))
        totals = pa.table({"k": new["k"], "part": new["part"], "count": count, "total": total})
        state.put(totals)
        return totals


class TotalsPerKey(hr.KeyProcessor):
    """The same, key by key."""

    def process(self, key: Any, rows: Any, state: Any) -> Any:
        state.count = (state.count or 0) + len(rows)
        state.total = (state.total or 0) + sum(row.v for row in rows)
        yield key.k, key.part, state.count, state.total


class SparkTotals(StatefulProcessor):
    """The same as it would be written for Spark, for rows and for frames."""

    def __init__(self, pandas: bool) -> None:
        self.pandas = pandas

    def init(self, handle: Any) -> None:
        self.totals = handle.getValueState("totals", KEPT)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        count, total = self.totals.get() or (0, 0)
        for each in rows:
            count += len(each) if self.pandas else 1
            total += int(each["v"].sum()) if self.pandas else each.v
        self.totals.update((count, total))
        k, part = key
        frame = {"k": [k], "part": [part], "count": [count], "total": [total]}
        yield pd.DataFrame(frame) if self.pandas else Row(k=k, part=part, count=count, total=total)

    def close(self) -> None:
        pass


def group_totals(key: Any, frames: Any, state: Any) -> Any:
    """The same as a function with a group state."""
    count, total = state.getOption or (0, 0)
    for frame in frames:
        count, total = count + len(frame), total + int(frame["v"].sum())
    state.update((count, total))
    yield pd.DataFrame({"k": [key[0]], "part": [key[1]], "count": [count], "total": [total]})


OUT = "k string, part int, count long, total long"
KEPT = "count long, total long"


def totals(processor: Any) -> Any:
    return lambda s: s.groupBy("k", "part").process(processor, OUT, state=KEPT)


def spark_totals(pandas: bool) -> Any:
    method = "transformWithStateInPandas" if pandas else "transformWithState"
    return lambda s: getattr(s.groupBy("k", "part"), method)(SparkTotals(pandas), OUT, "Append", "None")


def spark_group_totals(s: Any) -> Any:
    return s.groupBy("k", "part").applyInPandasWithState(group_totals, OUT, KEPT, "append", "NoTimeout")


def per_key(process: Any) -> Any:
    return type("Mine", (hr.KeyProcessor,), {"process": lambda self, key, rows, state: process(key, rows, state)})()
