"""The initial state of a query (SEEP's set-processing-state). Its rows become runs that are older than those of the first version.

Each task sorts and writes the rows of some slots, so that the state may be larger than the memory of a process.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.compile.dataflow import Dataflow, Op
from headrace.errors import QueryError
from headrace.ids import SLOTS, StoreId, WriterId
from headrace.operators.kernel import MAIN
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.durable import DurableStore, put_file
from headrace.state.layout import HASH, Layout, one_batch
from headrace.state.run import RunRef, write_run
from headrace.state.segments import sort_into_segments
from headrace.state.sequence import BEFORE_ALL

PARTS_BITS = 3
PARTS = 1 << PARTS_BITS


@dataclass(frozen=True)
class InitialRun:
    """Called in a Spark task: writes the task's rows as one run."""

    runs: DurableStore
    name: str
    layout: Layout
    sync: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = [batch for batch in batches if batch.num_rows]
        if given:
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(self._written(pa.Table.from_batches(given)))]})

    def _written(self, table: pa.Table) -> dict[str, object]:
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId()
        rows, starts = sort_into_segments(one_batch(table, self.layout.schema), self.layout)
        slots = {"lo": part * SLOTS // PARTS, "hi": (part + 1) * SLOTS // PARTS}
        # A task may run twice, so each attempt writes its own file.
        file = f"{self.name}-{part}-{context.taskAttemptId()}.arrow"
        if self.runs.local is not None:
            ref = write_run(self.runs.local, file, rows, self.layout, seq=BEFORE_ALL, sync=self.sync, **slots)
        else:
            with tempfile.TemporaryDirectory(prefix="headrace-initial-") as folder:
                ref = write_run(Path(folder), file, rows, self.layout, seq=BEFORE_ALL, sync=False, **slots)
                put_file(self.runs, file, Path(folder) / file)
        return {"run": ref.to_json(), "keys": len(starts)}


def write_rows(rows: DataFrame, folder: DurableStore, name: str, layout: Layout, sync: bool) -> tuple[tuple[RunRef, ...], int]:
    """Write rows, in the columns of the layout, as runs that are older than those of any version; returns the number of keys too."""
    task = InitialRun(folder, name, layout, sync)
    routed = rows.repartitionById(PARTS, F.shiftrightunsigned(HASH, 64 - PARTS_BITS).cast("int"))
    told = [json.loads(row[0]) for row in routed.mapInArrow(task, "told string").collect()]
    return tuple(RunRef.from_json(each["run"]) for each in told), sum(each["keys"] for each in told)


def initial_states(flow: Dataflow, checkpoint: Checkpoint, writer: WriterId, sync: bool) -> dict[StoreId, tuple[RunRef, ...]]:
    """By operator: the runs of its initial state. Operators without one are left out."""
    return {StoreId(op.id, MAIN): runs for op in flow.ops if (runs := _runs(op, checkpoint, writer, sync))}


def _runs(op: Op, checkpoint: Checkpoint, writer: WriterId, sync: bool) -> tuple[RunRef, ...]:
    if op.plan.initial is None:
        return ()
    layout = op.plan.operator.stores[MAIN].layout
    runs, keys = write_rows(op.plan.initial, checkpoint.store.below("runs"), f"initial-{op.id}-e{writer}", layout, sync)
    rows = sum(run.rows for run in runs)
    if keys < rows:
        raise QueryError(where=op.where, wanted="each key once in the initial state", found=f"{rows} rows of {keys} keys")
    return runs
