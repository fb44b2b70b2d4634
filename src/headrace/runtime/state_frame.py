"""Operator state as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.compile import StatefulPlan
from headrace.operators.kernel import Operator, View
from headrace.operators.windowed import WINDOW
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.layout import SUB
from headrace.state.run import RunReader, RunRef
from headrace.state.slots import SlotRanges, clip, even_ranges

READERS = 8


@dataclass(frozen=True)
class StateReader:
    """Merges and reads the state of some slots in a Spark task."""

    directory: str
    operator: Operator
    refs: tuple[RunRef, ...]
    ranges: tuple[SlotRanges, ...]
    live_from: int | None
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.operator.layout
        reader = RunReader(Path(self.directory), layout)
        for batch in batches:
            for at in batch.column(0).to_pylist():
                view = View(reader, clip(self.refs, self.ranges[at]), self.ranges[at])
                for rows in view.scan(layout, self.operator.combine, sub_min=self.live_from):
                    columns = [rows.column(SUB if name == WINDOW else name) for name in self.columns]
                    yield pa.RecordBatch.from_arrays(columns, names=list(self.columns))


def state_frame(session: SparkSession, checkpoint: Checkpoint, plan: StatefulPlan, version: int) -> DataFrame:
    """The state of a version: its keys, its pane where it has one, and the aggregates' values so far."""
    manifest = checkpoint.manifests.read(version)
    state = manifest.operators[plan.operator_id]
    reader = StateReader(
        str(checkpoint.runs),
        plan.operator,
        state.runs,
        even_ranges(READERS),
        plan.operator.live_from(manifest.watermark_ms) if plan.event_time_in_key else None,
        tuple(plan.state_schema.names),
    )
    return plan.state_finish(session.range(0, READERS, 1, READERS).mapInArrow(reader, plan.state_schema))
