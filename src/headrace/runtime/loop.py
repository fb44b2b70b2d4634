"""The batch loop: one micro-batch from Spark's rows to a committed, delivered version.

    already done? -> make the version -> deliver -> collect garbage -> report

After a crash before the commit, no manifest names the new files, and Spark replays the batch. After a crash behind it, the version is only
delivered again.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from headrace.compile.dataflow import Dataflow
from headrace.compile.shedding import Dropping
from headrace.config import Config
from headrace.guarantees import Approach
from headrace.ids import Version, WriterId
from headrace.logs import logger
from headrace.runtime.backfill import Backfill
from headrace.runtime.backlog import Backlog
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.deliver import Delivery, Planned
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.failpoints import fail_point
from headrace.runtime.failures import Stopping
from headrace.runtime.jobs import Reports
from headrace.runtime.phases import Phase, Phases
from headrace.runtime.progress import BatchProgress
from headrace.runtime.progress_log import ProgressLog
from headrace.runtime.recovery import Recovery
from headrace.runtime.safety.checkpointer import Checkpointer
from headrace.runtime.safety.keeping import Keeping
from headrace.runtime.safety.outage import Outage
from headrace.runtime.safety.replay import Replay
from headrace.runtime.safety.replicas import Replicas
from headrace.runtime.shed_report import Shed
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.sweeping import EVERY, remove_unnamed, sweep_committed
from headrace.runtime.tracing import Tracing
from headrace.runtime.version import Made, VersionMaker
from headrace.state.manifest import Manifest

_log = logger(__name__)


@dataclass
class BatchLoop:
    """Runs batches, one after the other. `BatchGate` calls it."""

    flow: Dataflow
    config: Config
    checkpoint: Checkpoint
    spark: SparkQuery
    routing: LiveRouting
    keeping: Keeping
    versions: VersionMaker
    replay: Replay
    checkpointer: Checkpointer | None
    replicas: Replicas | None
    delivery: Delivery
    backlog: Backlog
    progress: ProgressLog
    recovery: Recovery | None
    outage: Outage
    tracing: Tracing | None = None
    backfill: Backfill | None = None
    """Computes the state of new operators from history, in the first batch; None if there is nothing to compute."""
    last_begin_s: float = field(default_factory=time.time)
    swept: int = 0
    """How many times as many versions as ``EVERY`` there were when the folders were last listed."""

    def run(self, batch: DataFrame, version: Version) -> None:
        """Run one batch: make its version unless it exists, deliver it, collect garbage, and report."""
        guarded = nullcontext() if self.recovery is None else self.recovery.placement.guard.working(f"batch {version}")
        with guarded, nullcontext() if self.tracing is None else self.tracing.batch(version):
            self._run(batch, version)

    def _run(self, batch: DataFrame, version: Version) -> None:
        begin_s = time.time()
        fail_point("batch-begin", version)
        phases = Phases()
        reports: Reports = {}
        shed: Shed | None = None
        self.keeping.settle(Version(version - 1))
        if self.checkpointer is not None:
            self.checkpointer.catch_up()
        self.checkpoint.ask_ahead(version)
        manifest = self._already_made(version)
        replayed = manifest is not None
        if replayed and self.backfill is not None and self.backfill.found is not None:
            # The version with what was computed from history is committed, and only its delivery is repeated.
            self.backfill = None
        self.versions.configure(batch.sparkSession)
        if manifest is None:
            if self.replay.keeps_rows:
                # They are read from their source now.
                self.versions.dropping(batch, version, self.checkpoint.journal.read(version))
            batch = self.replay.kept(batch, version)
        kept = self.flow.source_readers > 1 and not self.replay.keeps_rows
        if kept:
            # Several operators read the batch, but its source is read only once.
            batch = batch.persist()
        try:
            if manifest is not None:
                self._deliver(batch, manifest, phases)
            else:
                with self.keeping.making():
                    manifest, reports, shed = self._make(batch, version, phases)
        finally:
            if kept:
                batch.unpersist()
        self.versions.build_on(manifest)
        self.routing.observe(reports)
        self.replay.observe(manifest.version, reports)
        with Phase(phases, "collectGarbage"):
            self._collect_garbage(manifest, reports)
        self._report(manifest, reports, replayed, phases, begin_s, shed)
        self.last_begin_s = begin_s

    def _make(self, batch: DataFrame, version: Version, phases: dict[str, float]) -> tuple[Manifest, Reports, Shed | None]:
        """Make a version, commit it and deliver it, in the order of the query's guarantee."""
        if self.backfill is not None:
            with Phase(phases, "backfill"):
                self.backfill.run(batch.sparkSession, version)
        made = self.replay.make(batch, version, phases)
        if self.backfill is not None:
            made = self.backfill.with_results(made)
        if self.config.safety.commits_first:
            with self.delivery.planned(batch, made.manifest, made.dropping) as planned:
                manifest = self._commit(made, phases)
                self._deliver(batch, manifest, phases, made.dropping, planned)
        else:
            self._deliver(batch, made.manifest, phases, made.dropping)
            manifest = self._commit(made, phases)
        self.backfill = None
        shedder = self.versions.shedder
        return manifest, made.reports, None if shedder is None else shedder.shed(manifest, made.dropping)

    def _commit(self, made: Made, phases: dict[str, float]) -> Manifest:
        """Commit a version, and let other executors have copies of its state."""
        manifest = self.versions.commit(made, phases)
        if self.replicas is not None:
            with Phase(phases, "replicas"):
                self.replicas.after_version(self.routing.routing)
        return manifest

    def _deliver(
        self,
        batch: DataFrame,
        manifest: Manifest,
        phases: dict[str, float],
        dropping: Dropping | None = None,
        planned: Planned | None = None,
    ) -> None:
        with Phase(phases, "deliver"):
            if not self.spark.is_active():
                # Spark is stopping and would not commit the batch, so a restart would deliver it again.
                raise Stopping
            self.delivery.deliver(batch, manifest, dropping, planned)
            fail_point("deliver-after", manifest.version)

    def _already_made(self, version: Version) -> Manifest | None:
        """The manifest of this version if it was committed before, because Spark replays the batch; else None.

        Checks that the replayed batch has the same offsets as the one that made the version, at its end and at its beginning. Otherwise
        rows would be skipped, and a sink that takes the batch's own rows would get others.
        """
        manifest = self.checkpoint.manifests.read_if_exists(version)
        if manifest is not None:
            self.checkpoint.spark_log.check(manifest)
            if version and (earlier := self.checkpoint.manifests.read_if_exists(Version(version - 1))) is not None:
                self.checkpoint.spark_log.check(earlier)
        return manifest

    def _collect_garbage(self, manifest: Manifest, reports: Reports) -> None:
        version, writer = manifest.version, self.checkpoint.fence.writer
        if self.keeping.at_home:
            # The checkpointer collects what durable versions no longer need.
            self.keeping.drop_staged(manifest)
            if self.config.safety.approach is Approach.AMNESIA:
                # Only the watermark of the last versions is needed.
                self.checkpoint.journal.trim(before=Version(version - 1))
            return
        self.checkpoint.remember(manifest)
        self.checkpoint.collect_soon(lambda: self._collect(version, writer, reports))
        fail_point("collect-garbage", version)

    def _collect(self, version: Version, writer: WriterId, reports: Reports) -> None:
        # A version may have written runs that its manifest does not name, because all their windows are closed.
        runs = [ref.file for each in reports.values() for report in each for ref in report.refs]
        remove_unnamed(self.checkpoint, version, writer, [("runs", file) for file in runs])
        if (version + 1) // EVERY > self.swept:
            sweep_committed(self.checkpoint, version, writer)
        self.swept = (version + 1) // EVERY
        self.checkpoint.collect_garbage(self.config.versionsToKeep)

    def _report(
        self, manifest: Manifest, reports: Reports, replayed: bool, phases: Phases, begin_s: float, shed: Shed | None
    ) -> None:
        progress = BatchProgress(
            version=manifest.version,
            times_s=(begin_s, time.time(), self.last_begin_s),
            replayed=replayed,
            routing=dict(self.routing.routing),
            phases_ms=phases,
            reports=reports,
            manifest=manifest,
            shed=shed,
            readers=tuple(op.id for op in self.flow.readers),
            changes=self.routing.drain_changes(),
            homes=self.routing.homes(),
            interruptions=() if self.recovery is None else self.recovery.end_batch(),
            rebuilt=self.replay.drain_rebuilt(),
            gaps=self.replay.drain_gaps(),
            redundancy=None if self.replicas is None else self.replicas.redundancy,
            checkpointed=None if self.checkpointer is None else self.checkpointer.last,
            store_waited_s=self.outage.drain(),
            observed=self.delivery.drain_observed(),
        )
        self.progress.add(replace(progress, backlog=self.backlog.observe(progress.rows, begin_s)))
        if self.tracing is not None:
            self.tracing.report(progress, phases)
        begin, end, _ = progress.times_s
        _log.debug("the batch took %.0f ms for %d rows", (end - begin) * 1000, progress.rows)
