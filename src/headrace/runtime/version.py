"""Makes a version: a batch's rows become state, staged results and a committed manifest.

    settle the routing -> run the batch's rows -> advance the watermark -> flush what is due -> commit the manifest

After a crash before the commit, no manifest names the new files, and Spark replays the batch on the version before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow, Op
from headrace.compile.shedding import Dropping
from headrace.config import Config
from headrace.errors import CheckpointError
from headrace.ids import NO_VERSION, OperatorId, StoreId, Version
from headrace.operators.kernel import Moment, OutputMode
from headrace.operators.lifetime import NOTHING_YET
from headrace.runtime import watermark
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.failpoints import fail_point, points_for_tasks
from headrace.runtime.initial import initial_states
from headrace.runtime.jobs import JobRunner, Reports
from headrace.runtime.parallel import ReroutedError
from headrace.runtime.phases import Phase
from headrace.runtime.reports import counters_of, merged
from headrace.runtime.safety.keeping import Keeping
from headrace.runtime.schedule import Job, OperatorShape, Staged, plan_step
from headrace.runtime.session import configure_query_session
from headrace.runtime.shed_batch import dropping_of, scan
from headrace.runtime.shedding import Shedder
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.task_spec import TaskSpec
from headrace.runtime.watermark import Pace
from headrace.spark.event_times import EventTimes
from headrace.spark.streaming import files_wait
from headrace.state.journal import Record, check_same
from headrace.state.manifest import Manifest, StoreState
from headrace.state.recreation import carried_over
from headrace.state.run import RunRef
from headrace.state.slots import join

States = dict[StoreId, tuple[RunRef, ...]]
"""By store: references to its runs."""


@dataclass(frozen=True)
class Moments:
    """The times of a version, in milliseconds."""

    late_ms: int
    """The watermark of the version before: rows are late if it has passed them."""
    held_ms: int
    """The watermark by which timers fire after the rows; later than that if the version before held it back."""
    now_ms: int
    dropped_ms: int
    """The watermark by which rows are dropped as late: that of the version before, or of the one before that."""


@dataclass(frozen=True)
class Made:
    """A version that was computed."""

    manifest: Manifest
    record: Record
    """Its record for the journal."""
    reports: Reports
    dropping: Dropping
    """What was dropped, and how many rows that were."""
    before: Record | None = None
    """The record that it has in the journal, if it was committed before and its state was lost."""


@dataclass
class VersionMaker:
    """Makes one version after the other."""

    flow: Dataflow
    shapes: tuple[OperatorShape, ...]
    checkpoint: Checkpoint
    config: Config
    keeping: Keeping
    routing: LiveRouting
    """The routing of operators. It changes only under the batch lock, so only between batches."""
    spark: SparkQuery
    runner: JobRunner
    shedder: Shedder | None = None
    """Chooses what batches drop; None if the user allows no drops."""
    pace: Pace = Pace.AT_ONCE
    event_times: EventTimes = field(default_factory=EventTimes)
    tracker: watermark.Tracker | None = None
    """Set by the first batch, because only the query's own session knows the watermark policy. Spark keeps that of the first start."""
    previous: Manifest | None = None
    """The last version, if it was made or delivered since this start of the query."""
    version_made: Version = NO_VERSION
    """The version that is being made, or was made last."""

    def configure(self, session: SparkSession) -> None:
        """Set up the session that Spark made for the query. Only the first batch does it, because all batches have the same session."""
        if self.tracker is None:
            configure_query_session(session, (op.plan.operator.input_schema for op in self.flow.ops))
            self.tracker = watermark.Tracker(str(session.conf.get(watermark.POLICY)), self.config.idleSeconds)

    def make(self, batch: DataFrame, version: Version, phases: dict[str, float], record: Record | None = None) -> Made:
        """Compute a version. It does not exist before it is committed. Both happen inside ``Keeping.making``.

        If the version was committed before and its state was lost, ``record`` is its record in the journal, which is obeyed. If executors
        are lost and their instances are split, the version begins again with the new routing.
        """
        while True:
            try:
                return self._make(batch, version, phases, record)
            except ReroutedError:
                continue

    def _make(self, batch: DataFrame, version: Version, phases: dict[str, float], record: Record | None) -> Made:
        before, self.version_made = self.before(version), version
        now_ms, begin_s = self._now_ms(version, record), watermark.clock_s()
        states = {name: state.runs for name, state in before.stores.items()} if before else self._initial_states()
        late_ms = before.watermark_ms if before else 0
        origin = self.checkpoint.origin_soon(version, before)
        if record is None:
            self.runner.split_missing()
        self._settle(before, late_ms, states)
        dropping = self.dropping(batch, version, record)
        dropping.again()
        held_ms = self._held_back(before, late_ms)
        moments = Moments(late_ms, held_ms, now_ms, self._dropped_ms(before, late_ms))
        reports = self._run_rows(batch, version, moments, states, phases, record is None, dropping)
        if self.flow.counts_once:
            dropping.learn_from_sources()
        fail_point("job-done", version)
        with Phase(phases, "watermark"):
            moved = self._advance(held_ms, begin_s) if record is None else watermark.noted(record)
        states |= _stores(reports)
        if moved.reached_ms > late_ms:
            with self._where_rows_ran(reports):
                flushed = self._flush(batch.sparkSession, before, version, moments, moved.reached_ms, states, phases)
            states |= _stores(flushed)
            reports = {name: merged(reports.get(name, []), flushed.get(name, [])) for name in {**reports, **flushed}}
        fail_point("flush-done", version)
        manifest = Manifest(
            version=version,
            writer=self.checkpoint.fence.writer,
            stores=self._live_states(states, moved.reached_ms),
            staged=tuple(s for each in reports.values() for report in each for s in report.staged),
            watermark_ms=moved.reached_ms,
            watermark_nodes_ms=moved.nodes_ms,
            watermark_idle=moved.idle,
            routing=dict(self.routing.routing),
            **origin(),
            checkpoint_version=self.keeping.durable,
            counters=counters_of(before, reports),
            drops=dropping.drops,
        )
        rows = {op.id: sum(report.rows for report in reports.get(op.id, ())) for op in self.flow.readers}
        return Made(manifest, self.keeping.record(manifest, before, now_ms, rows), reports, dropping, record)

    def commit(self, made: Made, phases: dict[str, float]) -> Manifest:
        """Commit a version. If it was committed before, check that it is the same, and take it as it was."""
        manifest, before = made.manifest, made.before
        with Phase(phases, "commit"):
            fail_point("manifest-before", manifest.version)
            if before is None:
                manifest = self.keeping.commit(manifest, made.record)
            else:
                check_same(before, made.record, self.checkpoint.journal.where(manifest.version), self._comparable(manifest.version))
                manifest = self.keeping.hold(replace(before.facts, stores=manifest.stores, staged=manifest.staged))
            fail_point("manifest-after", manifest.version)
        self.keeping.learn(made.reports, manifest)
        return manifest

    def _comparable(self, version: Version) -> list[OperatorId]:
        """The operators that read as many rows as before. If state began empty, those that read other operators may read fewer."""
        exact = version > self.keeping.exact_after
        return [op.id for op in self.flow.readers if exact or not self.flow.upstream(op)]

    def build_on(self, manifest: Manifest) -> None:
        """Let the next version build on this one, which was delivered, without reading its manifest again."""
        self.previous = manifest

    def _now_ms(self, version: Version, record: Record | None) -> int:
        return record.now_ms if record else int(time.time() * 1000)

    def before(self, version: Version) -> Manifest | None:
        """The version that this one builds on."""
        if version == 0:
            return None
        # A log that is far is not read again for what this start of the query has just read in it.
        made_here = self.previous is not None and self.previous.version == version - 1
        if not made_here:
            self.previous = self.checkpoint.manifests.read_if_exists(Version(version - 1))
        if self.previous is None:
            raise CheckpointError(
                where=self.checkpoint.location,
                wanted=f"the state of version {version - 1}, on which batch {version} builds",
                found="no manifest of it",
                hint="Spark's offsets and Headrace's state were separated: restore the folder 'headrace', or use a new checkpointLocation",
            )
        if not (made_here and self.checkpoint.spark_log.is_far):
            self.checkpoint.spark_log.check(self.previous)
        return self.previous

    def _initial_states(self) -> States:
        return initial_states(self.flow, self.checkpoint, self.checkpoint.fence.writer, self.config.durable)

    def _dropped_ms(self, before: Manifest | None, late_ms: int) -> int:
        """The watermark by which the version drops rows as late.

        When the watermark moves, Spark runs a batch without rows, unless nothing in the whole query can fall due. Only after that batch
        does it drop rows by the new watermark. Without it, rows are judged by a watermark that is one version older.
        """
        if before is None or self._expires:
            return late_ms
        earlier = self.checkpoint.manifests.read_if_exists(Version(before.version - 1)) if before.version else None
        return earlier.watermark_ms if earlier is not None else late_ms if before.version else 0

    def _settle(self, before: Manifest | None, late_ms: int, states: States) -> None:
        """End recreations, give instances homes on living executors, and adjust the states of stores for recreations.

        After a recreation, whether it has ended or another change has cut it short, the state is as if there had been none.
        """
        watermarks_us = {op.id: _held(late_ms, op) * 1000 for op in self.flow.ops}
        self.routing.end_recreations(watermarks_us)
        self.routing.settle()
        self.routing.ensure_state()
        for op in self.flow.ops:
            earlier = before.routing[op.id].recreations if before and op.id in before.routing else ()
            now = self.routing.routing[op.id].recreations
            for name in (StoreId(op.id, store) for store in op.plan.operator.stores):
                states[name] = carried_over(states.get(name, ()), earlier, now, watermarks_us[op.id])

    def dropping(self, batch: DataFrame, version: Version, record: Record | None) -> Dropping:
        """What the version drops, from now on. If it was committed before, that is in its record. Attempts at it all drop the same."""
        return dropping_of(self.flow, self.spark, self.shedder, batch, version, record)

    def _run_rows(
        self,
        batch: DataFrame,
        version: Version,
        moments: Moments,
        states: States,
        phases: dict[str, float],
        may_split: bool,
        dropping: Dropping,
    ) -> Reports:
        """The first step: run the batch's rows through the graph."""
        with Phase(phases, "job"):
            scan(batch, dropping)
        jobs = plan_step(self.shapes)
        specs = {op.id: self._spec(op, staged, version, moments, states) for op, staged in self._stages(jobs)}
        return self.runner.run(jobs, specs, batch.sparkSession, batch, phases, may_split, dropping)

    def _flush(
        self,
        session: SparkSession,
        before: Manifest | None,
        version: Version,
        moments: Moments,
        reached_ms: int,
        states: States,
        phases: dict[str, float],
    ) -> Reports:
        """The second step: close what became due between two watermarks, and run the results through the rest of the graph."""
        due = {op.id for op in self.flow.ops if op.mode in op.plan.timing.flushes and self._is_due(op, before, moments, reached_ms, states)}
        if not due:
            return {}
        jobs = plan_step(self.shapes, due)
        specs = {}
        for op, staged in self._stages(jobs):
            spec = self._spec(op, staged, version, moments, states)
            # In a flush, rows are not spread, but go to the owners of their slots. The owner could not close what others keep.
            moment, routing = replace(spec.moment, closes_next=True), replace(spec.routing, spread=())
            specs[op.id] = replace(spec, until_ms=_held(reached_ms, op), moment=moment, routing=routing)
        with Phase(phases, "flush"):
            return self.runner.run(jobs, specs, session, None, {})

    def _where_rows_ran(self, reports: Reports) -> AbstractContextManager[None]:
        """If new runs stay on executors, the flush runs where the step before has written them."""
        placement = self.runner.placement
        if placement is None or not self.keeping.at_home:
            return nullcontext()
        return placement.following({op: [report.executor for report in each] for op, each in reports.items()})

    def _stages(self, jobs: Sequence[Job]) -> list[tuple[Op, bool]]:
        """The operators of a step in the graph's order, each with True if its results are staged."""
        staged = {stage.operator: isinstance(stage.destination, Staged) for job in jobs for stage in job.stages}
        return [(op, staged[op.id]) for op in self.flow.ops if op.id in staged]

    def _held_back(self, before: Manifest | None, late_ms: int) -> int:
        """The watermark that the version before has seen. It is later than that version's own if that one held it back, see `_advance`,
        or if it stands for a batch of plain Spark (`runtime/migrate.py`)."""
        if before is None or self.tracker is None:
            return late_ms
        return self.tracker.of(late_ms, before.watermark_nodes_ms, before.watermark_idle)

    def _advance(self, held_ms: int, begin_s: float) -> watermark.Watermark:
        """The watermark after the batch's rows.

        Spark lets a watermark take effect in the next batch: after its rows, or at once if it has none. If the next batch is known to have
        rows, and an operator depends on this order, the new watermark is held back until then.
        """
        assert self.tracker is not None
        timed = any(op.plan.timing.uses_watermark for op in self.flow.ops)
        execution = self.spark.execution() if timed else None
        nodes = self.event_times.observed(execution) if timed and (self.flow.reads_event_times or not self.flow.watermarks) else ()
        nodes += self.runner.drain_times()
        moved = self.tracker.advance(held_ms, nodes, begin_s)
        waits = timed and self._after_rows and (self.pace is Pace.ONE_BATCH or files_wait(execution))
        return replace(moved, reached_ms=held_ms) if waits else moved

    @property
    def _after_rows(self) -> bool:
        """True if a watermark takes effect after the rows of the next batch, if such a batch is known to come."""
        return any(op.plan.timing.after_rows for op in self.flow.ops) or (self.pace is not Pace.AT_ONCE and self._expires)

    @property
    def _expires(self) -> bool:
        """True if anything can fall due."""
        return any(op.plan.timing.expires and op.mode is not OutputMode.COMPLETE for op in self.flow.ops)

    def _is_due(self, op: Op, before: Manifest | None, moments: Moments, reached_ms: int, states: States) -> bool:
        # Such an operator has fired its timers after the rows, by the watermark that was held back.
        after_ms = _held(moments.held_ms if op.plan.timing.after_rows else moments.late_ms, op)
        until_ms = _held(reached_ms, op)
        lifetimes = {StoreId(op.id, name): store.lifetime for name, store in op.plan.operator.stores.items()}
        if op.plan.timing.after_rows and any(
            lifetime.is_due(ref, NOTHING_YET, until_ms)
            for name, lifetime in lifetimes.items()
            for ref in set(states.get(name, ())).difference(before.stores[name].runs if before and name in before.stores else ())
        ):
            # User code has set a timer for a moment that the watermark had passed. Spark's batch without rows fires that too.
            return True
        return any(lifetime.is_due(ref, after_ms, until_ms) for name, lifetime in lifetimes.items() for ref in states.get(name, ()))

    def _spec(self, op: Op, staged: bool, version: Version, moments: Moments, states: States) -> TaskSpec:
        plan, config = op.plan, self.config
        return TaskSpec(
            store=self.checkpoint.store,
            query=self.checkpoint.location,
            operator=plan.operator,
            operator_id=op.id,
            version=version,
            writer=self.checkpoint.fence.writer,
            moment=Moment(op.mode, _held(moments.dropped_ms, op), moments.now_ms, _held(moments.held_ms, op)),
            refs={name: states.get(StoreId(op.id, name), ()) for name in plan.operator.stores},
            routing=self.routing.routing[op.id],
            ones=plan.input.ones,
            counts_rows=None if plan.combiner is None else plan.combiner.counts_rows,
            sync=config.durable and not self.keeping.at_home,
            depth_max=config.depthMax,
            compact_rows=config.compactRows,
            compact_factor=config.compactFactor,
            working=self.keeping.working,
            cache_bytes=config.cacheBytes,
            writes_home=self.keeping.at_home,
            driver_reads=self.keeping.driver_reads,
            boundaries=self.keeping.boundaries(),
            pinned=self.keeping.pinned(op.id, plan.operator.stores),
            passes_on=not staged,
            earlier=op.earlier,
            log_level=config.logLevel,
            fail_points=points_for_tasks(),
        )

    def _live_states(self, states: States, reached_ms: int) -> dict[StoreId, StoreState]:
        """The manifest's entry for every store, without runs that contain only closed panes."""
        found = {}
        for op in self.flow.ops:
            for name, store in op.plan.operator.stores.items():
                refs = states.get(StoreId(op.id, name), ())
                live_from = None if op.mode is OutputMode.COMPLETE else store.lifetime.live_from(_held(reached_ms, op))
                if live_from is not None:
                    refs = tuple(ref for ref in refs if ref.sub_max is None or ref.sub_max >= live_from)
                found[StoreId(op.id, name)] = StoreState(refs, reached_ms)
        return found


def _held(watermark_ms: int, op: Op) -> int:
    """The watermark as an operator sees it: held back by its ``hold_ms``."""
    return max(0, watermark_ms - op.hold_ms)


def _stores(reports: Reports) -> States:
    found: dict[StoreId, list[RunRef]] = {}
    for op, each in reports.items():
        for report in each:
            for store, refs in report.runs.items():
                found.setdefault(StoreId(op, store), []).extend(refs)
    return {name: tuple(join(refs)) for name, refs in found.items()}
