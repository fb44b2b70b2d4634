"""Operator state as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow, Op
from headrace.compile.plan import StoreReader
from headrace.errors import QueryError
from headrace.operators.kernel import View, store_id
from headrace.operators.store import Store
from headrace.operators.windowed import WINDOW
from headrace.runtime.border import spark_batches
from headrace.runtime.checkpoint import Checkpoint
from headrace.state.layout import SUB
from headrace.state.run import RunReader, RunRef
from headrace.state.slots import SlotRanges, clip, even_ranges

READERS = 8


@dataclass(frozen=True)
class StateReader:
    """Merges and reads the state of some slots in a Spark task."""

    directory: str
    store: Store
    refs: tuple[RunRef, ...]
    ranges: tuple[SlotRanges, ...]
    live_from: int | None
    columns: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.store.layout
        reader = RunReader(Path(self.directory), layout)
        for batch in batches:
            for at in batch.column(0).to_pylist():
                view = View(reader, clip(self.refs, self.ranges[at]), self.ranges[at])
                for rows in view.scan(self.store, sub_min=self.live_from):
                    columns = [rows.column(SUB if name == WINDOW else name) for name in self.columns]
                    yield from spark_batches(pa.RecordBatch.from_arrays(columns, names=list(self.columns)))


def store_named(flow: Dataflow, operator: str | None) -> tuple[str, Op, str]:
    """Find a store by the user's name for it. Returns its id, its operator, and its name in the operator. None means the only one."""
    stores = {store_id(op.id, name): (op, name) for op in flow.ops for name in op.plan.operator.stores}
    if operator is None and len(stores) == 1:
        operator = next(iter(stores))
    if operator not in stores:
        raise QueryError(where="state", wanted=f"an operator's state: {', '.join(stores)}", found=repr(operator))
    return operator, *stores[operator]


def state_frame(
    session: SparkSession, checkpoint: Checkpoint, name: str, store: Store, reader: StoreReader, version: int, hold_ms: int
) -> DataFrame:
    """The rows of a store in a version: keys, pane or time if it has one, and values."""
    manifest = checkpoint.manifests.read(version)
    timed = store.layout.has_sub and manifest.watermark_nodes_ms
    task = StateReader(
        str(checkpoint.runs),
        store,
        manifest.whole(name),
        even_ranges(READERS),
        store.lifetime.live_from(max(0, manifest.watermark_ms - hold_ms)) if timed else None,
        tuple(reader.schema.names),
    )
    return reader.finish(session.range(0, READERS, 1, READERS).mapInArrow(task, reader.schema))
