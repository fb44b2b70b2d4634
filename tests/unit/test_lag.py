"""Consumer lag in rows and in time, from offsets."""

from __future__ import annotations

import json
from typing import Any

from headrace.runtime.lag import NOTES_MAX, Lag
from headrace.runtime.offsets import OffsetBacklog
from headrace.spark.streaming import SourceOffsets


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def kafka(end: Any, now: Any) -> SourceOffsets:
    return SourceOffsets("kafka", True, None, json.dumps(end), json.dumps(end), None if now is None else json.dumps(now))


def test_rows_wait_since_the_first_note_behind_what_was_read() -> None:
    clock = Clock()
    lag = Lag(clock)
    place = ("0", "calls", "0")
    found = []
    for second, (read, newest) in enumerate([(0, 0), (0, 90), (50, 120), (90, 160), (110, 160), (160, 160), (160, 170)]):
        clock.now_s = float(second)
        found.append(lag.waiting_s({place: read}, {place: newest}))
    # At second 3 the rows from 90 on wait, which were noted at second 2.
    assert found == [0, 0, 1, 1, 2, 0, 0]


def test_the_longest_wait_counts_and_topics_that_are_gone_do_not() -> None:
    clock = Clock()
    lag = Lag(clock)
    a, b = ("0", "a", "0"), ("0", "b", "0")
    lag.waiting_s({a: 0}, {a: 1})
    clock.now_s = 5.0
    assert lag.waiting_s({a: 0, b: 0}, {a: 1, b: 1}) == 5.0
    clock.now_s = 7.0
    assert lag.waiting_s({b: 0}, {b: 1}) == 2.0
    assert lag.waiting_s({}, {a: 9}) == 0.0, "a partition from which nothing was read yet"


def test_a_lag_that_grows_for_days_keeps_few_notes() -> None:
    clock = Clock()
    lag = Lag(clock)
    place = ("0", "calls", "0")
    for second in range(10 * NOTES_MAX):
        clock.now_s = float(second)
        waiting = lag.waiting_s({place: 0}, {place: second + 1})
        assert waiting == second
    assert len(lag._notes[place]) <= NOTES_MAX


def test_the_lag_in_rows_is_told_by_topic_and_partition() -> None:
    backlog = OffsetBacklog()
    one = kafka({"calls": {"0": 90, "1": 40}}, {"calls": {"0": 100, "1": 40, "2": 7}})
    waiting = backlog.waiting([one, kafka({"calls": {"0": 95}}, {"calls": {"0": 100}})])
    assert waiting is not None
    assert waiting.rows == {"calls": {"0": 15, "1": 0, "2": 0}}
    assert waiting.total == 15
    assert backlog.waiting([kafka({"calls": {"0": 1}}, None)]) is None, "the brokers gave no answer"
    assert backlog.waiting([SourceOffsets("Other", False, None, "1", "2")]) is None
