"""The batch loop: one micro-batch from Spark's rows to a committed, delivered version.

    already done? -> process -> flush (if results fall due) -> commit -> deliver -> collect garbage

A crash before the commit leaves nothing that counts, and Spark replays the batch; a crash after it only delivers again.
An exception must reach Spark: returning normally would commit the batch in Spark's own log.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow, Op
from headrace.compile.prepared import Preparations
from headrace.config import Config
from headrace.errors import CheckpointError, HeadraceError
from headrace.operators.kernel import Moment, OutputMode, store_id
from headrace.runtime import watermark
from headrace.runtime.backlog import Backlog
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.failpoints import fail_point
from headrace.runtime.failures import Stopping, mark_place, of_batch
from headrace.runtime.initial import initial_states
from headrace.runtime.jobs import JOBS_AT_ONCE, Combining, Delivery, Jobs, merged
from headrace.runtime.progress import BatchProgress
from headrace.runtime.reports import InstanceReport
from headrace.runtime.session import suit_query
from headrace.runtime.sinks import Sink
from headrace.runtime.staged import check_staged
from headrace.runtime.sweeping import EVERY, remove_unnamed, sweep_committed
from headrace.runtime.task import Phase, TaskSpec
from headrace.spark.event_times import EventTimes
from headrace.spark.streaming import callback_connection
from headrace.state.manifest import Manifest, OperatorState
from headrace.state.recreation import carried_over
from headrace.state.run import RunRef
from headrace.state.slots import join

HOLD_S = 0.01
"""How often a batch that may not begin looks whether Spark has stopped."""

Reports = dict[str, list[InstanceReport]]
"""By operator."""


@dataclass
class BatchLoop:
    """Spark calls it with every micro-batch."""

    flow: Dataflow
    sinks: tuple[Sink, ...]
    checkpoint: Checkpoint
    config: Config
    elastic: LiveRouting
    """Who owns which slots; changed under the lock only, so between batches."""
    execution: Callable[[], Any]
    """Spark's ``StreamExecution`` of the query: its plans, and with them the event-time statistics of the batch that runs now."""
    on_progress: Callable[[BatchProgress], None]
    backlog: Backlog
    is_active: Callable[[], bool]
    """True while Spark reports the query as active, and its session runs."""
    shuffles: bool = False
    """See ``Jobs``: how busy an instance is must not depend on whether it is the only one, where a policy decides by that."""
    event_times: EventTimes = field(default_factory=EventTimes)
    epoch: str = ""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set: no further batch begins."""
    running_in: int | None = None
    """The thread of the batch that runs now."""
    connection: Any = None
    """By which Spark's thread of the query calls; it has one of its own, and nobody else closes it."""
    finished: int | None = None
    """The last batch of this run that came to its end."""
    error: HeadraceError | None = None
    previous: Manifest | None = None
    suited: bool = False
    """Whether the query's own session is set up."""
    last_begin_s: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self.epoch = self.checkpoint.fence.epoch
        self.combining = Combining(self.config)
        self.preparations = Preparations()
        self.tracker = watermark.Tracker()
        self.beside = ThreadPoolExecutor(JOBS_AT_ONCE, "headrace-job")
        self.direct = {
            port[0].source: sink
            for port, sink in zip(self.flow.outlets, self.sinks, strict=True)
            if sink.direct and len(port) == 1 and port[0].source in self.flow.by_id and self.flow.consumers(port[0].source) == 1
        }

    def __call__(self, batch: DataFrame, version: int) -> None:
        with self.elastic.lock:
            begins = not self.stopping.is_set()
            if begins:
                self.running_in = threading.get_ident()
                self.connection = callback_connection(batch)
                try:
                    self._run_or_fail(batch, version)
                finally:
                    self.running_in = None
        if not begins:
            self._hold()

    def _run_or_fail(self, batch: DataFrame, version: int) -> None:
        try:
            self._run(batch, version)
        except Exception as failure:
            if not self.is_active():
                # Spark is stopping the query, or is gone itself: whatever came up is the effect of that.
                raise Stopping from None
            # A query that was replaced misses files that its successor has removed: say why, not what.
            replaced = self.checkpoint.fence.lost(f"going on with batch {version}")
            self.error = replaced or of_batch(failure, version, self.checkpoint.location)
            raise self.error from (failure if replaced else self.error.__cause__)
        self.finished = version

    def _hold(self) -> None:
        """No batch begins while the query is being stopped. Until Spark knows of it, it would take an exception for a failure."""
        while self.is_active():
            time.sleep(HOLD_S)
        raise Stopping

    def _run(self, batch: DataFrame, version: int) -> None:
        phases: dict[str, float] = {}
        begin_s = time.time()
        fail_point("batch-begin", version)
        reports: Reports = {}
        manifest = self.checkpoint.manifests.read_if_exists(version)
        replayed = manifest is not None
        if manifest is not None:
            # What Spark hands over now must be what the version was made of, or its rows would be taken for done; and it must begin where
            # that began, for a sink that takes the batch's own rows gets them now.
            self.checkpoint.spark_log.check(manifest)
            if version and (earlier := self.checkpoint.manifests.read_if_exists(version - 1)) is not None:
                self.checkpoint.spark_log.check(earlier)
        if not self.suited:
            suit_query(batch.sparkSession, (op.plan.operator.input_schema for op in self.flow.ops))
            # The policy that the query first started with: Spark keeps it in its checkpoint and sets it in the query's own session.
            self.tracker = watermark.Tracker(str(batch.sparkSession.conf.get(watermark.POLICY)), self.config.idleSeconds)
            self.suited = True
        kept = self.flow.source_readers > 1
        if kept:
            # Its source is read once.
            batch = batch.persist()
        try:
            if manifest is None:
                manifest, reports = self._process(batch, version, phases)
            with Phase(phases, "deliver"):
                if not self.is_active():
                    # Spark would not note that the batch is done, and it would be delivered again.
                    raise Stopping
                self._deliver(batch, manifest)
                fail_point("deliver-after", version)
        finally:
            if kept:
                batch.unpersist()
        self.previous = manifest
        self.elastic.observe(reports)
        with Phase(phases, "collectGarbage"):
            self.checkpoint.remember(manifest)
            self._remove_unnamed(version, reports)
            self.checkpoint.collect_garbage(self.config.versionsToKeep)
            fail_point("collect-garbage", version)
        end_s = time.time()
        progress = BatchProgress(
            version=version,
            times_s=(begin_s, end_s, self.last_begin_s),
            replayed=replayed,
            routing=dict(self.elastic.routing),
            phases_ms=phases,
            reports=reports,
            manifest=manifest,
            backlog={},
            readers=self._first_ops(),
            changes=self.elastic.told(),
            homes=self.elastic.homes(),
        )
        self.on_progress(replace(progress, backlog=self.backlog.observe(progress.rows)))
        self.last_begin_s = begin_s

    def _remove_unnamed(self, version: int, reports: Reports) -> None:
        """A version may have written runs that it does not need: all their windows are closed."""
        runs = [ref.file for each in reports.values() for report in each for ref in report.refs]
        remove_unnamed(self.checkpoint, version, self.epoch, [("runs", file) for file in runs])
        if version % EVERY == EVERY - 1:
            sweep_committed(self.checkpoint, version, self.epoch)

    def _first_ops(self) -> tuple[str, ...]:
        """Operators that read sources: their rows are the query's."""
        return tuple(op.id for op in self.flow.ops if any(b.source in self.flow.sources for b in op.branches))

    def _process(self, batch: DataFrame, version: int, phases: dict[str, float]) -> tuple[Manifest, Reports]:
        before = self._before(version)
        now_ms, begin_s = int(time.time() * 1000), watermark.clock_s()
        states = {name: state.runs for name, state in before.operators.items()} if before else self._initial_states()
        late_ms = before.watermark_ms if before else 0
        self._settle(before, late_ms, states)
        specs = self._process_specs(version, late_ms, now_ms, states)
        reports = self._jobs(batch.sparkSession, batch, specs, phases).run()
        fail_point("job-done", version)
        with Phase(phases, "watermark"):
            timed = any(op.plan.event_time_in_key for op in self.flow.ops)
            nodes = self.event_times.observed(self.execution()) if timed else ()
            moved = self.tracker.advance(late_ms, nodes, begin_s)
            reached_ms = moved.reached_ms
        states |= _stores(reports)
        if reached_ms > late_ms:
            specs = self._flush_specs(version, late_ms, reached_ms, now_ms, states)
            if specs:
                with Phase(phases, "flush"):
                    flushed = self._jobs(batch.sparkSession, None, specs, {}).run()
                states |= _stores(flushed)
                reports = {name: merged(reports.get(name, []), flushed.get(name, [])) for name in {**reports, **flushed}}
        fail_point("flush-done", version)
        manifest = Manifest(
            version=version,
            epoch=self.epoch,
            operators=self._states(states, reached_ms),
            staged=tuple(s for each in reports.values() for report in each for s in report.staged),
            watermark_ms=reached_ms,
            watermark_nodes_ms=moved.nodes_ms,
            watermark_idle=moved.idle,
            routing=dict(self.elastic.routing),
            **self.checkpoint.origin(version, before),
            checkpoint_version=version,
            counters=_counters(before, reports),
        )
        with Phase(phases, "commit"):
            fail_point("manifest-before", version)
            manifest = self.checkpoint.commit(manifest, sync=self.config.durable)
            fail_point("manifest-after", version)
        return manifest, reports

    def _settle(self, before: Manifest | None, late_ms: int, states: dict[str, tuple[RunRef, ...]]) -> None:
        """Recreations that are over, or were broken off by another change, leave the state as if they had never been."""
        watermarks_us = {op.id: _held(late_ms, op) * 1000 for op in self.flow.ops}
        self.elastic.end_recreations(watermarks_us)
        self.elastic.settle()
        for op in self.flow.ops:
            earlier = before.routing[op.id].recreations if before and op.id in before.routing else ()
            now = self.elastic.routing[op.id].recreations
            for name in (store_id(op.id, store) for store in op.plan.operator.stores):
                states[name] = carried_over(states.get(name, ()), earlier, now, watermarks_us[op.id])

    def _initial_states(self) -> dict[str, tuple[RunRef, ...]]:
        return initial_states(self.flow, self.checkpoint, self.epoch, self.config.durable)

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
        self.checkpoint.spark_log.check(self.previous)
        return self.previous

    def _jobs(self, session: SparkSession, batch: DataFrame | None, specs: dict[str, TaskSpec], phases: dict[str, float]) -> Jobs:
        directory, placement = self.checkpoint.directory, self.elastic.placement
        prepared, combining = self.preparations, self.combining
        shared = (prepared, combining, self.direct, placement, self.beside)
        return Jobs(self.flow, session, directory, specs, batch, *shared, phases, self.shuffles)

    def _process_specs(self, version: int, late_ms: int, now_ms: int, states: dict[str, tuple[RunRef, ...]]) -> dict[str, TaskSpec]:
        """Operators that get rows: from sources, or from others that give results at once."""
        specs: dict[str, TaskSpec] = {}
        for op in self.flow.ops:
            fed = any(b.source in self.flow.sources for b in op.branches)
            fed = fed or any(up.id in specs and up.plan.operator.emits_at_once(up.mode) for up in self.flow.upstream(op))
            if fed:
                specs[op.id] = self._spec(op, version, late_ms, now_ms, states)
        return {name: self._passing(self.flow.by_id[name], spec, specs) for name, spec in specs.items()}

    def _flush_specs(
        self, version: int, late_ms: int, reached_ms: int, now_ms: int, states: dict[str, tuple[RunRef, ...]]
    ) -> dict[str, TaskSpec]:
        """Operators of which something falls due, and those behind them."""
        specs: dict[str, TaskSpec] = {}
        for op in self.flow.ops:
            due = op.mode in op.plan.flushes and self._is_due(op, late_ms, reached_ms, states)
            if due or any(up.id in specs for up in self.flow.upstream(op)):
                spec = self._spec(op, version, late_ms, now_ms, states)
                # Rows of a flush go to the owners of their slots: what another instance kept of them, the owner could not close now.
                specs[op.id] = replace(spec, until_ms=_held(reached_ms, op), routing=replace(spec.routing, spread=()))
        return {name: self._passing(self.flow.by_id[name], spec, specs) for name, spec in specs.items()}

    def _is_due(self, op: Op, late_ms: int, reached_ms: int, states: dict[str, tuple[RunRef, ...]]) -> bool:
        after_ms, until_ms = _held(late_ms, op), _held(reached_ms, op)
        stores = op.plan.operator.stores.items()
        return any(store.is_due(ref, after_ms, until_ms) for name, store in stores for ref in states.get(store_id(op.id, name), ()))

    def _passing(self, op: Op, spec: TaskSpec, specs: dict[str, TaskSpec]) -> TaskSpec:
        """Whether results stay in the job. A flush that starts here is mostly small, and then staged: see ``Jobs``."""
        following = self.flow.next_op(op)
        goes_on = following is not None and following.id in specs
        if spec.until_ms is None:
            goes_on = goes_on and op.plan.operator.emits_at_once(op.mode)
        elif not any(up.id in specs for up in self.flow.upstream(op)):
            goes_on = False
        return replace(spec, passes_on=goes_on or op.id in self.direct)

    def _spec(self, op: Op, version: int, late_ms: int, now_ms: int, states: dict[str, tuple[RunRef, ...]]) -> TaskSpec:
        plan, config = op.plan, self.config
        return TaskSpec(
            directory=str(self.checkpoint.directory),
            operator=plan.operator,
            operator_id=op.id,
            version=version,
            epoch=self.epoch,
            moment=Moment(op.mode, _held(late_ms, op), now_ms),
            refs={name: states.get(store_id(op.id, name), ()) for name in plan.operator.stores},
            routing=self.elastic.routing[op.id],
            ones=plan.ones,
            counts_rows=plan.counts_rows,
            sync=config.durable,
            depth_max=config.depthMax,
            compact_rows=config.compactRows,
            compact_factor=config.compactFactor,
            working=self.elastic.placement.working if self.elastic.placement is not None else None,
            passes_on=False,
        )

    def _states(self, states: dict[str, tuple[RunRef, ...]], reached_ms: int) -> dict[str, OperatorState]:
        """What the manifest says of every store; whole runs that hold nothing but closed panes are gone."""
        found = {}
        for op in self.flow.ops:
            for name, store in op.plan.operator.stores.items():
                refs = states.get(store_id(op.id, name), ())
                live_from = None if op.mode is OutputMode.COMPLETE else store.live_from(_held(reached_ms, op))
                if live_from is not None:
                    refs = tuple(ref for ref in refs if ref.sub_max is None or ref.sub_max >= live_from)
                found[store_id(op.id, name)] = OperatorState(refs, reached_ms)
        return found

    def _deliver(self, batch: DataFrame, manifest: Manifest) -> None:
        directory = self.checkpoint.directory
        delivery = Delivery(self.flow, batch.sparkSession, directory, self.preparations, batch, manifest.staged)
        for at, (port, sink) in enumerate(zip(self.flow.outlets, self.sinks, strict=True)):
            if len(port) == 1 and port[0].source in self.direct:
                continue
            self.checkpoint.fence.check(f"delivering version {manifest.version}")
            rows = delivery.rows(at)
            try:
                sink.deliver(manifest.version, rows)
            except Exception as failure:
                # A damaged file shows in a Spark task, as a failure of Spark; say what it really is.
                check_staged(directory, manifest.staged)
                raise mark_place(failure, sink.place) from failure.__cause__


def _held(watermark_ms: int, op: Op) -> int:
    """The watermark as an operator sees it."""
    return max(0, watermark_ms - op.hold_ms)


def _stores(reports: Reports) -> dict[str, tuple[RunRef, ...]]:
    found: dict[str, list[RunRef]] = {}
    for op, each in reports.items():
        for report in each:
            for store, refs in report.runs.items():
                found.setdefault(store_id(op, store), []).extend(refs)
    return {name: tuple(join(refs)) for name, refs in found.items()}


def _counters(before: Manifest | None, reports: Reports) -> dict[str, int]:
    """What a version adds up; keys only where the operator looks up every key it touches."""
    counters = dict(before.counters) if before else {}
    for op, each in reports.items():
        if all(r.keys_new is not None for r in each):
            counters[f"keys.{op}"] = counters.get(f"keys.{op}", 0) + sum(r.keys_new or 0 for r in each)
    counters["rows"] = sum(r.rows for each in reports.values() for r in each)
    counters["rows_late"] = sum(r.rows_late for each in reports.values() for r in each)
    return counters
