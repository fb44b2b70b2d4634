"""Runs the jobs of a step as Spark jobs.

A job's chain of operators becomes one plan: input, shuffle, instance tasks, shuffle, instance tasks and so on. The plan returns the reports
of the last operator's tasks. Tasks of earlier operators return results for the next one, so they write their reports to files.
`runtime/schedule.py` decides which jobs there are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.compile.dataflow import BATCH, Dataflow, Op
from headrace.compile.homes import INSTANCE, at_home
from headrace.compile.plan import gathered_type
from headrace.compile.prepared import Frames, Preparations
from headrace.compile.routing import route, route_by_column
from headrace.compile.shedding import NO_DROPPING, Dropping
from headrace.control import suspicion
from headrace.errors import require
from headrace.graph.steps import REACHED
from headrace.ids import InputId, OperatorId, SourceId
from headrace.runtime.combining import Combining
from headrace.runtime.failures import mark_place
from headrace.runtime.flush_here import close_here, closes_here
from headrace.runtime.gathering import GatherTask
from headrace.runtime.hedging import Hedge
from headrace.runtime.parallel import ReroutedError
from headrace.runtime.phases import Phase
from headrace.runtime.placement import Homes, Placement
from headrace.runtime.recovery import ATTEMPTS_MAX, Recovery, Watch
from headrace.runtime.reports import InstanceReport, from_text
from headrace.runtime.schedule import Job, Staged, ToSink
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import staged_frame
from headrace.runtime.task import REPORTS, InstanceTask
from headrace.runtime.task_files import reports_left
from headrace.runtime.task_spec import TaskSpec
from headrace.spark.event_times import Nodes
from headrace.spark.exchange import claim_one_partition
from headrace.spark.gateway import SPARK_ERRORS
from headrace.spark.observed import observed
from headrace.spark.plans import empty_frame
from headrace.spark.task_times import tagged
from headrace.state.durable import DurableStore

JOBS_AT_ONCE = 4

Reports = dict[OperatorId, list[InstanceReport]]
"""The reports of all tasks, by operator."""


@dataclass(frozen=True)
class JobRunner:
    """Runs the jobs of one version after the other. It holds what they have in common."""

    flow: Dataflow
    sinks: tuple[Sink, ...]
    store: DurableStore
    preparations: Preparations
    combining: Combining
    placement: Placement | None
    """The homes of instances; None if the driver does all the work."""
    recovery: Recovery | None
    """Watches executors; None if there are none."""
    beside: Executor
    """Runs independent jobs at the same time."""
    always_shuffles: bool = False
    """If True, rows are shuffled even to a single instance, which could read them without a shuffle. Then one instance does the same kind
    of work as many do, so that a policy can compare their utilisation."""
    active: bool = False
    """If True, a step that seems to hang runs a second time beside the first, and the first to end counts."""
    label: str = "query"
    """What Spark's UI calls the query."""
    times_ms: dict[str, int] = field(default_factory=dict)
    """The greatest event times of results, by watermark, until the version takes them."""

    def run(
        self,
        jobs: Sequence[Job],
        specs: Mapping[OperatorId, TaskSpec],
        session: SparkSession,
        batch: DataFrame | None,
        phases: dict[str, float],
        may_split: bool = False,
        dropping: Dropping = NO_DROPPING,
    ) -> Reports:
        """Run a step's jobs on the rows of a batch, or without rows in a flush. `specs` has what the tasks of each operator need.

        If ``may_split``, raises ReroutedError after a loss that has changed the routing: then the version must begin again.
        """
        step = self._attempted(partial(_StepRun, self, jobs, specs, session, batch, phases, dropping), may_split)
        for op in self.flow.ops:
            if op.id in specs and op.id not in step.reports:
                step.reports[op.id] = _checked(op, specs[op.id], reports_left(specs[op.id]))
            if op.id in specs and batch is not None:
                self.combining.learn(op, step.reports[op.id])
        return step.reports

    def learn_times(self, seen: Mapping[str, Mapping[str, object]]) -> None:
        """Note what was observed of event times while a plan ran."""
        for step in self.flow.watermarks:
            reached = seen.get(step.key, {}).get(REACHED)
            if isinstance(reached, int):
                self.times_ms[step.key] = max(reached, self.times_ms.get(step.key, reached))

    def drain_times(self) -> Nodes:
        """For each watermark on results: the greatest event time since the last call, minus the delay. None without rows."""
        found = tuple(None if step.key not in self.times_ms else self.times_ms[step.key] - step.delay_ms for step in self.flow.watermarks)
        self.times_ms.clear()
        return found

    def split_missing(self) -> None:
        """Before a version is made: split instances whose executors were lost since the last one, if that pays."""
        if self.recovery is not None:
            self.recovery.parallel.split_missing()

    def _attempted(self, attempt: Callable[[], _StepRun], may_split: bool) -> _StepRun:
        """Run a step. If an executor is lost or hangs on the way, run it again on the others."""
        if self.recovery is None:
            step = attempt()
            step.run_in_order()
            return step
        for number in itertools.count(1):
            step = attempt()
            hedge = self._hedge(step)
            with self.recovery.watching(is_flush=step.batch is None, hedge=hedge) as watch:
                try:
                    step.run_in_order()
                    return step
                except SPARK_ERRORS:
                    # Spark may report the loss before the watch has seen it.
                    if watch.look() is None or number == ATTEMPTS_MAX:
                        raise
                finally:
                    second = None if hedge is None else self._second(hedge, watch)
            if hedge is not None and second is not None:
                self.recovery.take_second(watch, hedge)
                return second
            if step.batch is not None and step.batch.is_cached:
                # Rows that are cached would not be read again, and the event times that a cancelled task saw in them are lost.
                step.batch.unpersist().persist()
            step.dropping.again()
            if self.recovery.begin_again(watch, {op: spec.routing for op, spec in step.specs.items()}, may_split):
                raise ReroutedError
        raise AssertionError

    def _hedge(self, step: _StepRun) -> Hedge[_StepRun] | None:
        """A second attempt that may run beside a step; None if none may.

        Results that go to a sink must not go there twice. Operators that pass results on leave their reports in files, where those of two
        attempts would be mixed. Rows that are cached for one attempt would not be counted for the other.
        """
        alone = all(len(job.stages) == 1 and isinstance(job.last.destination, Staged) for job in step.jobs)
        cached = step.batch is not None and step.batch.is_cached
        if not self.active or self.placement is None or not alone or cached:
            return None
        routing = {op: spec.routing for op, spec in step.specs.items()}
        return Hedge(self.placement, step.session, routing, lambda homes: replace(step, homes=homes, phases={}, reports={}))

    def _second(self, hedge: Hedge[_StepRun], watch: Watch) -> _StepRun | None:
        """The second attempt, if it has won. Waits for it if the first was broken off for the same reason; ends it otherwise."""
        if watch.interruption is not None and set(watch.interruption.executors) <= hedge.suspects:
            hedge.wait(suspicion.patience_s(watch.usual_s or 0.0))
        hedge.cancel()
        return hedge.won if watch.interruption is not None else None


@dataclass
class _StepRun:
    """One step of one version while it runs."""

    shared: JobRunner
    jobs: Sequence[Job]
    specs: Mapping[OperatorId, TaskSpec]
    session: SparkSession
    batch: DataFrame | None
    phases: dict[str, float]
    dropping: Dropping
    """What the branches of the batch drop."""
    reports: Reports = field(default_factory=dict)
    homes: Mapping[OperatorId, Homes] = field(default_factory=dict)
    """Homes other than those of the placement, for a second attempt."""

    def __post_init__(self) -> None:
        self.flow = self.shared.flow
        self.inside = {stage.operator for job in self.jobs for stage in job.stages[:-1]}
        """Operators whose results go to the next operator inside the same job."""

    def run_in_order(self) -> None:
        """Run each job after those whose results it reads. Independent jobs run at the same time."""
        waiting = list(self.jobs)
        running: dict[Future[list[InstanceReport]], Job] = {}
        try:
            while waiting or running:
                unfinished = {job.last.operator for job in (*waiting, *running.values())}
                ready = [job for job in waiting if not job.needs & unfinished]
                waiting = [job for job in waiting if job not in ready]
                alone = len(ready) == 1 and not running
                for job in ready:
                    work = self._planned(job)
                    if work is None or alone:
                        with Phase(self.phases, "job"):
                            self.reports[job.last.operator] = close_here(self.specs[job.last.operator]) if work is None else work()
                    else:
                        running[self.shared.beside.submit(inheritable_thread_target(self.session)(work))] = job
                with Phase(self.phases, "job"):
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self.reports[running.pop(future).last.operator] = future.result()
        finally:
            # Even after a failure, the batch has not ended before all its jobs have.
            wait(running)

    def _planned(self, job: Job) -> Callable[[], list[InstanceReport]] | None:
        """Plan a job, and return the call that lets Spark run it. None if it is so small that the driver does it."""
        op, spec = self.flow.by_id[job.last.operator], self.specs[job.last.operator]
        sink = job.last.destination.sink if isinstance(job.last.destination, ToSink) else None
        with Phase(self.phases, "plan"):
            rows = self._input(op)
            if rows is None and spec.until_ms is not None and sink is None and closes_here(spec):
                return None
            work = self._work(op, rows, REPORTS if sink is None else op.plan.results.kernel_schema)
            return partial(self._run_by_spark, op, work, sink, " → ".join(stage.operator for stage in job.stages))

    def _run_by_spark(self, op: Op, rows: DataFrame, sink: int | None, names: str) -> list[InstanceReport]:
        if self.dropping.places and self.batch is not None:
            with tagged(self.session.sparkContext, op.id, self.dropping.tags):
                return self._by_spark(op, rows, sink, names)
        return self._by_spark(op, rows, sink, names)

    def _by_spark(self, op: Op, rows: DataFrame, sink: int | None, names: str) -> list[InstanceReport]:
        spec = self.specs[op.id]
        # For Spark's UI. The job's group stays Spark's own, by which it cancels the jobs of a query.
        description = f"{self.shared.label} · version {spec.version} · {names} × {len(spec.routing.parts)}"
        self.session.sparkContext.setJobDescription(description)
        try:
            if sink is None:
                texts = [row[0] for row in rows.collect()]
                if self.flow.watermarks:
                    self.shared.learn_times(observed(rows))
                if self.dropping.places and self.batch is not None:
                    self.dropping.learn(observed(rows))
                return _checked(op, spec, texts)
            ((branch,),) = [port for port in self.flow.outlets if any(b.source == op.id for b in port)]
            results = branch.apply(op.plan.results.marked(rows))
            self.shared.sinks[sink].deliver(spec.version, results)
            if self.dropping.places and self.batch is not None:
                self.dropping.learn(observed(results))
        except Exception as failure:
            raise mark_place(failure, f"operator {op.id} ({op.where})") from failure.__cause__
        return _checked(op, spec, reports_left(spec))

    def _input(self, op: Op) -> DataFrame | None:
        """The operator's input rows in this step, combined or projected, but not yet routed; None if there are none."""
        # Rows that were combined are an RDD, in which Spark's observations of event times cannot be found.
        combine = not self.flow.watermarks and self.shared.combining.wanted(op)
        if self.batch is not None and self.flow.only_reader is op:
            return self._input_of_batch(op, self.batch, combine)
        frames: Frames = {name: frame for name in self.flow.frames_of(op.ports) if (frame := self._frame(name)) is not None}
        if not frames:
            return None

        def build(frames: Frames) -> DataFrame:
            ports = zip(op.plan.input.frames, (self.flow.rows(port, frames, dropping=self.dropping) for port in op.ports), strict=True)
            rows = op.plan.input.select(tuple(empty_frame(self.session, like.schema) if there is None else there for like, there in ports))
            return rows if combine else op.plan.input.projected(rows)

        rows = self.shared.preparations.frame((op.id, combine, *frames), build, frames, self.session)
        return op.plan.combined(rows) if combine else rows

    def _input_of_batch(self, op: Op, batch: DataFrame, combine: bool) -> DataFrame:
        """The input rows of an operator that is the only reader of the batch."""
        boundary = self.flow.boundary
        if boundary is None:
            return op.plan.combined(batch) if combine else op.plan.input.projected(batch)
        # The claim must be directly on the batch. A node in between would keep Spark from compiling the two together.
        leaf = claim_one_partition(batch) if combine else batch
        prepared = self.shared.preparations
        rows = prepared.frame((op.id, combine), lambda frames: boundary.above(frames[BATCH]), {BATCH: leaf}, self.session)
        return op.plan.grouped(rows) if combine else op.plan.input.projected(rows)

    def _frame(self, name: InputId) -> DataFrame | None:
        """The batch's rows, or those that an operator's kernel gave in this step; None if there are none."""
        if isinstance(name, SourceId):
            return self.batch
        if name not in self.specs:
            return None
        op = self.flow.by_id[name]
        if op.id in self.reports:
            staged = tuple(s for report in self.reports[op.id] for s in report.staged)
            return staged_frame(self.session, self.shared.store, staged, op.plan.results.kernel_schema, self.specs[name].working)
        return self._work(op, self._input(op), op.plan.results.kernel_schema) if op.id in self.inside else None

    def _work(self, op: Op, rows: DataFrame | None, schema: StructType | str) -> DataFrame:
        """The output of the operator's tasks for these rows: results, or reports."""
        spec, placement = self.specs[op.id], self.shared.placement
        task, routing, tasks = InstanceTask(spec), spec.routing, len(spec.routing.parts)
        anchor = placement.anchor(self.session, op.id, self.homes.get(op.id)) if placement is not None else None
        if rows is None:
            return (anchor or self.session.range(0, tasks, 1, tasks)).mapInArrow(task, schema)
        made_here = any(up.id in self.inside for up in self.flow.upstream(op))
        in_task = not made_here and not self.shared.always_shuffles
        if op.plan.settle is not None:
            gather, kind = GatherTask(spec), gathered_type(op.plan)
            if anchor is not None:
                gathered = at_home(anchor, route_by_column(rows, routing, INSTANCE), gather.at_home, kind)
            else:
                gathered = route(rows, routing, in_task=in_task).mapInArrow(gather, kind)
            return op.plan.settle(gathered).mapInArrow(task, schema)
        if anchor is not None:
            return at_home(anchor, route_by_column(rows, routing, INSTANCE), task.at_home, schema)
        return route(rows, routing, in_task=in_task).mapInArrow(task, schema)


def _checked(op: Op, spec: TaskSpec, texts: list[str]) -> list[InstanceReport]:
    reports = sorted((from_text(text) for text in texts), key=lambda r: r.instance)
    # A task that ran twice may report twice. The files of each attempt are complete, so one report is enough.
    one_each = {report.instance: report for report in reports}
    expected = list(range(len(spec.routing.parts)))
    require(sorted(one_each) == expected, f"every instance of {op.id} reports; these did: {sorted(one_each)}")
    return list(one_each.values())
