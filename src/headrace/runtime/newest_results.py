"""The newest result of each key, from results that were staged by several versions, as staged files again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.compile.dataflow import Op
from headrace.ids import OperatorId
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.staged import staged_frame, write_staged
from headrace.state.durable import DurableStore, put_file
from headrace.state.layout import one_batch
from headrace.state.manifest import StagedFile

_AT = "__headrace_at"
_NEWEST = "__headrace_newest"


def newest_results(
    session: SparkSession, checkpoint: Checkpoint, op: Op, emitted: Sequence[tuple[StagedFile, ...]]
) -> tuple[StagedFile, ...]:
    """Of the results that versions have emitted one after the other, the last one of each key."""
    whole: DataFrame | None = None
    for at, files in enumerate(emitted):
        rows = staged_frame(session, checkpoint.store, files, op.plan.results.kernel_schema)
        if rows is not None:
            rows = rows.withColumn(_AT, F.lit(at))
            whole = rows if whole is None else whole.union(rows)
    if whole is None:
        return ()
    names = op.plan.results.kernel_schema.names
    # The kernel's names: the columns of results begin with p, all others identify the result.
    values = [name for name in names if name.startswith("p")]
    keys = [name for name in names if name not in values]
    newest = whole.groupBy(*keys).agg(F.max_by(F.struct(*values), _AT).alias(_NEWEST)).select(*keys, f"{_NEWEST}.*").select(*names)
    writer = checkpoint.fence.writer
    task = WriteStaged(checkpoint.store, f"{op.id}-e{writer}", op.id, op.plan.operator.output_schema)
    told = [json.loads(row[0]) for row in newest.mapInArrow(task, "told string").collect()]
    return tuple(StagedFile(**each) for each in told)


@dataclass(frozen=True)
class WriteStaged:
    """Called in a Spark task: writes the task's rows as one staged file."""

    store: DurableStore
    mark: str
    operator: OperatorId
    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        file = f"newest-{self.mark}-{context.taskAttemptId()}.arrow"
        rows = (one_batch(pa.Table.from_batches([batch]), self.schema) for batch in batches if batch.num_rows)
        ordered = (batch.select(self.schema.names) for batch in rows)
        with tempfile.TemporaryDirectory(prefix="headrace-newest-") as folder:
            path = Path(folder) / file
            count, length, crc = write_staged(path, self.schema, ordered, sync=False)
            if count:
                put_file(self.store, f"staged/{file}", path)
        if count:
            told = StagedFile(file, "staged", length, crc, count, self.operator)
            yield pa.RecordBatch.from_pydict({"told": [json.dumps(asdict(told))]})
