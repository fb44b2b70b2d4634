"""A lane in this process on a given session, for tests: a pause stops the query, and the next turn restarts it.

Engines that share a JVM cannot be compared fairly, and a restarted query must load its state first. So the figures of this
lane mean nothing. Queries, checks and reports take the same path as in a real run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from headrace.bench.model import Lane, MeasuredBatch, Verdict
from headrace.bench.process import CpuMeter, LaneFailed
from headrace.bench.runner import PROVIDER, LaneDied, Runner


class InlineLane:
    """A lane with the methods of LaneProcess."""

    def __init__(self, spark: SparkSession, bench: str, lane: Lane, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.lane = lane
        self._spark = spark
        self._before = {name: spark.conf.get(name) for name in lane.conf if spark.conf.isModifiable(name)}
        for name in self._before:
            spark.conf.set(name, lane.conf[name])
        self._runner = Runner(spark, bench, lane, folder)
        self._cpu = CpuMeter(os.getpid())
        self._batches: Iterator[MeasuredBatch] = self._all()

    def next_batch(self, idle: Callable[[], None] = lambda: None) -> MeasuredBatch:
        idle()
        try:
            return next(self._batches)
        except LaneDied as died:
            raise LaneFailed(str(died)) from None

    def finish(self, idle: Callable[[], None] = lambda: None) -> tuple[Verdict, list[dict[str, Any]]]:
        progress = self._runner.headrace()
        self.kill()
        return self._runner.check(), progress

    def pause(self) -> None:
        self._runner.stop()

    def resume(self) -> None:
        self._batches = self._all()

    def change(self) -> None:
        self._runner.change()

    def kill(self) -> None:
        self._runner.stop()
        self._spark.conf.unset(PROVIDER)
        for name, value in self._before.items():
            if value is not None:
                self._spark.conf.set(name, value)

    def cpu_s(self) -> float:
        return self._cpu.read()

    def _all(self) -> Iterator[MeasuredBatch]:
        if self._runner.fresh:
            yield from self._runner.preload()
        if not self._runner.running:
            self._runner.start()
        for batch in self._runner.watch():
            if batch is not None:
                yield batch
