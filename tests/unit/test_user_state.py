"""Users' StatefulProcessor classes on our state, without Spark: against Spark's own in-memory tester, and case by case."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming import StatefulProcessor  # type: ignore[attr-defined]

from headrace.errors import ProcessorError
from headrace.spark.user_state.codecs import TupleCodec
from headrace.spark.user_state.front import Form
from tests.examples import examples
from tests.unit.user_states import Instance, kernel, schema

ROWS = schema(k=T.StringType(), op=T.StringType(), v=T.LongType())
OUT = schema(k=T.StringType(), what=T.StringType())
TWO_LONGS = schema(a=T.LongType(), b=T.LongType())


class Script(StatefulProcessor):
    """Does what its rows say, and tells what its state is."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", TWO_LONGS)
        self.list = handle.getListState("list", schema(v=T.LongType()))
        self.map = handle.getMapState("map", schema(a=T.LongType(), b=T.StringType()), schema(v=T.LongType()))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            self.do(row.op, row.v)
        yield Row(k=key[0], what=self.told())

    def do(self, op: str, v: int) -> None:
        match op:
            case "set":
                self.value.update((v, None))
            case "unset":
                self.value.clear()
            case "append":
                self.list.appendValue((v,))
            case "extend":
                self.list.appendList([(v,), (v + 1,)])
            case "put":
                self.list.put([(v,)])
            case "empty":
                self.list.clear()
            case "enter":
                self.map.updateValue((v % 3, "x" * (v % 2)), (v,))
            case "leave":
                self.map.removeKey((v % 3, "x" * (v % 2)))
            case "forget":
                self.map.clear()
            case "timer":
                self.handle.registerTimer(1_000 + v)
            case "no timer":
                self.handle.deleteTimer(1_000 + v)

    def told(self) -> str:
        entries = sorted((tuple(k), tuple(v)) for k, v in self.map.iterator())
        # Spark's tester says that a map exists whose last entry was removed. Spark itself does not.
        known = (self.value.exists(), self.list.exists(), self.map.containsKey((1, "x")))
        assert self.map.exists() or not entries
        got = self.map.getValue((1, "x"))
        return f"{self.value.get()} {list(self.list.get())} {entries} {known} {got and tuple(got)} {sorted(self.handle.listTimers())}"

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        yield Row(k=key[0], what=f"at {expiredTimerInfo.getExpiryTimeInMs()}: {self.told()}")

    def close(self) -> None:
        pass


OPS = ["set", "unset", "append", "extend", "put", "empty", "enter", "leave", "forget", "timer", "no timer"]
steps = st.lists(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(OPS), st.integers(0, 40)), max_size=9), min_size=1, max_size=6)


@given(steps, st.sets(st.integers(0, 5)))
@settings(max_examples=examples(60), deadline=None)
def test_state_and_timers_are_those_of_spark_s_own_tester(batches: Any, compacted: set[int]) -> None:
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester").TwsTester
    tester = tester_of(Script(), timeMode="ProcessingTime")
    with tempfile.TemporaryDirectory() as folder:
        mine = Instance(kernel(Script(), Form.ROWS, ROWS, ["k"], OUT, "ProcessingTime"), Path(folder))
        for at, rows in enumerate(batches):
            now_ms = 1_000 + 8 * at
            by_key: dict[str, list[Row]] = {}
            for k, op, v in rows:
                by_key.setdefault(k, []).append(Row(k=k, op=op, v=v))
            wanted = [row for key, each in by_key.items() for row in tester.test(key, each)] + tester.setProcessingTime(now_ms)
            found = mine.batch([{"k": k, "op": op, "v": v} for k, op, v in rows], now_ms=now_ms)
            assert sorted(found) == sorted(map(tuple, wanted))
            if at in compacted:
                mine.compact(now_ms)


def one(op: str, v: int = 0, k: str = "a", ts_ms: int = 10**9) -> dict[str, Any]:
    return {"k": k, "op": op, "v": v, "ts_ms": ts_ms}


class Timed(Script):
    """Timers that set timers."""

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        at = expiredTimerInfo.getExpiryTimeInMs()
        if at % 10 == 0:
            self.handle.registerTimer(at + 1)
        self.handle.deleteTimer(at + 2)
        yield Row(k=key.k, what=f"{at} of {sorted(self.handle.listTimers())} by {timerValues.getCurrentWatermarkInMs()}")


def test_rows_come_before_timers_by_the_watermark_at_the_start(tmp_path: Path) -> None:
    mine = Instance(kernel(Timed(), Form.ROWS, ROWS, ["k"], OUT, "EventTime", drops_late=True), tmp_path)
    mine.batch([one("timer", 10)], watermark_ms=900)
    # The timer is due by the new watermark only. It is moved before.
    found = mine.batch([one("no timer", 10), one("timer", 500)], watermark_ms=1_100)
    assert [what for _, what in found if "by" in what] == []
    # A row sets a timer for a moment that has passed: it fires in the same batch, after the rows.
    found = mine.batch([one("timer", 20), one("timer", 22)])
    assert [what for _, what in found][1:] == ["1020 of [1020, 1021, 1500] by 1100", "1022 of [1021, 1500] by 1100"]
    # What a handler sets for the past fires in the next batch; what it deletes for the present still fires.
    assert [what for _, what in mine.batch([one("set", 1)])][1:] == ["1021 of [1021, 1500] by 1100"]
    assert [what for _, what in mine.batch([], watermark_ms=1_500)] == ["1500 of [1500, 1501] by 1500"]
    assert [row["sub"] for row in mine.state("timers")] == [1_501_000]


def test_late_rows_are_dropped_by_event_time_only(tmp_path: Path) -> None:
    for mode, late in (("EventTime", 1), ("ProcessingTime", 0)):
        mine = Instance(kernel(Script(), Form.ROWS, ROWS, ["k"], OUT, mode, drops_late=mode == "EventTime"), tmp_path / mode)
        (tmp_path / mode).mkdir()
        mine.batch([], watermark_ms=2_000)
        mine.batch([one("set", ts_ms=2_000), one("set", ts_ms=2_001)])
        assert mine.late == late


class Expiring(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.value = handle.getValueState("value", schema(v=T.LongType()), ttlDurationMs=100)
        self.list = handle.getListState("list", schema(v=T.LongType()), 100)
        self.map = handle.getMapState("map", schema(v=T.LongType()), schema(v=T.LongType()), 100)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = self.value.get(), list(self.list.get()), dict(self.map.iterator()), self.map.exists()
        for row in rows:
            self.value.update((row.v,))
            self.list.appendValue((row.v,))
            self.map.updateValue((row.v,), (row.v,))
        yield Row(k=key[0], what=repr(before))

    def close(self) -> None:
        pass


@pytest.mark.parametrize("compacts", [False, True])
def test_what_was_written_expires_one_by_one(tmp_path: Path, compacts: bool) -> None:
    mine = Instance(kernel(Expiring(), Form.ROWS, ROWS, ["k"], OUT, "ProcessingTime"), tmp_path)
    told = []
    for at, now_ms in enumerate((1_000, 1_060, 1_099, 1_100, 1_170)):
        told += [what for _, what in mine.batch([one("", at)], now_ms=now_ms)]
        if compacts:
            mine.compact(now_ms)
    assert told == [
        "(None, [], {}, False)",
        "((0,), [(0,)], {(0,): (0,)}, True)",
        "((1,), [(0,), (1,)], {(0,): (0,), (1,): (1,)}, True)",
        "((2,), [(1,), (2,)], {(1,): (1,), (2,): (2,)}, True)",
        "((3,), [(2,), (3,)], {(2,): (2,), (3,): (3,)}, True)",
    ]


class Raising(Script):
    def do(self, op: str, v: int) -> None:
        bad: dict[str, Any] = {
            "divide": lambda: 1 // (v - v),
            "short": lambda: self.value.update((1,)),
            "none": lambda: self.value.update(None),
            "text": lambda: self.value.update(("x", 1)),
            "nothing": lambda: self.list.put([]),
            "declare": lambda: self.handle.getValueState("late", TWO_LONGS),
        }
        bad[op]()


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("divide", r"at mine.py:1: Mine.handleInputRows raised ZeroDivisionError: .*key \('a',\)\)[\s\S]*1 // \(v - v\)"),
        ("short", r"a tuple of 2 values \(a, b\); found \(1,\)"),
        ("none", "wanted a tuple; found None"),
        ("text", "the state 'value'.*wanted int64 in column 'a'"),
        ("nothing", "at least one element"),
        ("declare", "to be called in init"),
    ],
)
def test_mistakes_in_user_code_name_the_line(tmp_path: Path, op: str, message: str) -> None:
    mine = Instance(kernel(Raising(), Form.ROWS, ROWS, ["k"], OUT, "ProcessingTime"), tmp_path)
    with pytest.raises(ProcessorError, match=message):
        mine.batch([one(op, 3)])


def test_values_come_back_as_spark_gives_them() -> None:
    inner = schema(x=T.IntegerType())
    codec = TupleCodec(
        schema(
            ts=T.TimestampType(),
            dec=T.DecimalType(10, 2),
            f=T.FloatType(),
            items=T.ArrayType(inner),
            map=T.MapType(T.StringType(), T.TimestampType()),
            s=inner,
            n=T.LongType(),
        )
    )
    at = dt.datetime(2024, 1, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=3)))
    local = at.astimezone().replace(tzinfo=None)
    given = (at, Decimal("1.1"), 0.1, [(1,), {"x": 2}], {"a": pd.Timestamp(at)}, [3], np.int32(4))
    plain = codec.plain(given)
    assert plain == (local, Decimal("1.10"), float(np.float32(0.1)), [Row(x=1), Row(x=2)], {"a": local}, Row(x=3), 4)
    assert type(plain[-1]) is int
    assert plain[5].x == 3


def waits(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """A timeout 50 ms by the clock after the last row, or none; what is done when it has come is said by the state."""
    given = [frame["op"].iloc[-1] for frame in frames if len(frame)]
    told = f"{'timed out' if state.hasTimedOut else given[-1]} {state.getOption} at {state.getCurrentProcessingTimeMs()}"
    if state.hasTimedOut:
        if state.get[0] == 1:
            state.remove()
        elif state.get[0] == 2:
            state.setTimeoutDuration(50)
    elif given[-1] == "wait":
        state.update((int(key[0] == "one") + 2 * int(key[0] == "two") or 3, None))
        state.setTimeoutDuration(50)
    elif given[-1] == "remove":
        state.remove()
    elif given[-1] == "later":
        state.remove()
        state.setTimeoutDuration(50)
    yield pd.DataFrame({"k": [key[0]], "what": told})


def test_timeouts_by_the_clock_come_once_unless_they_are_set_again(tmp_path: Path) -> None:
    mine = Instance(kernel(waits, Form.GROUP_STATE, ROWS, ["k"], OUT, "ProcessingTimeTimeout", TWO_LONGS), tmp_path)

    def at(now_ms: int, *rows: tuple[str, str]) -> list[str]:
        found = mine.batch([{"k": k, "op": op, "v": 0} for k, op in rows], now_ms=now_ms)
        mine.compact(now_ms)
        return [f"{k}: {what.removesuffix(f' at {now_ms}')}" for k, what in sorted(found)]

    assert at(100, ("one", "wait"), ("two", "wait"), ("six", "wait"), ("nil", "look")) == [
        "nil: look None",
        "one: wait None",
        "six: wait None",
        "two: wait None",
    ]
    # At its moment a state has not timed out yet. A call that does nothing leaves the timeout as it is, as in Spark.
    assert at(150, ("two", "look")) == ["two: look (2, None)"]
    # One removes its state, two waits again, and six does nothing, so that it times out again and again.
    assert at(151) == ["one: timed out (1, None)", "six: timed out (3, None)", "two: timed out (2, None)"]
    assert at(160) == ["six: timed out (3, None)"]
    assert at(202, ("six", "remove")) == ["six: remove (3, None)", "two: timed out (2, None)"]
    assert at(203) == []
    # Without a state, a timeout can still come.
    assert at(210, ("two", "later")) == ["two: later (2, None)"]
    with pytest.raises(ProcessorError, match=r"Mine raised .*STATE_NOT_EXISTS.*for key \('two',\)"):
        at(300)
    assert {(row["k0"], row["exists"], row["timeout"]) for row in mine.state("state")} == {("two", False, 260)}


class Frames(StatefulProcessor):
    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        whole = pd.concat(frames)
        yield pd.DataFrame({"k": key, "what": f"{[len(frame) for frame in frames]} {whole['v'].tolist()} {whole.index.tolist()}"})

    def close(self) -> None:
        pass


def test_a_long_group_comes_in_several_frames(tmp_path: Path) -> None:
    mine = Instance(kernel(Frames(), Form.PANDAS, ROWS, ["k"], OUT, "None", rows_max=3), tmp_path)
    found = mine.batch([one("", v, k) for v, k in enumerate("aababaaa")])
    assert sorted(found) == [("a", "[3, 3] [0, 1, 3, 5, 6, 7] [0, 1, 2, 0, 1, 2]"), ("b", "[2] [2, 4] [0, 1]")]


class Starting(Script):
    def handleInitialState(self, key: Any, initialState: Row, timerValues: Any) -> None:
        self.do(initialState.op, initialState.v)


@pytest.mark.parametrize("compacts", [False, True])
def test_the_initial_state_is_handled_in_the_first_batch_only(tmp_path: Path, compacts: bool) -> None:
    mine = Instance(kernel(Starting(), Form.ROWS, ROWS, ["k"], OUT, "ProcessingTime", initial=ROWS), tmp_path)
    mine.begin_with([one("append", 1), one("append", 2), one("set", 7, "b"), one("timer", 5, "c")])
    found = []
    for now_ms in (1_000, 1_005, 1_006):
        found.append(dict(mine.batch([one("append", 3)], now_ms=now_ms)))
        if compacts:
            mine.compact(now_ms)
    assert [told["a"].split("]")[0] for told in found] == [
        "None [(1,), (2,), (3,)",
        "None [(1,), (2,), (3,), (3,)",
        "None [(1,), (2,), (3,), (3,), (3,)",
    ]
    assert [sorted(told) for told in found] == [["a"], ["a", "c"], ["a"]]
    assert [(row["k0"], row["p0"]) for row in mine.state("value")] == [("b", 7)]
    assert mine.state("") == []


class Stamped(Script):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            yield Row(k=key[0], at=dt.datetime.fromtimestamp(row.v, dt.UTC))


def test_an_event_time_that_the_watermark_has_passed_is_refused(tmp_path: Path) -> None:
    out = schema(k=T.StringType(), at=T.TimestampType())
    mine = Instance(kernel(Stamped(), Form.ROWS, ROWS, ["k"], out, "EventTime", event_time=1), tmp_path)
    mine.batch([one("", 1)], watermark_ms=5_000)
    assert [at.second for _, at in mine.batch([one("", 6)])] == [6]
    with pytest.raises(ProcessorError, match=r"wanted at after the watermark, 5000 ms; found 5000 ms"):
        mine.batch([one("", 5)])
