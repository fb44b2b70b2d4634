"""Delivery of a committed version: Spark turns staged partials into results, and each sink gets its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame

from headrace.compile.dataflow import Branch, Dataflow
from headrace.compile.prepared import Frames, Preparations
from headrace.compile.shed_shape import sink_job
from headrace.compile.shedding import Dropping
from headrace.ids import InputId, SourceId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failures import mark_place
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import check_staged, staged_frame
from headrace.spark.observed import observed
from headrace.spark.task_times import tagged
from headrace.state.manifest import Manifest, StagedFile

Planned = Future[dict[int, DataFrame | None]]
"""By the number of a sink: the rows that it gets of a version, as soon as they are planned; None if there are none."""


@dataclass(frozen=True)
class Delivery:
    """Hands versions to the sinks, in the order in which the writers were given."""

    flow: Dataflow
    sinks: tuple[Sink, ...]
    checkpoint: Checkpoint
    preparations: Preparations
    working: str | None = None
    """The folder of working copies; see ``working_folder``."""
    served: Collection[int] = ()
    """Numbers of the direct sinks. They got their results inside the jobs, before the commit."""
    label: str = "query"
    """What Spark's UI calls the query."""
    beside: Executor | None = None
    """Plans deliveries while versions are committed. Without it they are planned when they are made."""
    _observed: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def planned(self, batch: DataFrame, manifest: Manifest, dropping: Dropping) -> Iterator[Planned | None]:
        """What the sinks will get of a version, planned in another thread while it is committed. Committing mostly waits for the disk.

        On leaving, the planning has ended, also if the commit has failed.
        """
        if self.beside is None or len(self.served) == len(self.sinks):
            yield None
            return
        plan = inheritable_thread_target(batch.sparkSession)(self._plan)
        planned = self.beside.submit(plan, batch, manifest.staged, dropping)
        try:
            yield planned
        finally:
            wait([planned])

    def _plan(self, batch: DataFrame, staged: tuple[StagedFile, ...], dropping: Dropping) -> dict[int, DataFrame | None]:
        return {at: self._rows(at, batch, staged, dropping) for at in range(len(self.sinks)) if at not in self.served}

    def deliver(self, batch: DataFrame, manifest: Manifest, dropping: Dropping | None = None, planned: Planned | None = None) -> None:
        """Hand a committed version to all sinks that are not direct. The fencing token is checked before each.

        ``dropping`` counts what is dropped. Without it, the version drops what its manifest says, uncounted. ``planned`` is what
        ``planned`` gave.
        """
        counts, dropping = dropping is not None, dropping or self.flow.dropping(manifest.drops)
        for at, sink in enumerate(self.sinks):
            if at in self.served:
                continue
            self.checkpoint.fence.check(f"delivering version {manifest.version}")
            rows = self._rows(at, batch, manifest.staged, dropping) if planned is None else planned.result()[at]
            batch.sparkSession.sparkContext.setJobDescription(f"{self.label} · version {manifest.version} · {sink.place}")
            try:
                if rows is not None and any(branch.sheds for branch in self.flow.outlets[at]):
                    with tagged(batch.sparkSession.sparkContext, sink_job(at), dropping.tags):
                        sink.deliver(manifest.version, rows)
                    dropping.learn(observed(rows))
                else:
                    sink.deliver(manifest.version, rows)
            except Exception as failure:
                # A damaged file makes a Spark task fail. Look for one, to report that instead of Spark's failure.
                check_staged(self.checkpoint.store, manifest.staged)
                raise mark_place(failure, sink.place) from failure.__cause__
        for branch in self.flow.branches:
            self._observe(branch, batch, manifest.staged)
        if counts:
            self.flow.count_missing(batch, dropping)

    def drain_observed(self) -> dict[str, dict[str, Any]]:
        """What the program's observations have measured since the last call, by name."""
        found = dict(self._observed)
        self._observed.clear()
        return found

    def _observe(self, branch: Branch, batch: DataFrame, staged: tuple[StagedFile, ...]) -> None:
        above = self.flow.producer(branch)
        rows = self._frame(above.id, batch, staged) if branch.observes and above is not None else None
        if above is not None and rows is not None:
            self._observed.update(branch.observed(above.plan.results.marked(rows)))

    def _rows(self, outlet: int, batch: DataFrame, staged: tuple[StagedFile, ...], dropping: Dropping) -> DataFrame | None:
        """The rows of a version for one sink; None if there are none."""
        port = self.flow.outlets[outlet]
        every = {name: self._frame(name, batch, staged) for name in self.flow.frames_of([port])}
        frames: Frames = {name: frame for name, frame in every.items() if frame is not None}
        if not frames:
            return None

        def build(frames: Frames) -> DataFrame:
            rows = self.flow.rows(port, frames, as_finished=True, dropping=dropping)
            assert rows is not None
            return rows

        return self.preparations.frame((outlet, *frames), build, frames, batch.sparkSession)

    def _frame(self, name: InputId, batch: DataFrame, staged: tuple[StagedFile, ...]) -> DataFrame | None:
        if isinstance(name, SourceId):
            return batch
        own = tuple(s for s in staged if s.operator == name)
        schema = self.flow.by_id[name].plan.results.kernel_schema
        return staged_frame(batch.sparkSession, self.checkpoint.store, own, schema, self.working)
