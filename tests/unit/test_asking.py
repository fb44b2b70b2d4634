"""Executors are asked for a sign of life, and the silent ones are known, whatever the others do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.runtime.asking import Questions


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_one_that_does_not_answer_is_silent_since_it_was_asked_first() -> None:
    now, release = [0.0], threading.Event()
    questions = Questions(lambda executor: executor != "2" or release.wait(10), clock=lambda: now[0])
    questions.ask(["1", "2"])
    until(lambda: set(questions.silent_s()) == {"2"})
    now[0] = 3.0
    questions.ask(["1", "2"])
    until(lambda: questions.silent_s() == {"2": 3.0})
    release.set()
    until(lambda: not questions.silent_s())


def test_one_that_cannot_be_reached_stays_silent_and_is_asked_again() -> None:
    now, asked = [0.0], []

    def answers(executor: str) -> bool:
        asked.append(executor)
        return len(asked) > 1

    questions = Questions(answers, clock=lambda: now[0])
    questions.ask(["1"])
    until(lambda: not questions._asking["1"].is_alive())
    now[0] = 5.0
    assert questions.silent_s() == {"1": 5.0}
    questions.ask(["1"])
    until(lambda: not questions.silent_s())


def test_one_that_is_gone_is_forgotten() -> None:
    questions = Questions(lambda _: False)
    questions.ask(["1"])
    questions.forget(["1"])
    assert not questions.silent_s()
