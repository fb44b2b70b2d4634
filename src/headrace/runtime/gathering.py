"""The task in front of the instance task, for operators whose values Spark merges (`operators.settled`).

Both run in one Spark task, one after the other, with Spark's merge in between. This one only reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import MissingRunError
from headrace.ids import InstanceId
from headrace.logs import set_level
from headrace.operators.settled import MARKS, Gathers, not_gathered
from headrace.runtime.border import spark_batches, spark_schema
from headrace.runtime.task import Attempt
from headrace.runtime.task_spec import TaskSpec
from headrace.runtime.whereabouts import working_folder
from headrace.spark.worker import freeze_modules
from headrace.state.layout import HASH
from headrace.state.working import Working


@dataclass(frozen=True)
class GatherTask:
    """Called by Spark before the instance task, if Spark has to merge values (`operators.settled`). Yields rows with their keys' state."""

    spec: TaskSpec

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        return self.run_instance(InstanceId(context.partitionId()), batches)

    def at_home(self, instance: InstanceId, rows: pa.Table) -> pa.Table:
        """Gather the rows of an instance at its home executor, which gets all its rows at once."""
        found = list(self.run_instance(instance, iter(rows.to_batches())))
        return pa.Table.from_batches(found, found[0].schema if found else spark_schema(self._schema))

    @property
    def _schema(self) -> pa.Schema:
        schema = self.spec.operator.input_schema
        return pa.schema([*(pa.field(f.name, pa.int64() if f.name == HASH else f.type) for f in schema), *MARKS.items()])

    def run_instance(self, instance: InstanceId, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Gather the rows of one instance. Nothing for a number without an instance, or without rows."""
        if instance >= len(self.spec.routing.parts):
            return
        freeze_modules()
        set_level(self.spec.log_level)
        with self.spec.log_fields(instance):
            working = None if self.spec.working is None else Working(working_folder(self.spec.working))
            rows = self._gathered(Attempt(self.spec, instance, 0, working), batches)
            if rows.num_rows:
                columns = [rows.column(f.name).view(pa.int64()) if f.name == HASH else rows.column(f.name) for f in self._schema]
                yield from spark_batches(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _gathered(self, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
        """The instance's rows, one per key, with the keys' state. If state is missing, the rows as they came: the next task reports it."""
        operator = self.spec.operator.bounded(attempt.part)
        rows = attempt.read_rows(batches)
        if not rows.num_rows or not isinstance(operator, Gathers):
            return not_gathered(rows)
        try:
            return operator.gather(rows, attempt.open_views(attempt.part, attempt.working))
        except MissingRunError:
            return not_gathered(rows)
