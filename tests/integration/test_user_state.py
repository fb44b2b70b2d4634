"""Stateful Python code that was written for Spark, unmodified on Headrace: batch by batch against Spark's own streaming answer."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from headrace.spark.streaming import ROCKSDB_STORE
from tests.integration.both import Feed, assert_equal, settings

pytestmark = pytest.mark.spark

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "k string, part int, v long, x double, ts timestamp"
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


def table(seed: int, rows: int, start_s: int = 0, over_s: int = 60, keys: int = 9) -> pa.Table:
    rng = np.random.default_rng(seed)
    times = [START + dt.timedelta(milliseconds=int(ms)) for ms in np.sort(rng.integers(start_s * 1000, (start_s + over_s) * 1000, rows))]
    return pa.table(
        {
            "k": pa.array([f"key{i}" for i in rng.integers(0, keys, rows)]),
            "part": pa.array(rng.integers(0, 2, rows), pa.int32()),
            "v": pa.array(rng.integers(-50, 100, rows)),
            "x": pa.array(np.round(rng.normal(size=rows), 3)),
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.fixture(autouse=True)
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark's transformWithState needs its RocksDB store."""
    with settings(spark, spark__sql__streaming__stateStore__providerClass=ROCKSDB_STORE):
        yield


class Everything(StatefulProcessor):
    """Values, lists and maps with composite keys; deletes all of them now and then."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, s long, mean double")
        self.last = handle.getListState("last", "v long, at timestamp")
        self.seen = handle.getMapState("seen", "part int, sign string", "n long, greatest struct<v:long,x:double>")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, s, _ = self.total.get() or (0, 0, 0.0)
        for row in rows:
            n, s = n + 1, s + row.v
            self.last.appendValue((row.v, row.ts))
            place = (row.part, "+" if row.v > 0 else "-")
            times, best = self.seen.getValue(place) or (0, (row.v, row.x))
            self.seen.updateValue(place, (times + 1, max(tuple(best), (row.v, row.x))))
        last = list(self.last.get())
        if len(last) > 5:
            self.last.put(last[-3:])
        self.total.update((n, s, s / n))
        entries = [f"{k}={v[0]}:{v[1].v}" for k, v in self.seen.iterator()]
        yield Row(k=key[0], n=n, s=s, last=[v for v, _ in last], seen=entries, times=self.seen.exists())
        if s % 5 == 0:
            for state in (self.total, self.last, self.seen):
                state.clear()
        elif s % 3 == 0:
            self.seen.removeKey((1, "+"))

    def close(self) -> None:
        pass


EVERYTHING = "k string, n long, s long, last array<long>, seen array<string>, times boolean"


def test_values_lists_and_maps_equal_spark_s(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(seed, 60) for seed in range(4)])
    found = assert_equal(
        spark,
        [feed],
        lambda s: s.groupBy("k").transformWithState(Everything(), EVERYTHING, "Append", "None"),
        "append",
        tmp_path,
        instances=2,
    )
    assert len(found.rows) > 20


class Sums(StatefulProcessor):
    """Pandas in and out, and a timer by event time that is moved on by every batch with rows."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.sums = handle.getValueState("sums", "n long, s long, greatest double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, s, greatest = self.sums.get() or (0, 0, None)
        for frame in rows:
            n += len(frame)
            s += int(frame["v"].sum())
            best = frame["x"].max()
            greatest = best if greatest is None else max(greatest, best)
            last = frame.ts.iloc[-1]
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)
        self.handle.registerTimer(int(last.timestamp() * 1000) + 20_000)
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() - 1)
        self.sums.update((n, s, greatest))
        yield pd.DataFrame({"k": [key[0]], "part": key[1], "n": [n], "s": [s], "greatest": greatest, "what": "rows"})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        n, s, greatest = self.sums.get()
        left = timerValues.getCurrentWatermarkInMs() - expiredTimerInfo.getExpiryTimeInMs()
        if left > 1:
            self.sums.clear()
        yield pd.DataFrame([{"k": key[0], "part": key.part, "n": n, "s": s, "greatest": greatest, "what": f"timer {left}"}])


SUMS = "k string, part int, n long, s long, greatest double, what string"


def test_pandas_and_event_time_timers_equal_spark_s(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(10 + i, 50, start_s=40 * i) for i in range(4)])

    def query(s: Any) -> Any:
        return s.withWatermark("ts", "5 seconds").groupBy("k", "part").transformWithStateInPandas(Sums(), SUMS, "Update", "EventTime")

    found = assert_equal(spark, [feed], query, "append", tmp_path, instances=3)
    assert sum("timer" in row[-1] for row in found.rows) > 10
