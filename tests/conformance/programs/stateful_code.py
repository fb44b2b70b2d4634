"""More stateful Python code: many state variables, timers that go on, initial state, chained processors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import col, window
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from tests.conformance.program import program
from tests.conformance.programs.stateful_python import ROCKSDB

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def running(key: Any, frames: Any, state: Any, factor: int = 1) -> Iterator[Any]:
    total = state.getOption
    total = total[0] if total else 0.0
    total += factor * float(sum(frame["amount"].sum() for frame in frames))
    state.update((total,))
    return iter([pd.DataFrame({"kind": [key[0]], "city": [key[1]], "total": [total]})])


@program("applyInPandasWithState: functools.partial, two keys, a filter", mode="update")
def partial_state(spark: SparkSession, events: DataFrame) -> DataFrame:
    cities = events.withColumn("city", col("place.city")).groupBy("kind", "city")
    result = "kind string, city string, total double"
    totals = cities.applyInPandasWithState(functools.partial(running, factor=3), result, "total double", "Update", "NoTimeout")
    return totals.where("total > 100")


class Everything(StatefulProcessor):
    """Value, list and map state with timers that register others."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.total = handle.getValueState("total", T.StructType().add("n", "long").add("at", "timestamp").add("money", "decimal(12,2)"))
        self.recent = handle.getListState("recent", "id long, tags array<string>")
        self.by_kind = handle.getMapState("by_kind", T.StructType([T.StructField("kind", T.StringType())]), "n int, best double")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        if self.total.exists():
            n, at, money = self.total.get()
        else:
            n, at, money = 0, None, Decimal("0.00")
        for frame in rows:
            n += len(frame)
            money += Decimal(int(frame["amount"].sum()))
            for row in frame.sort_values(["id", "ts", "amount"]).itertuples():
                self.recent.appendValue((row.id, sorted(row.tags)))
                k, best = (0, -1e9)
                if self.by_kind.containsKey((row.kind,)):
                    k, best = self.by_kind.getValue((row.kind,))
                v = -1e9 if pd.isna(row.value) else row.value
                self.by_kind.updateValue((row.kind,), (k + 1, max(best, v)))
            at = frame["ts"].max().to_pydatetime().replace(tzinfo=None)
        kept = sorted(self.recent.get())[-3:]
        self.recent.clear()
        self.recent.appendList(kept)
        self.total.update((n, at, money))
        if len(list(self.handle.listTimers())) == 0:
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 20000)
        if self.by_kind.exists() and self.by_kind.containsKey(("error",)) and self.by_kind.getValue(("error",))[0] > 4:
            self.by_kind.removeKey(("error",))
        text = ",".join(f"{k[0]}={v[0]}" for k, v in sorted(self.by_kind.iterator()))
        yield pd.DataFrame({"user": [key[0]], "what": ["rows"], "n": [n], "text": [text]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        n, _, money = self.total.get()
        if n > 30:
            self.total.clear()
            self.by_kind.clear()
            self.recent.clear()
        else:
            self.handle.registerTimer(expiredTimerInfo.getExpiryTimeInMs() + 3600000)
        keys = ",".join(sorted(k[0] for k, _ in self.by_kind.iterator())) + "|" + ",".join(str(v[0]) for v in sorted(self.by_kind.values()))
        yield pd.DataFrame({"user": [key[0]], "what": ["timer"], "n": [n], "text": [f"{money} {keys}"]})

    def close(self) -> None:
        pass


@program("transformWithStateInPandas: value, list and map state of many types, timers that go on", conf=ROCKSDB)
def everything(spark: SparkSession, events: DataFrame) -> DataFrame:
    return (
        events.withWatermark("ts", "10 seconds")
        .groupBy("user")
        .transformWithStateInPandas(
            statefulProcessor=Everything(),
            outputStructType="user string, what string, n long, text string",
            outputMode="Append",
            timeMode="EventTime",
        )
    )


class WithStart(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.v = handle.getValueState("v", "age long, n long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.v.update((int(initialState["age"].iloc[0]), 0))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        age, n = self.v.get() or (-1, 0)
        for frame in rows:
            n += len(frame)
        self.v.update((age, n))
        yield pd.DataFrame({"user": key, "age": [age], "n": [n]})

    def close(self) -> None:
        pass


@program("transformWithStateInPandas with an initial state from a table", mode="update", conf=ROCKSDB)
def initial_pandas(spark: SparkSession, events: DataFrame) -> DataFrame:
    start = spark.createDataFrame([("ada", 36), ("bob", 52), ("zed", 1)], "user string, age int").groupBy("user")
    return events.groupBy("user").transformWithStateInPandas(
        WithStart(), "user string, age long, n long", "Update", "None", initialState=start
    )


class Windowed(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.v = handle.getValueState("sum", "a long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        a = self.v.get()[0] if self.v.exists() else 0
        for r in rows:
            a += r.amount
        self.v.update((a,))
        start = key[0].start if hasattr(key[0], "start") else key[0]["start"]
        yield Row(start=start, kind=key[1], a=a)


@program("transformWithState keyed by a window made before and a column", mode="update", conf=ROCKSDB)
def keyed_by_window(spark: SparkSession, events: DataFrame) -> DataFrame:
    groups = events.withColumn("w", window("ts", "1 minute")).groupBy("w", "kind")
    return groups.transformWithState(Windowed(), "start timestamp, kind string, a long", "Update", "None")


class Ender(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.handle = handle
        self.n = handle.getValueState("n", "n long, top long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        n, top = self.n.get() or (0, 0)
        for r in rows:
            n += 1
            top = max(top, int(r.ts.timestamp() * 1000))
        for t in list(self.handle.listTimers()):
            self.handle.deleteTimer(t)
        self.handle.registerTimer(top + 15000)
        self.n.update((n, top))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        n, _ = self.n.get()
        self.n.clear()
        yield Row(id=key[0], n=n, ended=datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000))


@program("transformWithState: sessions by timers, then windows of their ends", conf=ROCKSDB)
def ended_sessions(spark: SparkSession, events: DataFrame) -> DataFrame:
    users = events.withWatermark("ts", "10 seconds").groupBy("user")
    ended = users.transformWithState(Ender(), "id string, n long, ended timestamp", "append", "eventtime", eventTimeColumnName="ended")
    return ended.groupBy(window("ended", "1 minute")).agg(F.sum("n").alias("n"), F.count("*").alias("s"))


class Dedup(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "yes boolean")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        first = None
        for frame in rows:
            if len(frame) and first is None:
                first = frame.sort_values(["ts", "amount"]).iloc[:1]
        if not self.seen.exists():
            self.seen.update((True,))
            yield first[["id", "user"]]
        yield pd.DataFrame(columns=["id", "user"])

    def close(self) -> None:
        pass


@program("two chained transformWithStateInPandas", conf=ROCKSDB)
def two_processors(spark: SparkSession, events: DataFrame) -> DataFrame:
    first = events.groupBy("id").transformWithStateInPandas(Dedup(), "id long, user string", "Append", "None")

    class Number(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", "n int")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
            n = (self.n.get() or (0,))[0] + sum(len(f) for f in rows)
            self.n.update((n,))
            yield pd.DataFrame({"user": [key[0]], "n": pd.Series([n], dtype="int32")})

        def close(self) -> None:
            pass

    return first.groupBy("user").transformWithStateInPandas(Number(), "user string, n int", "Append", "None")


class Alerts(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.last = handle.getMapState("last", "metric string, city string", "reading double, at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for r in sorted(rows, key=lambda r: (r.ts, r.id, r.amount)):
            k = (r.kind, r.place["city"])
            before = self.last.getValue(k)
            if before and before[0] is not None and r.value is not None and abs(before[0] - r.value) > 20:
                yield Row(user=key[0], kind=r.kind, jump=round(r.value - before[0], 3), since=before[1], tags=r.tags, place=r.place)
            self.last.updateValue(k, (r.value, r.ts))


@program("transformWithState: map of two keys, rows with arrays and structs in and out", conf=ROCKSDB)
def jumps(spark: SparkSession, events: DataFrame) -> DataFrame:
    result = "user string, kind string, jump double, since timestamp, tags array<string>, place struct<city:string,zip:int>"
    return events.groupBy("user").transformWithState(Alerts(), result, "Append", "None").withColumn("city", F.col("place.city"))


class Late(StatefulProcessor):
    """Buffers rows until the watermark has passed them, in order of event time."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.rows = handle.getMapState("rows", "at long", "ids array<long>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        for r in rows:
            at = int(r.ts.timestamp() * 1000)
            old = self.rows.getValue((at,))
            self.rows.updateValue((at,), (sorted([*(old[0] if old else []), r.id]),))
            self.handle.registerTimer(at)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        for i in self.rows.getValue((at,))[0]:
            yield Row(kind=key[0], at=at, id=i)
        self.rows.removeKey((at,))


@program("transformWithState: rows in order of event time by a timer for each", conf=ROCKSDB)
def reordered(spark: SparkSession, events: DataFrame) -> DataFrame:
    kinds = events.withWatermark("ts", "20 seconds").groupBy("kind")
    return kinds.transformWithState(Late(), "kind string, at long, id long", "Append", "EventTime")
