"""How long the tasks of jobs ran, as Spark's own status store says."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

from headrace.spark.gateway import SPARK_ERRORS

_numbers = itertools.count()
_RUNNING = ("ACTIVE", "PENDING")
WAIT_S = 0.5
"""Spark's store hears of the end of a stage a little later than its job does. It is waited for so long."""
POLL_S = 0.01

Tags = Mapping[str, str]
"""By name of a job: the tag by which Spark knows it."""


@contextmanager
def tagged(context: SparkContext, name: str, tags: dict[str, str]) -> Iterator[None]:
    """Meanwhile, jobs that this thread submits have a tag, which is noted under a name."""
    tag = f"headrace-time-{next(_numbers)}"
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
        tags[name] = tag


def run_times_s(context: SparkContext, tags: Tags) -> dict[str, float]:
    """By name: the run time of all tasks of the jobs with its tag. Names are left out whose jobs Spark no longer knows, or not yet."""
    java: Any = context._jsc
    spark = java.sc()
    tracker, store = spark.statusTracker(), spark.statusStore()
    until, found = time.monotonic() + WAIT_S, {}
    for name, tag in tags.items():
        while (took := _run_time_s(tracker, store, tag)) is None and time.monotonic() < until:
            time.sleep(POLL_S)
        if took is not None:
            found[name] = took
    return found


def _run_time_s(tracker: Any, store: Any, tag: str) -> float | None:
    """The run time of all tasks of the jobs with a tag; None while some are running."""
    total, jobs = 0.0, list(tracker.getJobIdsForTag(tag))
    for job in jobs:
        info = tracker.getJobInfo(job)
        if info.isEmpty():
            return None
        for stage in info.get().stageIds():
            try:
                data = store.lastStageAttempt(stage)
            except SPARK_ERRORS:
                # It was skipped, because its results were there, and is not in the store.
                continue
            if str(data.status()) in _RUNNING:
                return None
            total += data.executorRunTime() / 1000
    return total if jobs else None


