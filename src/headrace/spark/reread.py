"""Reading the rows of an earlier micro-batch of a running query again, by Spark's own log of offsets.

Before each batch Spark notes up to where it reads each source. A source gives the same rows for the same two offsets. So the plan of an
earlier batch can be built again, in the way in which Spark's ``MicroBatchExecution`` builds the plan of a batch:

    offsets/6 -- start -+
    offsets/7 -- end ---+--> leaves --> the query's plan --> IncrementalExecution --> LogicalRDD --> what foreachBatch got

Each leaf that reads a stream is replaced by the source's rows between two offsets, or by nothing if the source had no new rows. The
current time becomes the time of the batch. Spark's ``IncrementalExecution`` plans the result, which needs no setting: it takes a plan that
calls itself streaming. The rows are an RDD, as in ``foreachBatch``, so whatever is built on them is not streaming.

Nothing of the running query changes. The new plan has statistics and metrics of its own, and no source is told that anything is committed.
The rows are those of the query's present plan: a query that was changed and restarted computes earlier batches in its new way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import CheckpointError, SourceError, UnsupportedError, require
from headrace.spark.event_times import EventTimes, Nodes
from headrace.spark.gateway import REFUSALS, class_name, first_line, items, java_session, jvm_of, none, seq, singleton
from headrace.spark.plans import frame_of, project
from headrace.spark.replayable import BATCH_TIMES, WITHOUT_ZONE, nondeterministic_parts, static_inputs, unreplayable_sources
from headrace.spark.stateful import stateful_node
from headrace.spark.streaming import FILE_SOURCE
from headrace.spark.trees import CURRENT, expressions_with, walk
from headrace.spark.versions import dialect

__all__ = ["BatchReader", "nondeterministic_parts", "static_inputs", "unreplayable_sources"]

FIRST_API, SECOND_API = "StreamingExecutionRelation", "StreamingDataSourceV2ScanRelation"
"""Classes of the leaves that read a stream in the plan of a running query: sources of Spark's first and second API."""
_NO_ZONE = "Dummy TimeZoneId"
"""What Spark itself gives as the time zone of a batch's timestamp. It is never used, but without one the expression is not resolved."""
_EXECUTION_ID = "spark.sql.execution.id"
"""Property of a thread: the execution in Spark's UI to which jobs and metrics belong."""
_RETAINED = "spark.sql.streaming.minBatchesToRetain"


@dataclass(frozen=True)
class _Range:
    """The two offsets of a source in a batch. The start is None if the source had no offset before, the end if it has none yet."""

    start: Any | None
    end: Any | None

    def is_empty(self) -> bool:
        """True if the source has no new rows in the batch. Offsets are equal if their JSON is."""
        return self.end is None or (self.start is not None and self.start.json() == self.end.json())


@dataclass(frozen=True)
class _Run:
    """A plan and how it was executed, as ``EventTimes`` reads them."""

    plan: Any
    execution: Any

    def logicalPlan(self) -> Any:
        return self.plan

    def lastExecution(self) -> Any:
        return self.execution


class BatchReader:
    """Reads the rows of earlier batches of a running query again.

    It uses the running query's own sources, which are not made for several threads. Call it inside ``foreachBatch``, or from another
    thread while no batch runs and Spark plans none (``streaming.planning_paused``). The query must be initialised
    (``streaming.await_initialised``); inside ``foreachBatch`` it is.
    """

    def __init__(self, execution: Any, session: SparkSession) -> None:
        """``execution`` is Spark's ``StreamExecution``, ``session`` the query's own clone of the session: ``batch.sparkSession``."""
        self._execution = execution
        self._session = session
        self._jvm = jvm_of(session)
        self._times = EventTimes()
        self._last: _Run | None = None

    def rows(self, version: int, *, from_beginning: bool = False) -> DataFrame:
        """The DataFrame that ``foreachBatch`` got for a batch: the same columns and the same rows.

        With ``from_beginning``, the rows of all batches up to it: from where each source began.

        Raises CheckpointError if Spark's log has no offsets of the batch, and SourceError if a source cannot give its rows again. As in
        ``foreachBatch``, Spark may run jobs for a part of the plan at once, and computes the rows whenever they are used.
        """
        starts, ends = None if from_beginning else self._offsets(version - 1), self._offsets(version)
        require(ends is not None, "a batch has a number from 0 on")
        time_ms = int(self._execution.offsetLog().offsetSeqMetadataForBatchId(version).get().batchTimestampMs())
        try:
            rows = {leaf: self._rows_of(leaf, _range(leaf, starts, ends), version) for leaf in self._leaves}
            times = {each: self._batch_time(each, time_ms) for each in self._current_times}
            plan = self._plan.transform(self._replacing(rows)).transformAllExpressions(self._replacing(times))
            return self._frame(plan, version)
        except REFUSALS as refused:
            raise SourceError(
                where=f"reading batch {version} again from {self._location}",
                wanted="the same rows as before",
                found=first_line(refused),
                hint="a source must keep its rows, also those that were processed, until a later version of the state is durable",
            ) from refused

    def event_times(self) -> Nodes:
        """The event times of the batch that was read last, per ``withWatermark`` node, once all its rows were computed."""
        require(self._last is not None, "a batch was read")
        return self._times.observed(self._last)

    @cached_property
    def _plan(self) -> Any:
        """The query's plan, without the node that stands for its sink."""
        plan = self._execution.logicalPlan().child()
        stateful = stateful_node(plan)
        if stateful is not None:
            raise UnsupportedError(
                "Spark's own state cannot be taken back to an earlier batch",
                where=f"reading a batch of {self._location} again",
                wanted="a streaming DataFrame without stateful operators",
                found=stateful,
            )
        return plan

    @cached_property
    def _leaves(self) -> list[Any]:
        """The leaves that read streams. A source that is used twice may be one leaf at two places."""
        return list(dict.fromkeys(node for node in walk(self._plan) if class_name(node) in (FIRST_API, SECOND_API)))

    @cached_property
    def _current_times(self) -> list[Any]:
        """The expressions of the plan that have the time of the batch."""
        found = expressions_with(self._session, self._plan, CURRENT)
        return list(dict.fromkeys(each for each in found if class_name(each) in BATCH_TIMES))

    @property
    def _location(self) -> str:
        return str(self._execution.resolvedCheckpointRoot())

    def _offsets(self, version: int) -> Any | None:
        """Up to where a batch read each source: a Scala Map from source to offset. None before the first batch."""
        if version < 0:
            return None
        found = self._execution.offsetLog().get(version)
        if found.isEmpty():
            raise self._without_offsets(version)
        ids = (self._execution.sourceIdMap(),) if dialect().offsets_by_source_id else ()
        return found.get().toStreamProgress(self._execution.sources(), *ids)

    def _without_offsets(self, version: int) -> CheckpointError:
        kept = list(self._execution.offsetLog().listBatchesOnDisk())
        hint = f"set {_RETAINED} to more than the number of batches that may have to be read again"
        return CheckpointError(
            where=f"{self._location}/offsets",
            wanted=f"Spark's offsets of batch {version}",
            found=f"those of batches {kept[0]} to {kept[-1]}" if kept else "none",
            hint=hint if kept and version < kept[0] else "",
        )

    def _rows_of(self, leaf: Any, batch: _Range, version: int) -> Any:
        """The plan that replaces a leaf of the query's plan: the rows of its source in the batch."""
        if batch.is_empty():
            logical = self._jvm.org.apache.spark.sql.catalyst.plans.logical
            return logical.LocalRelation(leaf.output(), seq(self._session, []), True, none(self._session))
        if class_name(leaf) == FIRST_API:
            return self._with_columns_of(leaf, self._given_rows(leaf, batch, version))
        stream, some = leaf.stream(), self._jvm.scala.Some
        # The log has offsets as text, or the source's own objects if it was written since this start.
        start = stream.initialOffset() if batch.start is None else stream.deserializeOffset(batch.start.json())
        end = stream.deserializeOffset(batch.end.json())  # type: ignore[union-attr]
        return leaf.copy(leaf.relation(), leaf.scan(), leaf.output(), stream, some(start), some(end))

    def _given_rows(self, leaf: Any, batch: _Range, version: int) -> Any:
        """The plan that a source of the first API gives for a batch, with the hidden column of files if the query uses it."""
        source = leaf.source()
        start = none(self._session) if batch.start is None else self._jvm.scala.Some(batch.start)
        rows = source.getBatch(start, batch.end).queryExecution().analyzed()
        if class_name(source) == FILE_SOURCE:
            self._check_files(rows, version)
        attribute = singleton(self._jvm.org.apache.spark.sql.catalyst.expressions, "FileSourceMetadataAttribute")
        hidden = any(attribute.unapply(column).isDefined() for column in items(leaf.output()))
        return with_file_metadata(self._session, rows) if hidden else rows

    def _check_files(self, rows: Any, version: int) -> None:
        """Refuse to read a batch of files if any of them is gone. Spark would leave it out without an error."""
        for node in walk(rows):
            if class_name(node) == "LogicalRelation":
                index = node.relation().location()
                wanted, found = index.rootPaths().size(), index.allFiles().size()
                if found < wanted:
                    raise SourceError(
                        where=f"reading batch {version} again from {self._location}",
                        wanted=f"the {wanted} files of the batch",
                        found=f"{found} of them",
                        hint="put the missing files back; a source must keep files that were processed, until a later version is durable",
                    )

    def _with_columns_of(self, leaf: Any, rows: Any) -> Any:
        """The rows under the column ids of a leaf, to which the plan above it refers."""
        alias, nothing = self._jvm.org.apache.spark.sql.catalyst.expressions.Alias, seq(self._session, [])
        named = [
            alias(now, wanted.name(), wanted.exprId(), nothing, self._jvm.scala.Some(now.metadata()), nothing)
            for wanted, now in zip(items(leaf.output()), items(rows.output()), strict=True)
        ]
        return project(self._session, named, rows)

    def _batch_time(self, expression: Any, time_ms: int) -> Any:
        """What Spark puts in the place of an expression for the current time."""
        zone = self._jvm.scala.Some(_NO_ZONE) if class_name(expression) in WITHOUT_ZONE else expression.timeZoneId()
        return self._jvm.org.apache.spark.sql.catalyst.expressions.CurrentBatchTimestamp(time_ms, expression.dataType(), zone)

    def _replacing(self, parts: Mapping[Any, Any]) -> Any:
        """The partial function that replaces parts of a tree. In Scala, a Map is one."""
        entries = self._jvm.java.util.HashMap()
        for old, new in parts.items():
            entries.put(old, new)
        return self._jvm.PythonUtils.toScalaMap(entries)

    def _frame(self, plan: Any, version: int) -> DataFrame:
        """Plan a batch as Spark does, and give its rows as ``foreachBatch`` gets them."""
        sql, execution = self._jvm.org.apache.spark.sql, self._execution
        log, state = execution.offsetLog(), f"{self._location}/state"
        runtime = sql.execution.streaming.runtime
        watermarks, mode = singleton(runtime, "WatermarkPropagator").noop(), sql.execution.CommandExecutionMode.ALL()
        no_ids, no_schemas = self._jvm.scala.collection.mutable.HashMap(), self._jvm.scala.collection.mutable.HashMap()
        first_of_run = terminating = False
        planned = runtime.IncrementalExecution(
            *(java_session(self._session), plan, execution.outputMode(), state, execution.id(), execution.runId(), version),
            *(log.offsetSeqMetadataForBatchId(version - 1), log.offsetSeqMetadataForBatchId(version).get(), watermarks, first_of_run),
            *(no_ids, no_schemas, mode, terminating, *dialect().incremental_execution_flags),
        )
        with self._apart_from_the_batch():
            whole = sql.classic.Dataset(planned, sql.catalyst.encoders.ExpressionEncoder.apply(planned.analyzed().schema()))
            rdds = singleton(sql.execution, "LogicalRDD")
            relation = rdds.fromDataset(planned.toRdd(), whole, False, *dialect().logical_rdd_flags)
        self._last = _Run(self._plan, planned)
        return frame_of(self._session, relation)

    @contextmanager
    def _apart_from_the_batch(self) -> Iterator[None]:
        """Meanwhile, jobs and metrics do not belong to the execution of the batch that runs now."""
        context = self._session.sparkContext
        before = context.getLocalProperty(_EXECUTION_ID)
        # None removes the property, which PySpark's types do not say.
        context.setLocalProperty(_EXECUTION_ID, None)  # type: ignore[arg-type]
        try:
            yield
        finally:
            context.setLocalProperty(_EXECUTION_ID, before)  # type: ignore[arg-type]


def _range(leaf: Any, starts: Any | None, ends: Any) -> _Range:
    """The offsets of a leaf's source in a batch."""
    source = leaf.source() if class_name(leaf) == FIRST_API else leaf.stream()
    return _Range(None if starts is None else _value(starts.get(source)), _value(ends.get(source)))


def _value(option: Any) -> Any | None:
    return option.get() if option.isDefined() else None


def with_file_metadata(session: SparkSession, plan: Any) -> Any:
    """The plan with the hidden column ``_metadata`` of its files, which is handed up through selections as well."""
    if class_name(plan) == "LogicalRelation":
        return plan.withMetadataColumns()
    children = [with_file_metadata(session, child) for child in items(plan.children())]
    above = plan.withNewChildren(seq(session, children)) if children else plan
    if class_name(above) != "Project":
        return above
    shown = {column.exprId().id() for column in items(above.output())}
    hidden = [column for column in items(above.metadataOutput()) if column.exprId().id() not in shown]
    return project(session, [*items(above.projectList()), *hidden], children[0])
