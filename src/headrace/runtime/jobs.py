"""The Spark jobs of one version: which operators run together, on what rows.

An operator whose results only one other operator reads passes them on inside the same job. Results that several read, or a sink, are
staged in files. So a chain of operators is one job, with one shuffle in front of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark import inheritable_thread_target
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.compile.dataflow import BATCH, Dataflow, Op
from headrace.compile.homes import INSTANCE, at_home
from headrace.compile.prepared import Frames, Preparations
from headrace.compile.routing import route, route_by_column
from headrace.config import Config
from headrace.errors import require
from headrace.runtime.failures import mark_place
from headrace.runtime.placement import Placement
from headrace.runtime.reports import InstanceReport, from_text
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import staged_frame
from headrace.runtime.task import REPORTS, InstanceTask, Phase, TaskSpec
from headrace.runtime.task_files import reports_left
from headrace.spark.exchange import claim_one_partition
from headrace.spark.plans import empty_frame
from headrace.state.manifest import StagedFile

FLUSH_ROWS_HERE = 2_000_000
"""Up to so many rows of state the driver closes windows itself: a Spark job would take longer to start than that takes ..."""
RESULT_ROWS_HERE = 1_000_000
RESULT_BYTES_HERE = 1 << 27
"""... if they give no more than so many results, and results of so many bytes."""
FLUSHED_HERE = 0
"""... under the number of a task attempt, of which there can be only one."""

JOBS_AT_ONCE = 4

SKEWED = 1.5
"""A slot with more than so many times an instance's share is worth combining for, whatever that does to the other rows."""
COMBINE_BELOW = 0.7
"""Combine before the shuffle while it leaves less than this share of the rows."""


@dataclass
class Combining:
    """Whether to combine before the shuffle, learned for each operator from what it did to the last batch."""

    config: Config
    pays: dict[str, bool] = field(default_factory=dict)

    def wanted(self, op: Op) -> bool:
        choice = {"always": True, "never": False}.get(self.config.combine, self.pays.get(op.id, True))
        return choice and op.plan.many is not None

    def learn(self, op: Op, reports: list[InstanceReport]) -> None:
        rows = sum(r.rows for r in reports)
        if rows < 1000:
            return
        by_slot: Counter[int] = Counter()
        for report in reports:
            by_slot.update(dict(report.rows_per_slot))
        if len(reports) > 1 and max(by_slot.values()) > SKEWED * rows / len(reports):
            # A hot key: combined where its rows are read, on all cores, its owner gets one row from each.
            self.pays[op.id] = True
        elif self.wanted(op):
            self.pays[op.id] = sum(r.rows_shuffled for r in reports) < COMBINE_BELOW * rows
        else:
            self.pays[op.id] = sum(r.keys for r in reports) * max(1, len(reports)) < COMBINE_BELOW * rows / 2


@dataclass
class Jobs:
    """Runs the operators of one step of a version: its rows, or its flush."""

    flow: Dataflow
    session: SparkSession
    directory: Path
    specs: dict[str, TaskSpec]
    """What each operator's tasks are told; only those of operators that run in this step."""
    batch: DataFrame | None
    """The batch's rows; none in a flush."""
    preparations: Preparations
    combining: Combining
    direct: dict[str, Sink]
    """Operators whose results go straight to a sink that keeps nothing."""
    placement: Placement | None
    """Where instances live; None where the driver does all the work."""
    beside: Executor
    """Runs jobs that need not wait for each other."""
    phases: dict[str, float] = field(default_factory=dict)
    shuffles: bool = False
    """Rows are shuffled also to a single instance, which could read them itself. Then it does the same work as one of many does."""
    reports: dict[str, list[InstanceReport]] = field(default_factory=dict)

    def run(self) -> dict[str, list[InstanceReport]]:
        self._run_in_order([op for op in self.flow.ops if op.id in self.specs and not self._joins_another_job(op)])
        for op in self.flow.ops:
            if op.id in self.specs and op.id not in self.reports:
                self.reports[op.id] = self._checked(op, reports_left(self.specs[op.id]))
            if op.id in self.specs and self.specs[op.id].until_ms is None:
                self.combining.learn(op, self.reports[op.id])
        return self.reports

    def _run_in_order(self, waiting: list[Op]) -> None:
        """Each after those whose results it reads; where one need not wait for another, their jobs run at the same time."""
        running: dict[Future[list[InstanceReport]], Op] = {}
        try:
            while waiting or running:
                ready = [op for op in waiting if not any(self._needs(op, other) for other in (*waiting, *running.values()))]
                waiting = [op for op in waiting if op not in ready]
                alone = len(ready) == 1 and not running
                for op in ready:
                    job = self._job(op)
                    if job is None or alone:
                        with Phase(self.phases, "job"):
                            self.reports[op.id] = self._here(op) if job is None else job()
                    else:
                        running[self.beside.submit(inheritable_thread_target(self.session)(job))] = op
                with Phase(self.phases, "job"):
                    done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    self.reports[running.pop(future).id] = future.result()
        finally:
            # A batch is over when all its jobs are.
            wait(running)

    def _needs(self, op: Op, other: Op) -> bool:
        """Whether an operator reads what the other one's job gives, itself or through one that runs in its own job."""
        above = [up for up in self.flow.upstream(op) if up.id in self.specs]
        return other in above or any(self._needs(up, other) for up in above if self._joins_another_job(up))

    def _joins_another_job(self, op: Op) -> bool:
        """Whether the next operator's job computes this one as well."""
        following = self.flow.next_op(op)
        return following is not None and following.id in self.specs and self.specs[op.id].passes_on

    def _job(self, op: Op) -> Callable[[], list[InstanceReport]] | None:
        """The operator's work, planned, and still to be done by Spark; None if that is so little that the driver does it."""
        spec = self.specs[op.id]
        with Phase(self.phases, "plan"):
            rows = self._input(op)
            if rows is None and spec.until_ms is not None and not spec.passes_on and closes_here(spec):
                return None
            return partial(self._by_spark, op, self._work(op, rows, op.plan.kernel_schema if op.id in self.direct else REPORTS))

    def _by_spark(self, op: Op, rows: DataFrame) -> list[InstanceReport]:
        try:
            if op.id not in self.direct:
                return self._checked(op, [row[0] for row in rows.collect()])
            self.direct[op.id].deliver(self.specs[op.id].version, self.results(op, rows))
        except Exception as failure:
            raise mark_place(failure, f"operator {op.id} ({op.where})") from failure.__cause__
        return self._checked(op, reports_left(self.specs[op.id]))

    def _here(self, op: Op) -> list[InstanceReport]:
        task = InstanceTask(self.specs[op.id])
        return [task.run_here(at, FLUSHED_HERE) for at in range(len(self.specs[op.id].routing.parts))]

    def results(self, op: Op, rows: DataFrame) -> DataFrame:
        """What a sink that alone takes this operator's results gets of the kernel's rows."""
        ((branch,),) = [port for port in self.flow.outlets if any(b.source == op.id for b in port)]
        return branch.apply(op.plan.results(rows))

    def _input(self, op: Op) -> DataFrame | None:
        """What the operator's rows in this step are, combined or projected, before they are routed; None if there are none."""
        combine = self.combining.wanted(op)
        if self.batch is not None and self.flow.only_reader is op:
            return self._of_batch(op, self.batch, combine)
        frames = {name: frame for name in self.flow.frames_of(op.ports) if (frame := self._frame(name)) is not None}
        if not frames:
            return None

        def build(frames: Frames) -> DataFrame:
            ports = zip(op.plan.inputs, (self.flow.rows(port, frames) for port in op.ports), strict=True)
            rows = op.plan.select(tuple(empty_frame(self.session, like.schema) if there is None else there for like, there in ports))
            return rows if combine else op.plan.projected(rows)

        rows = self.preparations.frame((op.id, combine, *frames), build, frames, self.session)
        return op.plan.combined(rows) if combine else rows

    def _of_batch(self, op: Op, batch: DataFrame, combine: bool) -> DataFrame:
        """The same where the operator alone reads the batch."""
        boundary = self.flow.boundary
        if boundary is None:
            return op.plan.combined(batch) if combine else op.plan.projected(batch)
        # The claim is on the batch itself: whatever lies between would keep it from being compiled together with the combining.
        leaf = claim_one_partition(batch) if combine else batch
        rows = self.preparations.frame((op.id, combine), lambda frames: boundary.above(frames[BATCH]), {BATCH: leaf}, self.session)
        return op.plan.grouped(rows) if combine else op.plan.projected(rows)

    def _frame(self, name: str) -> DataFrame | None:
        """The batch, or the kernel's rows of an operator in this step; None if there are none."""
        if name == BATCH:
            return self.batch
        if name not in self.specs:
            return None
        op = self.flow.by_id[name]
        if name in self.reports:
            staged = tuple(s for report in self.reports[name] for s in report.staged)
            return staged_frame(self.session, self.directory, staged, op.plan.kernel_schema)
        return self._work(op, self._input(op), op.plan.kernel_schema) if self.specs[name].passes_on else None

    def _work(self, op: Op, rows: DataFrame | None, schema: StructType | str) -> DataFrame:
        """What the operator's instances make of their rows: results, or reports."""
        spec = self.specs[op.id]
        task, routing, tasks = InstanceTask(spec), spec.routing, len(spec.routing.parts)
        anchor = self.placement.anchor(self.session, op.id) if self.placement is not None else None
        if rows is None:
            return (anchor or self.session.range(0, tasks, 1, tasks)).mapInArrow(task, schema)
        if anchor is not None:
            return at_home(anchor, route_by_column(rows, routing, INSTANCE), task.at, schema)
        made_here = any(self._joins_another_job(up) for up in self.flow.upstream(op) if up.id in self.specs)
        return route(rows, routing, in_task=not made_here and not self.shuffles).mapInArrow(task, schema)

    def _checked(self, op: Op, texts: list[str]) -> list[InstanceReport]:
        reports = sorted((from_text(text) for text in texts), key=lambda r: r.instance)
        # A task that ran twice may report twice; either attempt's files are complete, and one of them is enough.
        one_each = {report.instance: report for report in reports}
        expected = list(range(len(self.specs[op.id].routing.parts)))
        require(sorted(one_each) == expected, f"every instance of {op.id} reports; these did: {sorted(one_each)}")
        return list(one_each.values())


@dataclass(frozen=True)
class Delivery:
    """What sinks get of a committed version."""

    flow: Dataflow
    session: SparkSession
    directory: Path
    preparations: Preparations
    batch: DataFrame
    staged: tuple[StagedFile, ...]

    def rows(self, outlet: int) -> DataFrame | None:
        """None if there is nothing."""
        port = self.flow.outlets[outlet]
        frames = {name: frame for name in self.flow.frames_of([port]) if (frame := self._frame(name)) is not None}
        if not frames:
            return None

        def build(frames: Frames) -> DataFrame:
            rows = self.flow.rows(port, frames, as_finished=True)
            assert rows is not None
            return rows

        return self.preparations.frame((outlet, *frames), build, frames, self.session)

    def _frame(self, name: str) -> DataFrame | None:
        if name == BATCH:
            return self.batch
        own = tuple(s for s in self.staged if s.operator == name)
        return staged_frame(self.session, self.directory, own, self.flow.by_id[name].plan.kernel_schema)


def merged(first: list[InstanceReport], then: list[InstanceReport]) -> list[InstanceReport]:
    """Both steps of a version in one report per instance."""
    later = {r.instance: r for r in then}
    return [_together(r, later[r.instance]) if r.instance in later else r for r in first] if first else then


def _together(a: InstanceReport, b: InstanceReport) -> InstanceReport:
    return replace(
        a,
        runs=b.runs,
        staged=(*a.staged, *b.staged),
        rows=a.rows + b.rows,
        rows_shuffled=a.rows_shuffled + b.rows_shuffled,
        rows_late=a.rows_late + b.rows_late,
        rows_out=a.rows_out + b.rows_out,
        keys=a.keys + b.keys,
        keys_new=None if a.keys_new is None or b.keys_new is None else a.keys_new + b.keys_new,
        cpu_s=a.cpu_s + b.cpu_s,
        wall_s=a.wall_s + b.wall_s,
        fetched_bytes=a.fetched_bytes + b.fetched_bytes,
        phases_ms={name: a.phases_ms.get(name, 0.0) + b.phases_ms.get(name, 0.0) for name in {**a.phases_ms, **b.phases_ms}},
    )


def closes_here(spec: TaskSpec) -> bool:
    """Whether a flush is so little work that the driver does it. It never runs users' code, nor holds many results."""
    operator, until_ms = spec.operator, spec.until_ms
    assert until_ms is not None
    every = [ref for refs in spec.refs.values() for ref in refs]
    rows = sum(ref.rows for ref in every)
    if operator.runs_user_code or rows > FLUSH_ROWS_HERE:
        return False
    after_ms = spec.moment.watermark_ms
    due = {
        name: tuple(ref for ref in spec.refs.get(name, ()) if store.is_due(ref, after_ms, until_ms))
        for name, store in operator.stores.items()
    }
    results = operator.close_rows_max(due, spec.moment, until_ms)
    state_bytes = sum({ref.file: ref.bytes for ref in every}.values())
    return results <= RESULT_ROWS_HERE and results * state_bytes <= RESULT_BYTES_HERE * max(rows, 1)
