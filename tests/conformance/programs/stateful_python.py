"""Existing stateful Python code: StatefulProcessor classes, and functions with a group state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]
from pyspark.sql.streaming.state import GroupStateTimeout

from headrace.spark.streaming import ROCKSDB_STORE
from tests.conformance.program import program

# Workers need not be able to import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROCKSDB = (("spark.sql.streaming.stateStore.providerClass", ROCKSDB_STORE),)
"""Spark's transformWithState needs its RocksDB store."""


class CountByKind(StatefulProcessor):
    """Counts in a map, and the last amounts in a list."""

    def init(self, handle: Any) -> None:
        self.kinds = handle.getMapState("kinds", "kind string", "n long")
        self.last = handle.getListState("last", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in sorted(rows, key=lambda row: (row.ts, row.id, row.amount)):
            (n,) = self.kinds.getValue((row.kind,)) or (0,)
            self.kinds.updateValue((row.kind,), (n + 1,))
            self.last.appendValue((row.amount,))
        last = [amount for (amount,) in self.last.get()][-3:]
        self.last.put([(amount,) for amount in last])
        for (kind,), (n,) in self.kinds.iterator():
            yield Row(user=key[0], kind=kind, n=n, last=str(last))

    def close(self) -> None:
        pass


@program("transformWithState with map and list state", conf=ROCKSDB)
def rows_with_maps(spark: SparkSession, events: DataFrame) -> DataFrame:
    return events.groupBy("user").transformWithState(CountByKind(), "user string, kind string, n long, last string", "Append", "None")


class RunningMean(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.sums = handle.getValueState("sums", "n long, amount long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, amount = self.sums.get() or (0, 0)
        for frame in rows:
            n, amount = n + len(frame), amount + int(frame["amount"].sum())
        self.sums.update((n, amount))
        yield pd.DataFrame({"user": [key[0]], "kind": [key[1]], "n": [n], "mean": [amount / n]})

    def close(self) -> None:
        pass


@program("transformWithStateInPandas, two keys, with steps before and after", mode="update", conf=ROCKSDB)
def pandas_between_steps(spark: SparkSession, events: DataFrame) -> DataFrame:
    valued = events.filter("amount > 5").withColumn("amount", F.col("amount") * 2)
    means = valued.groupBy("user", "kind").transformWithStateInPandas(
        RunningMean(), "user string, kind string, n long, mean double", "Update", "None"
    )
    return means.filter(F.col("n") > 2).select(F.upper("kind").alias("kind"), "user", (F.col("mean") / 2).alias("mean"))


class Silence(StatefulProcessor):
    """Tells of users that were silent for half a minute."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = pd.concat(list(rows))
        (n,) = self.seen.get() or (0,)
        self.seen.update((n + len(frames),))
        for timer in list(self.handle.listTimers()):
            self.handle.deleteTimer(timer)
        last = max(int(frames["ts"].max().timestamp() * 1000), timerValues.getCurrentWatermarkInMs())
        self.handle.registerTimer(last + 30_000)
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        (n,) = self.seen.get()
        self.seen.clear()
        at = pd.to_datetime(expiredTimerInfo.getExpiryTimeInMs() + 1, unit="ms")
        yield pd.DataFrame({"user": [key[0]], "n": [n], "at": [at]})


@program("event-time timers, then a window over eventTimeColumnName", conf=ROCKSDB)
def timers_then_windows(spark: SparkSession, events: DataFrame) -> DataFrame:
    grouped = events.withWatermark("ts", "10 seconds").groupBy("user")
    silent = grouped.transformWithStateInPandas(
        Silence(), "user string, n long, at timestamp", "Append", "EventTime", eventTimeColumnName="at"
    )
    return silent.groupBy(F.window("at", "1 minute")).agg(F.sum("n").alias("n"), F.count("*").alias("users"))


def forgetting(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        n = state.get[0]
        state.remove()
        yield pd.DataFrame({"id": [key[0]], "n": [n], "over": [True]})
        return
    n = sum(len(frame) for frame in frames) + (state.get[0] if state.exists else 0)
    state.update((n,))
    state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 30_000)
    yield pd.DataFrame({"id": [key[0]], "n": [n], "over": [False]})


@program("applyInPandasWithState with event-time timeouts")
def group_states(spark: SparkSession, events: DataFrame) -> DataFrame:
    grouped = events.withWatermark("ts", "10 seconds").groupBy("user")
    return grouped.applyInPandasWithState(forgetting, "id string, n long, over boolean", "n long", "append", "EventTimeTimeout")


class Numbered(StatefulProcessor):
    """Begins at the number of the initial state."""

    def init(self, handle: Any) -> None:
        self.number = handle.getValueState("number", "n long")

    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.number.update((initialState.start,))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        (n,) = self.number.get() or (0,)
        n += sum(1 for _ in rows)
        self.number.update((n,))
        yield Row(user=key[0], n=n)

    def close(self) -> None:
        pass


@program("transformWithState behind dropDuplicates, with an initial state, in a view", conf=ROCKSDB)
def with_an_initial_state(spark: SparkSession, events: DataFrame) -> DataFrame:
    start = spark.createDataFrame([("ada", 100), ("zoe", 7)], "user string, start long").groupBy("user")
    grouped = events.select("user", "id").dropDuplicates(["user", "id"]).groupBy("user")
    grouped.transformWithState(Numbered(), "user string, n long", "Append", "None", start).createOrReplaceTempView("numbered")
    return spark.sql("SELECT user, n FROM numbered WHERE n > 3")


def known(events: DataFrame) -> DataFrame:
    return events.na.drop(subset=["user"])


@program("applyInPandasWithState: a running count", mode="update", quick=True)
def running_count(spark: SparkSession, events: DataFrame) -> DataFrame:
    def count(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        before = state.get[0] if state.exists else 0
        now = before + sum(len(frame) for frame in frames)
        state.update((now,))
        yield pd.DataFrame({"user": [key[0]], "n": [now]})

    grouped = known(events).groupBy("user")
    return grouped.applyInPandasWithState(count, "user string, n long", "n long", "update", GroupStateTimeout.NoTimeout)


@program("applyInPandasWithState with an event-time timeout: sessions by hand")
def sessions_by_hand(spark: SparkSession, events: DataFrame) -> DataFrame:
    def session(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            n, total = state.get
            state.remove()
            yield pd.DataFrame({"user": [key[0]], "n": [n], "total": [total]})
            return
        n, total = state.get if state.exists else (0, 0)
        latest = 0
        for frame in frames:
            n, total = n + len(frame), total + int(frame["amount"].sum())
            latest = max(latest, int(frame["ts"].max().timestamp() * 1000))
        state.update((n, total))
        state.setTimeoutTimestamp(max(latest, state.getCurrentWatermarkMs()) + 15_000)
        yield pd.DataFrame({"user": [], "n": [], "total": []}).astype({"user": "object", "n": "int64", "total": "int64"})

    grouped = known(events).withWatermark("ts", "20 seconds").groupBy("user")
    return grouped.applyInPandasWithState(
        session, "user string, n long, total long", "n long, total long", "append", GroupStateTimeout.EventTimeTimeout
    )


TOTALS = "user string, n long, amount long, opened long"


class Totals(StatefulProcessor):
    """Value and map state."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "n long, amount long")
        self.kinds = handle.getMapState("kinds", "kind string", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        n, amount = self.total.get() if self.total.exists() else (0, 0)
        for frame in rows:
            n, amount = n + len(frame), amount + int(frame["amount"].sum())
            for kind, size in frame.groupby("kind").size().items():
                before = self.kinds.getValue((kind,))[0] if self.kinds.containsKey((kind,)) else 0
                self.kinds.updateValue((kind,), (before + int(size),))
        self.total.update((n, amount))
        opened = self.kinds.getValue(("open",))[0] if self.kinds.containsKey(("open",)) else 0
        yield pd.DataFrame({"user": [key[0]], "n": [n], "amount": [amount], "opened": [opened]})

    def close(self) -> None:
        pass


@program("transformWithStateInPandas: value and map state", mode="update", conf=ROCKSDB)
def totals_in_pandas(spark: SparkSession, events: DataFrame) -> DataFrame:
    return known(events).groupBy("user").transformWithStateInPandas(Totals(), TOTALS, "Update", "None")


class LastThree(StatefulProcessor):
    """List state, and a timer that clears it."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.last = handle.getListState("last", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        known = [each[0] for each in self.last.get()] if self.last.exists() else []
        latest = 0
        for row in rows:
            known.append(row["amount"])
            latest = max(latest, int(row["ts"].timestamp() * 1000))
        self.last.put([(each,) for each in known[-3:]])
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)
        self.handle.registerTimer(latest + 30_000)
        yield Row(user=key[0], what="last", total=sum(known[-3:]))

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        total = sum(each[0] for each in self.last.get()) if self.last.exists() else 0
        self.last.clear()
        yield Row(user=key[0], what="gone", total=total)

    def close(self) -> None:
        pass


@program("transformWithState with rows: list state and event-time timers", conf=ROCKSDB)
def last_three(spark: SparkSession, events: DataFrame) -> DataFrame:
    grouped = known(events).withWatermark("ts", "20 seconds").groupBy("user")
    return grouped.transformWithState(LastThree(), "user string, what string, total long", "Append", "EventTime")


@program("transformWithStateInPandas between select and filter, over a view", mode="update", conf=ROCKSDB)
def in_the_middle(spark: SparkSession, events: DataFrame) -> DataFrame:
    known(events).createOrReplaceTempView("known_events")
    rows = spark.sql("SELECT user, kind, amount * 2 AS amount FROM known_events WHERE amount > 10")
    found = rows.groupBy("user").transformWithStateInPandas(Totals(), TOTALS, "Update", "None")
    return found.filter("n > 2").select(F.upper("user").alias("user"), (F.col("amount") / F.col("n")).alias("mean"))
