"""Timers of users' own operators, and the order of their rows."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import ProcessorError
from headrace.operators.processor import KeyProcessor, Processor
from headrace.operators.shape import TimerClock
from tests.unit.processors import (
    PerKey,
    TimersPerKey,
    TimersVectorised,
    at,
    instance,
)


@pytest.mark.parametrize("processor", [TimersPerKey(), TimersVectorised()])
def test_event_timers_fire_once_when_the_watermark_has_passed_them(tmp_path: Path, processor: Any) -> None:
    mine = instance(processor, tmp_path, timed=True, timers=TimerClock.EVENT)
    assert mine.batch([("a", "set", 1, 10), ("b", "set", 2, 20), ("c", "every", 3, 4)], watermark_ms=3_999) == []
    assert {(row["k0"], row["sub"] // 1_000_000) for row in mine.state("timers")} == {("a", 10), ("b", 20), ("c", 4)}
    assert sorted(mine.batch([("b", "set", 5, 12)], watermark_ms=10_000)) == [("a", 10), ("c", 4), ("c", 8)]
    # One is taken back, one is set in the past and fires at once.
    assert mine.batch([("b", "unset", 11, 20), ("a", "set", 11, 7)], watermark_ms=11_000) == [("a", 7)]
    mine.compact()
    assert sorted(mine.batch([("c", "clear", 12, 0)], watermark_ms=30_000)) == [("b", 12)]
    assert mine.batch([], watermark_ms=60_000) == []
    assert mine.state("timers") == []


@pytest.mark.parametrize("processor", [TimersPerKey(), TimersVectorised()])
def test_processing_timers_fire_with_the_first_batch_after_them(tmp_path: Path, processor: Any) -> None:
    mine = instance(processor, tmp_path, timers=TimerClock.PROCESSING)
    assert mine.batch([("a", "set", 10), ("b", "set", 20), ("c", "set", 40)], now_ms=1_000) == []
    assert mine.batch([("d", "set", 30)], now_ms=9_999) == []
    assert mine.batch([("d", "set", 50), ("b", "unset", 20)], now_ms=20_000) == [("a", 10)]
    assert mine.batch([], now_ms=30_000) == [("d", 30)]
    mine.compact()
    assert mine.batch([("c", "clear", 0)], now_ms=45_000) == []
    assert mine.batch([("e", "every", 59)], now_ms=60_000) == [("d", 50), ("e", 59)]
    assert [(row["k0"], row["sub"]) for row in mine.state("timers")] == [("e", 118_000_000)]


def test_a_timer_that_would_fire_for_ever_is_refused(tmp_path: Path) -> None:
    class Again(KeyProcessor):
        def process(self, key: Any, rows: Any, state: Any) -> None:
            state.set_timer(at(5))

        def on_timer(self, key: Any, at: datetime, state: Any) -> None:
            state.set_timer(at)

    with pytest.raises(ProcessorError, match="not later than the one that has just fired"):
        instance(Again(), tmp_path, timed=True, timers=TimerClock.EVENT).batch([("a", "", 1, 1)], watermark_ms=6_000)


def test_a_key_knows_its_timers(tmp_path: Path) -> None:
    class Shows(TimersPerKey):
        def process(self, key: Any, rows: Any, state: Any) -> Any:
            super().process(key, rows, state)
            return [(key, int(each.timestamp())) for each in state.timers()]

    mine = instance(Shows(), tmp_path, timed=True, timers=TimerClock.EVENT)
    assert mine.batch([("a", "set", 1, 10), ("a", "set", 1, 5)], watermark_ms=5_000) == [("a", 5), ("a", 10), ("a", 5)]
    assert mine.batch([("a", "set", 6, 7)], watermark_ms=6_000) == [("a", 7), ("a", 10)]


def test_late_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    mine = instance(PerKey(), tmp_path, timed=True)
    mine.batch([("a", "put", 10, 1)], watermark_ms=10_000)
    assert mine.batch([("a", "put", 10, 2), ("b", "put", 10.5, 3), ("c", "put", 3, 4)]) == [("b", 3)]
    assert mine.late == 2


def test_rows_come_by_event_time_and_then_by_the_hash_of_the_row(tmp_path: Path) -> None:
    class Order(KeyProcessor):
        def process(self, key: Any, rows: Any, state: Any) -> Any:
            return [(key, row.v) for row in rows]

    class Table(Processor):
        def process(self, rows: pa.Table, state: Any) -> pa.Table:
            return pa.table({"k": rows["k"], "n": rows["v"]})

    rows = [("a", "", 3, 1), ("b", "", 2, 2), ("a", "", 1, 3), ("a", "", 3, 4), ("b", "", 2, 5)]
    found = instance(Order(), tmp_path, timed=True).batch(rows)
    assert [v for k, v in found if k == "a"] == [3, 1, 4]
    assert [v for k, v in found if k == "b"] == [2, 5]
    assert instance(Table(), tmp_path, timed=True).batch(rows) == found, "key by key, as for those that see one key at a time"
