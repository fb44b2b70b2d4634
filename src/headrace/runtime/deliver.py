"""Delivering a committed version: its staged results, finished by Spark, go to each sink."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.compile.dataflow import BATCH, Dataflow
from headrace.compile.prepared import Frames, Preparations
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failures import mark_place
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import check_staged, staged_frame
from headrace.state.manifest import Manifest, StagedFile


@dataclass(frozen=True)
class Delivery:
    """Hands versions to the sinks, in the order of the writers."""

    flow: Dataflow
    sinks: tuple[Sink, ...]
    checkpoint: Checkpoint
    preparations: Preparations
    served: Collection[int] = ()
    """Sinks that get their results inside the jobs, before the commit."""

    def deliver(self, batch: DataFrame, manifest: Manifest) -> None:
        directory = self.checkpoint.directory
        for at, sink in enumerate(self.sinks):
            if at in self.served:
                continue
            self.checkpoint.fence.check(f"delivering version {manifest.version}")
            rows = self._rows(at, batch, manifest.staged)
            try:
                sink.deliver(manifest.version, rows)
            except Exception as failure:
                # A damaged file shows in a Spark task, as a failure of Spark; say what it really is.
                check_staged(directory, manifest.staged)
                raise mark_place(failure, sink.place) from failure.__cause__

    def _rows(self, outlet: int, batch: DataFrame, staged: tuple[StagedFile, ...]) -> DataFrame | None:
        """What a sink gets of a version; None if there is nothing."""
        port = self.flow.outlets[outlet]
        every = {name: self._frame(name, batch, staged) for name in self.flow.frames_of([port])}
        frames = {name: frame for name, frame in every.items() if frame is not None}
        if not frames:
            return None

        def build(frames: Frames) -> DataFrame:
            rows = self.flow.rows(port, frames, as_finished=True)
            assert rows is not None
            return rows

        return self.preparations.frame((outlet, *frames), build, frames, batch.sparkSession)

    def _frame(self, name: str, batch: DataFrame, staged: tuple[StagedFile, ...]) -> DataFrame | None:
        if name == BATCH:
            return batch
        own = tuple(s for s in staged if s.operator == name)
        return staged_frame(batch.sparkSession, self.checkpoint.directory, own, self.flow.by_id[name].plan.results.kernel_schema)
