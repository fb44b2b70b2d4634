"""The batch loop: one micro-batch from Spark's rows to a committed, delivered version.

    already done? -> process (one job) -> flush (one more, if results fall due) -> commit -> deliver -> collect garbage

A crash before the commit leaves nothing that counts, and Spark replays the batch; a crash after it only delivers again.
An exception must reach Spark: returning normally would commit the batch in Spark's own log.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.compile import StatefulPlan
from headrace.compile.routing import route
from headrace.config import Config
from headrace.errors import CheckpointError, HeadraceError, require
from headrace.graph.nodes import Step
from headrace.operators.kernel import Moment, OutputMode
from headrace.runtime import watermark
from headrace.runtime.backlog import Backlog
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import fail_point
from headrace.runtime.progress import BatchProgress
from headrace.runtime.reports import InstanceReport, from_text
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import check_staged, staged_frame
from headrace.runtime.task import REPORT, InstanceTask, Phase, TaskSpec, reports_left
from headrace.state.manifest import Manifest, OperatorState, StagedFile
from headrace.state.run import RunRef
from headrace.state.slots import even_ranges, join

STOP_SECONDS_MAX = 60

FLUSH_ROWS_HERE = 2_000_000
"""Up to so many rows of state the driver closes windows itself: a Spark job would take longer to start than that takes."""
FLUSHED_HERE = 0
"""... under the number of a task attempt, of which there can be only one."""

COMBINE_BELOW = 0.7
"""Combine before the shuffle while it leaves less than this share of the rows."""


class Stopping(Exception):
    """A batch came while the query was being stopped; it will be replayed.

    Spark takes an exception from Python for the effect of its own stop, and ends the query quietly, if it reads like an interrupted
    call into the JVM. Any other text would be logged as a failure of the query, with a page of stack trace.
    """

    def __init__(self) -> None:
        super().__init__("py4j.protocol.Py4JJavaError: An error occurred while calling stop: java.lang.InterruptedException")


@dataclass
class BatchLoop:
    """Spark calls it with every micro-batch."""

    plan: StatefulPlan
    suffix: tuple[Step, ...]
    sink: Sink
    checkpoint: Checkpoint
    config: Config
    mode: OutputMode
    instances: int
    executed_plan: Callable[[], Any]
    """Spark's physical plan of the batch that runs now, for its event-time statistics."""
    on_progress: Callable[[BatchProgress], None]
    backlog: Backlog
    is_active: Callable[[], bool]
    """Whether Spark still takes the query for running."""
    watermark_policy: str = "min"
    event_times: watermark.EventTimes = field(default_factory=watermark.EventTimes)
    epoch: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)
    error: HeadraceError | None = None
    previous: Manifest | None = None
    combining: bool = True
    last_begin_s: float = field(default_factory=time.time)

    def __call__(self, batch: DataFrame, version: int) -> None:
        if self.stopping.is_set():
            self._wait_for_stop()
            raise Stopping
        self.lock.acquire()
        try:
            self._run(batch, version)
        except HeadraceError as error:
            self.error = error
            raise
        finally:
            self.lock.release()

    def _wait_for_stop(self) -> None:
        """Until Spark knows that the query is to stop; what comes up before that, it would take for a failure."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.is_active() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _run(self, batch: DataFrame, version: int) -> None:
        phases: dict[str, float] = {}
        begin_s = time.time()
        fail_point("batch-begin", version)
        reports: list[InstanceReport] = []
        manifest = self.checkpoint.manifests.read_if_exists(version)
        replayed = manifest is not None
        if manifest is None:
            manifest, reports = self._process(batch, version, phases)
        with Phase(phases, "deliver"):
            fail_point("deliver-before", version)
            self._deliver(batch.sparkSession, manifest, replayed)
            fail_point("deliver-after", version)
        self.previous = manifest
        with Phase(phases, "collectGarbage"):
            self.checkpoint.remember(manifest)
            self.checkpoint.collect_garbage(self.config.versionsToKeep)
            fail_point("collect-garbage", version)
        waiting = self.backlog.observe(sum(r.rows for r in reports))
        end_s = time.time()
        times = (begin_s, end_s, self.last_begin_s)
        self.on_progress(BatchProgress(version, times, replayed, self.instances, phases, reports, manifest, waiting))
        self.last_begin_s = begin_s
        fail_point("batch-end", version)

    def _process(self, batch: DataFrame, version: int, phases: dict[str, float]) -> tuple[Manifest, list[InstanceReport]]:
        before = self._before(version)
        old = before.operators[self.plan.operator_id] if before else OperatorState()
        moment = Moment(self.mode, before.watermark_ms if before else 0)
        spec = self._spec(version, moment, old.runs)
        reports = self._job(batch, spec, phases)
        fail_point("job-done", version)
        with Phase(phases, "watermark"):
            nodes = self.event_times.observed(self.executed_plan()) if self.plan.event_time_in_key else ()
            reached, nodes = watermark.advance(before, nodes, self.watermark_policy)
        runs = tuple(join(ref for report in reports for ref in report.runs))
        staged = tuple(s for report in reports for s in report.staged)
        staged += self._flush(batch.sparkSession, replace(spec, refs=runs), reached, phases)
        fail_point("flush-done", version)
        manifest = Manifest(
            version=version,
            epoch=self.epoch,
            operators={self.plan.operator_id: OperatorState(self._alive(runs, reached), reached)},
            staged=staged,
            watermark_ms=reached,
            watermark_nodes_ms=nodes,
            instances=self.instances,
            offsets=self.checkpoint.source_offsets(version),
            checkpoint_version=version,
            counters=_counters(before, reports),
        )
        with Phase(phases, "commit"):
            fail_point("manifest-before", version)
            self.checkpoint.manifests.commit(manifest, sync=self.config.durable)
            fail_point("manifest-after", version)
        return manifest, reports

    def _before(self, version: int) -> Manifest | None:
        """The version that this one builds on."""
        if version == 0:
            return None
        if self.previous is None or self.previous.version != version - 1:
            self.previous = self.checkpoint.manifests.read_if_exists(version - 1)
        if self.previous is None:
            raise CheckpointError(
                where=str(self.checkpoint.location),
                wanted=f"the state of version {version - 1}, on which batch {version} builds",
                found="no manifest of it",
                hint="Spark's offsets and Headrace's state were separated: restore the folder 'headrace', or use a new checkpointLocation",
            )
        return self.previous

    def _spec(self, version: int, moment: Moment, refs: tuple[RunRef, ...]) -> TaskSpec:
        return TaskSpec(
            directory=str(self.checkpoint.directory),
            operator=self.plan.operator,
            operator_id=self.plan.operator_id,
            version=version,
            epoch=self.epoch,
            moment=moment,
            refs=refs,
            routing=even_ranges(self.instances),
            ones=self.plan.ones,
            counts_rows=self.plan.counts_rows,
            sync=self.config.durable,
            depth_max=self.config.depthMax,
            compact_rows=self.config.compactRows,
            compact_factor=self.config.compactFactor,
            direct=self.sink.direct,
        )

    def _job(self, batch: DataFrame, spec: TaskSpec, phases: dict[str, float]) -> list[InstanceReport]:
        """Combine, route, and run the instances."""
        with Phase(phases, "plan"):
            wanted = {"always": True, "never": False}.get(self.config.combine, self.combining)
            combining = wanted and self.plan.many is not None
            rows = self.plan.combined(batch) if combining else self.plan.projected(batch)
            routed = route(rows, spec.routing)
        with Phase(phases, "job"):
            reports = self._run_instances(routed, spec)
        self._learn(reports, combining, batch)
        return reports

    def _run_instances(self, routed: DataFrame, spec: TaskSpec) -> list[InstanceReport]:
        if not spec.direct:
            texts = [row[0] for row in routed.mapInArrow(InstanceTask(spec), f"{REPORT} string").collect()]
        else:
            self.sink.deliver(spec.version, self._finished(routed.mapInArrow(InstanceTask(spec), self.plan.kernel_schema)))
            texts = reports_left(spec)
        reports = sorted((from_text(text) for text in texts), key=lambda r: r.instance)
        # A task that ran twice may report twice; either attempt's files are complete, and one of them is enough.
        one_each = {report.instance: report for report in reports}
        require(sorted(one_each) == list(range(self.instances)), f"every instance reports; these did: {sorted(one_each)}")
        return list(one_each.values())

    def _flush(self, session: SparkSession, spec: TaskSpec, reached_ms: int, phases: dict[str, float]) -> tuple[StagedFile, ...]:
        """Close what falls due at the new watermark, so that no result waits for another batch."""
        after_ms = spec.moment.watermark_ms
        operator = self.plan.operator
        if self.mode is not OutputMode.APPEND or reached_ms <= after_ms:
            return ()
        if not any(operator.is_due(ref, after_ms, reached_ms) for ref in spec.refs):
            return ()
        spec = replace(spec, until_ms=reached_ms)
        with Phase(phases, "flush"):
            if sum(ref.rows for ref in spec.refs) <= FLUSH_ROWS_HERE and not spec.direct:
                reports = [InstanceTask(spec).run(iter(()), instance, FLUSHED_HERE)[1] for instance in range(self.instances)]
            else:
                reports = self._run_instances(session.range(0, self.instances, 1, self.instances), spec)
        return tuple(s for report in reports for s in report.staged)

    def _alive(self, runs: tuple[RunRef, ...], reached_ms: int) -> tuple[RunRef, ...]:
        """Whole runs that hold nothing but closed panes are gone."""
        live_from = None if self.mode is OutputMode.COMPLETE else self.plan.operator.live_from(reached_ms)
        if live_from is None:
            return runs
        return tuple(ref for ref in runs if ref.sub_max is None or ref.sub_max >= live_from)

    def _deliver(self, session: SparkSession, manifest: Manifest, replayed: bool) -> None:
        if self.sink.direct:
            return
        rows = staged_frame(session, self.checkpoint.directory, manifest.staged, self.plan.kernel_schema)
        try:
            self.sink.deliver(manifest.version, None if rows is None else self._finished(rows))
        except Exception:
            # A damaged file shows in a Spark task, as a failure of Spark; say what it really is.
            check_staged(self.checkpoint.directory, manifest.staged)
            raise

    def _finished(self, rows: DataFrame) -> DataFrame:
        rows = self.plan.finish(rows)
        for step in self.suffix:
            rows = step.apply(rows)
        return rows

    def _learn(self, reports: list[InstanceReport], combining: bool, batch: DataFrame) -> None:
        """Whether combining pays, from what it did to this batch, or would have done."""
        rows = sum(r.rows for r in reports)
        if rows < 1000:
            return
        if combining:
            self.combining = sum(r.rows_shuffled for r in reports) < COMBINE_BELOW * rows
        else:
            maps = max(1, self.instances)
            self.combining = sum(r.keys for r in reports) * maps < COMBINE_BELOW * rows / 2


def _counters(before: Manifest | None, reports: list[InstanceReport]) -> dict[str, int]:
    """What a version adds up; ``keys`` only where the operator looks up every key it touches."""
    counters = {"rows": sum(r.rows for r in reports), "rows_late": sum(r.rows_late for r in reports)}
    if all(r.keys_new is not None for r in reports):
        counters["keys"] = (before.counters.get("keys", 0) if before else 0) + sum(r.keys_new or 0 for r in reports)
    return counters
