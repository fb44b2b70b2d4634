"""Users' own stateful Python code, written for Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from tests.conformance.program import program

STORE = (("spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"),)
"""Spark's transformWithState needs this state store. Headrace does not use it."""


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


@program("transformWithStateInPandas: value and map state", mode="update", conf=STORE)
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


@program("transformWithState with rows: list state and event-time timers", conf=STORE)
def last_three(spark: SparkSession, events: DataFrame) -> DataFrame:
    grouped = known(events).withWatermark("ts", "20 seconds").groupBy("user")
    return grouped.transformWithState(LastThree(), "user string, what string, total long", "Append", "EventTime")


@program("transformWithStateInPandas between select and filter, over a view", mode="update", conf=STORE)
def in_the_middle(spark: SparkSession, events: DataFrame) -> DataFrame:
    known(events).createOrReplaceTempView("known_events")
    rows = spark.sql("SELECT user, kind, amount * 2 AS amount FROM known_events WHERE amount > 10")
    found = rows.groupBy("user").transformWithStateInPandas(Totals(), TOTALS, "Update", "None")
    return found.filter("n > 2").select(F.upper("user").alias("user"), (F.col("amount") / F.col("n")).alias("mean"))
