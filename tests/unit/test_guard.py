"""The guard kills an executor that is silent while the query works, and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.runtime import guard as module
from headrace.runtime.guard import Guard
from headrace.spark.executors import Executor


@dataclass
class Cluster:
    """Executors that answer, except those that hang."""

    ids: list[str]
    hanging: set[str] = field(default_factory=set)
    killed: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def live(self) -> tuple[Executor, ...]:
        return tuple(Executor(each, "host", 1) for each in self.ids)

    def answers(self, executor: str) -> bool:
        if executor in self.hanging:
            self.released.wait(10)
        return executor not in self.hanging

    def replace(self, executor: str) -> bool:
        self.killed.append(executor)
        self.ids.remove(executor)
        return True


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(module, "ASK_AFTER_S", 0.05)
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.05)
    found = Cluster(["1", "2", "3"])
    yield found
    found.released.set()


def guarding(cluster: Cluster, proven: str = "123") -> Guard:
    return Guard("a query", cast(Any, cluster), answer_s=0.3, proven=frozenset(proven))


def look(guard: Guard, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
    """Look again and again, as the thread does, for so long or until this holds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not until():
        guard.look()
        time.sleep(0.01)


def test_a_silent_executor_is_killed_once_if_others_answer(cluster: Cluster) -> None:
    guard = guarding(cluster)
    cluster.hanging = {"2"}
    with guard.working("delivery"):
        look(guard, 10, lambda: bool(cluster.killed))
        look(guard, 0.5)
    assert cluster.killed == ["2"]
    (killing,) = guard.drain_killings()
    assert (killing.executor, killing.during) == ("2", "delivery")
    assert killing.after_s > 0.3
    assert not guard.drain_killings()


def test_nobody_is_asked_while_the_query_does_nothing(cluster: Cluster) -> None:
    guard = guarding(cluster)
    cluster.hanging = {"2"}
    with guard.working("a short batch"):
        guard.look()
    look(guard, 0.6)
    assert not guard.questions.silent_s()
    assert not cluster.killed


def test_nobody_is_killed_if_nobody_answers(cluster: Cluster) -> None:
    guard = guarding(cluster)
    cluster.hanging = {"1", "2", "3"}
    with guard.working("delivery"):
        look(guard, 1.0)
    assert not cluster.killed


def test_one_that_has_just_started_is_not_killed(cluster: Cluster) -> None:
    guard = guarding(cluster, proven="12")
    cluster.hanging = {"3"}
    with guard.working("delivery"):
        look(guard, 1.0)
    assert not cluster.killed


def test_a_pause_of_the_driver_is_not_the_silence_of_executors(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.4)
    guard = guarding(cluster)
    cluster.hanging = {"2"}
    with guard.working("delivery"):
        look(guard, 0.15)
        time.sleep(0.5)
        guard.look()
        assert not cluster.killed, "it was silent for 0.6 s, but the driver did not look"
        look(guard, 10, lambda: bool(cluster.killed))
    assert cluster.killed == ["2"]


def test_an_executor_is_killed_once(cluster: Cluster) -> None:
    guard = guarding(cluster)
    guard.replace(["2"])
    guard.replace(["2"])
    assert cluster.killed == ["2"]
