"""The Spark jobs of one version: which operators run together, on what rows.

An operator whose results only one other operator reads passes them on inside the same job. Results that several read, or a sink, are
staged in files. So a chain of operators is one job, with one shuffle in front of each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headrace.compile.dataflow import Branch, Dataflow, Op, Port
from headrace.compile.homes import INSTANCE, at_home
from headrace.compile.routing import route, route_by_column
from headrace.config import Config
from headrace.errors import require
from headrace.runtime.placement import Placement
from headrace.runtime.reports import InstanceReport, from_text
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import staged_frame
from headrace.runtime.task import REPORTS, InstanceTask, Phase, TaskSpec, reports_left
from headrace.state.manifest import StagedFile

FLUSH_ROWS_HERE = 2_000_000
"""Up to so many rows of state the driver closes windows itself: a Spark job would take longer to start than that takes."""
FLUSHED_HERE = 0
"""... under the number of a task attempt, of which there can be only one."""

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
    sources: dict[str, DataFrame]
    """The batch's rows by source; none in a flush."""
    selected: DataFrame | None
    """The batch itself, where it is already what the only reader needs."""
    combining: Combining
    direct: dict[str, Sink]
    """Operators whose results go straight to a sink that keeps nothing."""
    placement: Placement | None
    """Where instances live; None where the driver does all the work."""
    phases: dict[str, float] = field(default_factory=dict)
    shuffles: bool = False
    """Rows are shuffled also to a single instance, which could read them itself. Then it does the same work as one of many does."""
    reports: dict[str, list[InstanceReport]] = field(default_factory=dict)

    def run(self) -> dict[str, list[InstanceReport]]:
        for op in self.flow.ops:
            if op.id in self.specs and not self._joins_another_job(op):
                self._run(op)
        for op in self.flow.ops:
            if op.id in self.specs and op.id not in self.reports:
                self.reports[op.id] = self._checked(op, reports_left(self.specs[op.id]))
            if op.id in self.specs and self.specs[op.id].until_ms is None:
                self.combining.learn(op, self.reports[op.id])
        return self.reports

    def _joins_another_job(self, op: Op) -> bool:
        """Whether the next operator's job computes this one as well."""
        following = self.flow.next_op(op)
        return following is not None and following.id in self.specs and self.specs[op.id].passes_on

    def _run(self, op: Op) -> None:
        spec = self.specs[op.id]
        with Phase(self.phases, "plan"):
            rows = self._input(op)
            small = spec.until_ms is not None and not spec.passes_on and _state_rows(spec) <= FLUSH_ROWS_HERE
            schema = op.plan.kernel_schema if op.id in self.direct else REPORTS
            done = None if rows is None and small else self._work(op, rows, schema)
        with Phase(self.phases, "job"):
            if done is None:
                self.reports[op.id] = [InstanceTask(spec).run(iter(()), at, FLUSHED_HERE)[1] for at in range(len(spec.routing.parts))]
                return
            if op.id in self.direct:
                self.direct[op.id].deliver(spec.version, self.results(op, done))
                texts = reports_left(spec)
            else:
                texts = [row[0] for row in done.collect()]
        self.reports[op.id] = self._checked(op, texts)

    def results(self, op: Op, rows: DataFrame) -> DataFrame:
        """What a sink that alone takes this operator's results gets of the kernel's rows."""
        ((branch,),) = [port for port in self.flow.outlets if any(b.source == op.id for b in port)]
        return branch.apply(op.plan.results(rows))

    def _input(self, op: Op) -> DataFrame | None:
        """What the operator's rows in this step are, before they are routed; None if there are none."""
        if self.selected is not None and self.flow.only_reader is op:
            return self.selected
        frames = [self._rows(port) for port in op.ports]
        if all(frame is None for frame in frames):
            return None
        known = zip(frames, op.plan.inputs, strict=True)
        nothing = self.session.createDataFrame
        return op.plan.select(tuple(nothing([], template.schema) if frame is None else frame for frame, template in known))

    def _work(self, op: Op, rows: DataFrame | None, schema: StructType | str) -> DataFrame:
        """What the operator's instances make of their rows: results, or reports."""
        spec = self.specs[op.id]
        task, routing, tasks = InstanceTask(spec), spec.routing, len(spec.routing.parts)
        anchor = self.placement.anchor(self.session, op.id) if self.placement is not None else None
        if rows is None:
            return (anchor or self.session.range(0, tasks, 1, tasks)).mapInArrow(task, schema)
        prepared = op.plan.combined(rows) if self.combining.wanted(op) else op.plan.projected(rows)
        if anchor is not None:
            return at_home(anchor, route_by_column(prepared, routing, INSTANCE), task.at, schema)
        made_here = any(self._joins_another_job(up) for up in self.flow.upstream(op) if up.id in self.specs)
        return route(prepared, routing, in_task=not made_here and not self.shuffles).mapInArrow(task, schema)

    def _rows(self, port: Port) -> DataFrame | None:
        """The rows of a port in this step; None if there are none."""
        parts = [frame for branch in port if (frame := self._branch(branch)) is not None]
        if not parts:
            return None
        whole = parts[0]
        for part in parts[1:]:
            whole = whole.union(part)
        return whole

    def _branch(self, branch: Branch) -> DataFrame | None:
        if branch.source in self.flow.sources:
            rows = self.sources.get(branch.source)
            return None if rows is None else branch.apply(rows)
        op = self.flow.by_id[branch.source]
        if op.id not in self.specs:
            return None
        if op.id in self.reports:
            staged = tuple(s for report in self.reports[op.id] for s in report.staged)
            rows = staged_frame(self.session, self.directory, staged, op.plan.kernel_schema)
        elif self.specs[op.id].passes_on:
            rows = self._work(op, self._input(op), op.plan.kernel_schema)
        else:
            rows = None
        return None if rows is None else branch.apply(op.plan.results(rows))

    def _checked(self, op: Op, texts: list[str]) -> list[InstanceReport]:
        reports = sorted((from_text(text) for text in texts), key=lambda r: r.instance)
        # A task that ran twice may report twice; either attempt's files are complete, and one of them is enough.
        one_each = {report.instance: report for report in reports}
        expected = list(range(len(self.specs[op.id].routing.parts)))
        require(sorted(one_each) == expected, f"every instance of {op.id} reports; these did: {sorted(one_each)}")
        return list(one_each.values())


def outlet_rows(
    flow: Dataflow, port: Port, session: SparkSession, directory: Path, staged: tuple[StagedFile, ...], sources: dict[str, DataFrame]
) -> DataFrame | None:
    """What a sink is to get of a committed version; None if that is nothing."""
    whole: DataFrame | None = None
    for branch in port:
        if branch.source in flow.sources:
            part = branch.apply(sources[branch.source])
        else:
            op = flow.by_id[branch.source]
            own = tuple(s for s in staged if s.operator == op.id)
            rows = staged_frame(session, directory, own, op.plan.kernel_schema)
            if rows is None:
                continue
            part = branch.apply(op.plan.results(rows) if branch.steps else op.plan.finish(rows))
        whole = part if whole is None else whole.union(part)
    return whole


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


def _state_rows(spec: TaskSpec) -> int:
    return sum(ref.rows for refs in spec.refs.values() for ref in refs)
