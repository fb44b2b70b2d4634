"""Operator state as a Spark DataFrame."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow, Op
from headrace.errors import QueryError
from headrace.ids import StoreId, Version
from headrace.operators.kernel import View
from headrace.operators.store import Store
from headrace.operators.windowed import WINDOW
from headrace.runtime.border import spark_batches
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.inspection import reading
from headrace.state.conversion import Conversion
from headrace.state.durable import DurableStore
from headrace.state.layout import SUB
from headrace.state.run import RunRef
from headrace.state.slots import SlotRanges, clip, even_ranges

READERS = 8


@dataclass(frozen=True)
class StateReader:
    """Merges and reads the state of some slots in a Spark task."""

    runs: DurableStore
    store: Store
    refs: tuple[RunRef, ...]
    ranges: tuple[SlotRanges, ...]
    live_from: int | None
    columns: tuple[str, ...]
    earlier: tuple[Conversion, ...] = ()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with reading(self.runs, self.store.layout, self.earlier) as reader:
            for batch in batches:
                for at in batch.column(0).to_pylist():
                    view = View(reader, clip(self.refs, self.ranges[at]), self.ranges[at])
                    for rows in view.scan(self.store, sub_min=self.live_from):
                        columns = [rows.column(SUB if name == WINDOW else name) for name in self.columns]
                        yield from spark_batches(pa.RecordBatch.from_arrays(columns, names=list(self.columns)))


def store_named(flow: Dataflow, wanted: str | None) -> tuple[StoreId, Op]:
    """Find a store by the user's name for it. Returns its id and its operator. None means the only store."""
    stores = {str(store): (store, op) for op in flow.ops for store in (StoreId(op.id, name) for name in op.plan.operator.stores)}
    if wanted is None and len(stores) == 1:
        wanted = next(iter(stores))
    if wanted not in stores:
        raise QueryError(where="state", wanted=f"an operator's state: {', '.join(stores)}", found=repr(wanted))
    return stores[wanted]


def state_frame(session: SparkSession, checkpoint: Checkpoint, wanted: StoreId, op: Op, version: Version) -> DataFrame:
    """The rows of a store in a version: keys, pane or time if it has one, and values."""
    store, reader = op.plan.operator.stores[wanted.name], op.plan.readers[wanted.name]
    manifest = checkpoint.manifests.read(version)
    if wanted not in manifest.stores:
        found = f"version {version}, which was made before the query had it"
        raise QueryError(where="state", wanted=f"a version with the state of '{wanted}'", found=found)
    timed = store.layout.has_sub and manifest.watermark_nodes_ms
    task = StateReader(
        checkpoint.store.below("runs"),
        store,
        manifest.whole(wanted),
        even_ranges(READERS),
        store.lifetime.live_from(max(0, manifest.watermark_ms - op.hold_ms)) if timed else None,
        tuple(reader.schema.names),
        op.earlier.get(wanted.name, ()),
    )
    return reader.finish(session.range(0, READERS, 1, READERS).mapInArrow(task, reader.schema))
