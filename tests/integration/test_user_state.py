"""Stateful Python code that was written for Spark, unmodified on Headrace: batch by batch against Spark's own streaming answer."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

import headrace as hr
from headrace.errors import QueryError
from headrace.spark.streaming import ROCKSDB_STORE
from tests.integration.both import Feed, assert_equal, assert_same_rows, ours, settings, spark_stream, values

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
    feed = Feed.of(tmp_path, SCHEMA, [table(seed, 60) for seed in range(3)])
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


@pytest.mark.extra
def test_pandas_and_event_time_timers_equal_spark_s(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(10 + i, 50, start_s=40 * i) for i in range(4)])

    def query(s: Any) -> Any:
        return s.withWatermark("ts", "5 seconds").groupBy("k", "part").transformWithStateInPandas(Sums(), SUMS, "Update", "EventTime")

    found = assert_equal(spark, [feed], query, "append", tmp_path, instances=3)
    assert sum("timer" in row[-1] for row in found.rows) > 10


def counted(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Counts until no row has come for twenty seconds of event time; forgets some keys earlier."""
    if state.hasTimedOut:
        n, last = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "last": [last], "what": [f"timed out, {len(next(iter(frames)))} rows"]})
        return
    n, last = state.get if state.exists else (0, None)
    for frame in frames:
        n += len(frame)
        last = frame["ts"].max() if last is None else max(last, frame["ts"].max())
    if n % 4 == 3:
        state.remove()
        what = "forgotten"
    elif n % 5 == 1:
        what = "as it was"
    else:
        state.update((n, last))
        state.setTimeoutTimestamp(max(int(last.timestamp() * 1000) + 20_000, state.getCurrentWatermarkMs() + 1))
        what = f"kept {state.getCurrentWatermarkMs()}"
    yield pd.DataFrame({"k": [key[0]], "n": [n], "last": [last], "what": [what]})


@pytest.mark.extra
def test_group_states_and_their_timeouts_equal_spark_s(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(20 + i, 25, start_s=25 * i) for i in range(5)])
    out, kept = "k string, n long, last timestamp, what string", "n int, last timestamp"

    def query(s: Any) -> Any:
        return s.withWatermark("ts", "3 seconds").groupBy("k").applyInPandasWithState(counted, out, kept, "Append", "EventTimeTimeout")

    found = assert_equal(spark, [feed], query, "append", tmp_path, instances=2)
    assert {row[-1].split(" ")[0] for row in found.rows} == {"timed", "forgotten", "as", "kept"}


class Sessions(StatefulProcessor):
    """Sessions of rows at most ten seconds apart: the timer of a key is moved on by each row. Order matters."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.session = handle.getValueState("session", "n long, last timestamp")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, last = self.session.get() or (0, None)
        for row in rows:
            n, last = n + 1, row.ts if last is None else max(row.ts.replace(tzinfo=None), last.replace(tzinfo=None))
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)
        self.handle.registerTimer(int(last.replace(tzinfo=dt.UTC).timestamp() * 1000) + 10_000)
        self.session.update((n, last))
        return iter([])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        n, last = self.session.get()
        self.session.clear()
        yield Row(k=key[0], n=n, last=last, by=timerValues.getCurrentWatermarkInMs())


SESSIONS = "k string, n long, last timestamp, by long"


def sessions(s: Any) -> Any:
    return s.withWatermark("ts", "1 second").groupBy("k").transformWithState(Sessions(), SESSIONS, "Append", "EventTime")


@pytest.mark.extra
def test_timers_come_after_the_rows_of_batches_that_follow_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """With one file per batch and all files there, Spark runs no empty batches in between. So timers wait for the next rows."""
    parts = [table(40 + i, 30, start_s=12 * i, over_s=12, keys=25) for i in range(6)]
    feed = Feed.of(tmp_path, SCHEMA, parts)
    folder = tmp_path / "in"
    folder.mkdir()
    for at, files in enumerate(feed.files):
        shutil.copy(files[0], folder / f"{at}.parquet")
        os.utime(folder / f"{at}.parquet", (1_700_000_000 + at, 1_700_000_000 + at))
    found = []
    for wrap in (lambda rows: rows, hr.stream):
        got: list[tuple[Any, ...]] = []
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))
        with settings(spark, spark__sql__shuffle__partitions="1"):
            writer = sessions(wrap(source)).writeStream.option("checkpointLocation", str(tmp_path / f"ckpt{len(found)}"))
            query = writer.trigger(availableNow=True).foreachBatch(lambda rows, _, got=got: got.extend(values(rows))).start()
        query.awaitTermination()
        found.append(got)
    assert len(found[0]) >= 10
    assert_same_rows(found[1], found[0], ["k", "n", "last", "by"], "sessions")
    # The same files one by one, with time for empty batches in between, give other sessions.
    apart = ours(spark, [feed], sessions, "append", tmp_path)
    assert len(apart.rows) != len(found[0])


class WithStart(Sums):
    """Begins with what the initial state says."""

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        n, s, _ = self.sums.get() or (0, 0, None)
        self.sums.update((n + len(initialState), s + int(initialState["was"].sum()), float(initialState["was"].max())))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1_704_067_210_000)


@pytest.mark.extra
def test_an_initial_state_is_handled_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(50 + i, 30, start_s=15 * i, keys=4) for i in range(3)])
    start = spark.createDataFrame(
        [(f"key{i}", i % 2, 100 * i + j) for i in range(6) for j in range(i % 3 + 1)], "name string, part int, was long"
    )

    def query(s: Any) -> Any:
        of_start = start.groupBy("name", "part")
        grouped = s.withWatermark("ts", "5 seconds").groupBy("k", "part")
        return grouped.transformWithStateInPandas(WithStart(), SUMS, "Update", "EventTime", of_start)

    found = assert_equal(spark, [feed], query, "append", tmp_path, instances=2)
    assert any(row[0] == "key5" for row in found.rows)


class PerMinute(StatefulProcessor):
    """Emits rows with an event time, for a second operator."""

    def init(self, handle: Any) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        (n,) = self.count.get() or (0,)
        for frame in rows:
            frame = frame.sort_values(["ts", "v"])
            frame["n"] = range(n + 1, n + 1 + len(frame))
            n += len(frame)
            yield frame[["k", "ts", "n"]]
        self.count.update((n,))

    def close(self) -> None:
        pass


@pytest.mark.extra
def test_a_window_reads_the_results_of_a_processor(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(60 + i, 40, start_s=40 * i) for i in range(4)])

    def query(s: Any) -> Any:
        grouped = s.withWatermark("ts", "5 seconds").dropDuplicates(["k", "v", "ts"]).groupBy("k")
        numbered = grouped.transformWithStateInPandas(
            PerMinute(), "k string, ts timestamp, n long", "Append", "EventTime", eventTimeColumnName="ts"
        )
        return numbered.groupBy(F.window("ts", "20 seconds"), "k").agg(F.max("n").alias("n"), F.count("*").alias("rows"))

    assert_equal(spark, [feed], query, "append", tmp_path, instances=2)


@pytest.mark.extra
def test_a_rescale_and_a_restart_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(70 + i, 60) for i in range(4)])

    def query(s: Any) -> Any:
        return s.groupBy("k").transformWithState(Everything(), EVERYTHING, "Append", "None")

    wanted = spark_stream(spark, [feed], query, "append", tmp_path)
    sizes = iter((1, 3, 2, 4))
    found = ours(spark, [feed], query, "append", tmp_path, between=lambda q: q.rescale(next(sizes)), instances=2)
    for at, (mine, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
        assert_same_rows(mine, theirs, found.columns, f"step {at}")
    # Each batch in a process of its own, as far as the query is concerned.
    folder, got = tmp_path / "restarted", []
    folder.mkdir()
    for files in feed.files:
        shutil.copy(files[0], folder)
        rows: list[tuple[Any, ...]] = []
        writer = query(hr.stream(spark.readStream.schema(SCHEMA).parquet(str(folder)))).writeStream
        writer = writer.option("checkpointLocation", str(tmp_path / "again")).option("headrace.instances", 3)
        restarted = writer.trigger(availableNow=True).foreachBatch(lambda frame, _, rows=rows: rows.extend(values(frame))).start()
        restarted.awaitTermination()
        got.append(rows)
    for at, (mine, theirs) in enumerate(zip(got, wanted.steps, strict=True)):
        assert_same_rows(mine, theirs, found.columns, f"start {at}")
    state = restarted.state("transformWithState.seen")
    assert state.columns == ["k", "part", "sign", "n", "greatest"]
    assert restarted.state("transformWithState.last").count() > 0


class Ticking(StatefulProcessor):
    """A timer by the clock, and state that expires."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.short = handle.getValueState("short", "v long", ttlDurationMs=1_500)
        self.long = handle.getValueState("long", "v long", ttlDurationMs=600_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = sum(row.v for row in rows)
        self.short.update((total,))
        self.long.update((total,))
        self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 2_000)
        yield Row(k=key[0], what=f"rows {total}")

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], what=f"timer {self.short.get()} {self.long.get()}")


@pytest.mark.extra
def test_timers_by_the_clock_fire_while_the_stream_is_quiet(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(80, 40)])
    found = []
    for wrap in (lambda rows: rows, hr.stream):
        got: list[tuple[Any, ...]] = []
        stream = wrap(feed.stream(spark, feed.folder / "waiting"))
        with settings(spark, spark__sql__shuffle__partitions="1"):
            result = stream.groupBy("k").transformWithState(Ticking(), "k string, what string", "Append", "ProcessingTime")
            writer = result.writeStream.option("checkpointLocation", str(tmp_path / f"ckpt{len(found)}"))
            query = writer.foreachBatch(lambda rows, _, got=got: got.extend(values(rows))).start()
        deadline = time.monotonic() + 60
        while sum("timer" in what for _, what in got) < 9 and time.monotonic() < deadline:
            time.sleep(0.2)
        query.stop()
        found.append(got)
    assert {what.split(" ")[1] for _, what in found[1] if "timer" in what} == {"None"}
    assert_same_rows(found[1], found[0], ["k", "what"], "timers by the clock")


def test_what_spark_refuses_is_refused_at_the_user_s_line(spark: SparkSession, tmp_path: Path) -> None:
    rows = hr.stream(Feed.of(tmp_path, SCHEMA, [table(90, 5)]).stream(spark, tmp_path / "none"))
    with pytest.raises(QueryError, match=r"transformWithState at test_user_state.py.*ProcessingTime.*ttlDurationMs=1500"):
        rows.groupBy("k").transformWithState(Ticking(), "k string, what string", "Append", "None")
    with pytest.raises(QueryError, match=r"groupBy at test_user_state.py.*nothing"):
        rows.groupBy("nothing").transformWithState(Sessions(), SESSIONS, "Append", "EventTime")
    updates = rows.withWatermark("ts", "1 second").groupBy("k").applyInPandasWithState(counted, "k string", "n int", "Update", "NoTimeout")
    with pytest.raises(QueryError, match="applyInPandasWithState in update mode is not supported"):
        updates.writeStream.outputMode("append").format("noop").option("checkpointLocation", str(tmp_path / "c")).start()


class Failing(Everything):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        yield Row(k=key[0], n=sum(row.v for row in rows) // 0)


@pytest.mark.extra
def test_an_error_in_user_code_names_its_line(spark: SparkSession, tmp_path: Path) -> None:
    feed = Feed.of(tmp_path, SCHEMA, [table(91, 5)])
    with pytest.raises(Exception, match=r"Failing.handleInputRows raised ZeroDivisionError[\s\S]*row.v for row in rows\) // 0"):
        ours(spark, [feed], lambda s: s.groupBy("k").transformWithState(Failing(), EVERYTHING, "Append", "None"), "append", tmp_path)
