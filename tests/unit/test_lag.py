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


PLACE = ("0", "calls", "0")


def kafka(end: Any, now: Any, latest: Any = None) -> SourceOffsets:
    return SourceOffsets("kafka", True, None, json.dumps(end), json.dumps(latest or end), None if now is None else json.dumps(now))


def test_rows_wait_since_the_last_note_that_was_not_beyond_what_was_read() -> None:
    clock, found = Clock(), []
    lag = Lag(clock)
    for second, (read, newest) in enumerate([(0, 0), (0, 90), (50, 120), (90, 160), (110, 160), (160, 160), (160, 170)]):
        clock.now_s = float(second)
        found.append(lag.waiting_s({PLACE: read}, {PLACE: newest}))
    # At second 3 rows from 90 on wait. 90 was the newest at second 1.
    assert found == [0, 1, 2, 2, 3, 0, 1]


def test_a_note_from_the_beginning_of_a_batch_makes_it_precise() -> None:
    clock = Clock()
    lag = Lag(clock)
    lag.waiting_s({PLACE: 0}, {PLACE: 0})
    # Ten quiet seconds, then a batch reads all that came, and rows come while it runs.
    lag.note({PLACE: 100}, 10.0)
    clock.now_s = 10.5
    assert lag.waiting_s({PLACE: 100}, {PLACE: 130}) == 0.5


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
    for second in range(10 * NOTES_MAX):
        clock.now_s = float(second)
        assert lag.waiting_s({PLACE: 0}, {PLACE: second + 1}) == second
    assert len(lag._notes[PLACE]) <= NOTES_MAX


def test_the_lag_in_rows_is_told_by_topic_and_partition() -> None:
    backlog = OffsetBacklog()
    one = kafka({"calls": {"0": 90, "1": 40}}, {"calls": {"0": 100, "1": 40, "2": 7}})
    waiting = backlog.waiting([one, kafka({"calls": {"0": 95}}, {"calls": {"0": 100}})], 0.0)
    assert waiting is not None
    assert waiting.rows == {"calls": {"0": 15, "1": 0, "2": 0}}
    assert waiting.total == 15
    assert backlog.waiting([kafka({"calls": {"0": 1}}, None)], 0.0) is None, "the brokers gave no answer"
    assert backlog.waiting([SourceOffsets("Other", False, None, "1", "2")], 0.0) is None


def test_rows_that_came_while_the_batch_ran_wait_since_it_was_planned() -> None:
    clock = Clock()
    backlog = OffsetBacklog(lag=Lag(clock))
    clock.now_s = 3.0
    waiting = backlog.waiting([kafka({"calls": {"0": 90}}, {"calls": {"0": 100}}, latest={"calls": {"0": 90}})], 1.0)
    assert waiting is not None
    assert waiting.waiting_s == 2.0
