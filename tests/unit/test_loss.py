"""Jobs that are broken off when an executor is lost or suspected."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.runtime.loss import broken_off_on_loss
from headrace.spark.executors import Executor


@dataclass
class Cluster:
    """Three executors, and the job tags that were cancelled."""

    ids: list[str] = field(default_factory=lambda: ["1", "2", "3"])
    cancelled: threading.Event = field(default_factory=threading.Event)
    context: Any = None

    def __post_init__(self) -> None:
        self.context = self

    def live(self) -> tuple[Executor, ...]:
        return tuple(Executor(each, "host", 1) for each in self.ids)

    def addJobTag(self, tag: str) -> None:
        """The job has begun."""

    def removeJobTag(self, tag: str) -> None:
        """The job has ended."""

    def cancelJobsWithTag(self, tag: str) -> None:
        self.cancelled.set()


@pytest.mark.parametrize("how", ["lost", "suspected"])
def test_jobs_are_cancelled_when_an_executor_is_lost_or_suspected_meanwhile(how: str) -> None:
    cluster, suspected = Cluster(), set[str]()
    with broken_off_on_loss(cast(Any, cluster), suspected=lambda: suspected):
        assert not cluster.cancelled.wait(0.3)
        if how == "lost":
            cluster.ids.remove("2")
        else:
            suspected.add("2")
        assert cluster.cancelled.wait(10)


def test_one_that_was_suspected_or_let_go_before_has_no_part_in_the_jobs() -> None:
    cluster = Cluster()
    with broken_off_on_loss(cast(Any, cluster), besides=["1"], suspected=lambda: {"2"}):
        cluster.ids = ["3"]
        time.sleep(0.3)
    assert not cluster.cancelled.is_set()
