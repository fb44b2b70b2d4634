"""Computes versions again that were lost with their executors or with the driver: from the journal, and from the same rows of the sources.

    the last durable version d  ->  read batch d+1 again, make version d+1 as its record says  ->  d+2  ->  ...

Results are not delivered again. If Spark has not committed the last batch, Spark itself runs it again, and it is delivered then.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow
from headrace.errors import CheckpointMismatchError, MissingRunError
from headrace.ids import NO_VERSION, StoreId, Version
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.failpoints import fail_point
from headrace.runtime.jobs import Reports
from headrace.runtime.safety.gaps import Gaps
from headrace.runtime.safety.keeping import Keeping, remove_staged
from headrace.runtime.safety.tuples import Tuples
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.version import Made, VersionMaker
from headrace.spark.gateway import SPARK_ERRORS
from headrace.spark.kept_rows import are_lost
from headrace.spark.reread import BatchReader
from headrace.state.gaps import Gap
from headrace.state.journal import Record
from headrace.state.manifest import Manifest, StoreState

ATTEMPTS_MAX = 4
"""How often a batch is tried if the same run is missing again on the same executor, before that ends the query."""
MISSES_MAX = 64
"""How often it is tried in all. On a busy cluster, Spark runs tasks where their state is not, and each such task misses runs of its own."""
_log = logger(__name__)


@dataclass
class Replay:
    """Makes versions, and makes those before again whose state was lost."""

    flow: Dataflow
    checkpoint: Checkpoint
    keeping: Keeping
    versions: VersionMaker
    routing: LiveRouting
    spark: SparkQuery
    gaps: Gaps | None = None
    """Skips lost state; None if it is computed again."""
    tuples: Tuples | None = None
    """The rows of batches that a source cannot give again; None if all sources can."""
    rebuilt: int = 0
    """How many versions were computed again since the last batch was reported."""

    @property
    def keeps_rows(self) -> bool:
        """True if executors keep the rows of each batch."""
        return self.tuples is not None and self.tuples.copies > 0

    def kept(self, batch: DataFrame, version: Version) -> DataFrame:
        """The rows of a batch. If a source cannot give them again, executors keep them from now on."""
        return batch if self.tuples is None else self.tuples.keep(batch, version, self.keeping.durable)

    def make(self, batch: DataFrame, version: Version, phases: dict[str, float]) -> Made:
        """Make a version. If state that it builds on was lost, compute that again first."""
        record, misses = self.checkpoint.record_of(version), Counter[tuple[str, str]]()
        while True:
            try:
                if self._lacks(Version(version - 1)):
                    self._restore(batch.sparkSession, Version(version - 1))
                return self.versions.make(batch, version, phases, record)
            except MissingRunError as missing:
                misses[missing.path, missing.executor] += 1
                if max(misses.values()) == ATTEMPTS_MAX or misses.total() == MISSES_MAX or not self._repairs(missing):
                    raise
                _log.warning("state was lost and is %s: %s", "computed again" if self.gaps is None else "skipped", missing, version=version)
            except SPARK_ERRORS as failed:
                if self.tuples is not None and are_lost(failed):
                    raise self.tuples.lost(version) from failed
                raise

    def drain_rebuilt(self) -> int:
        """How many versions were computed again since the last call."""
        found, self.rebuilt = self.rebuilt, 0
        return found

    def observe(self, version: Version, reports: Reports) -> None:
        """Remember what a version did, for the case that it is lost and skipped."""
        if self.gaps is not None:
            self.gaps.observe(version, reports, self.keeping.durable)

    def drain_gaps(self) -> tuple[Gap, ...]:
        """What was skipped since the last call."""
        return () if self.gaps is None else self.gaps.drain()

    def _lacks(self, version: Version) -> bool:
        """True if the version is only in the journal: its state is neither durable nor on living executors."""
        if version == NO_VERSION or version <= self.keeping.durable:
            return False
        previous = self.versions.previous
        return (previous is None or previous.version != version) and self.checkpoint.journal.read(version) is not None

    def _repairs(self, missing: MissingRunError) -> bool:
        """Note that an executor lacks a run. False if the durable store should have it and has not: then it cannot be computed again.

        A checkpoint may have shipped the run since the task looked for it. Then the next attempt finds it.
        """
        file = Path(missing.path).name
        if self.keeping.copies.is_durable(file) and self.checkpoint.store.size(f"runs/{file}") is None:
            return False
        self.keeping.copies.forget(file, missing.executor)
        lost = self.routing.lost_runs()
        if lost is None:
            lost = frozenset() if self.keeping.copies.is_durable(file) else frozenset([file])
        if lost and self.gaps is None:
            self.versions.previous = self.checkpoint.current = None
        elif lost and self.gaps is not None and (previous := self.versions.previous) is not None:
            self._go_on_from(self.gaps.without_runs(previous, lost, self.keeping.durable))
        return True

    def _restore(self, session: SparkSession, upto: Version) -> None:
        """Have the state of a version again, which is only in the journal: compute it again, or skip what is lost."""
        if self.gaps is None:
            self._rebuild(session, upto)
            return
        journal = self.checkpoint.journal
        between = [record for each in range(self.keeping.durable + 1, upto + 1) if (record := journal.read(Version(each))) is not None]
        self._go_on_from(self.gaps.without_versions(between[-1], between, self.keeping.durable))

    def _go_on_from(self, manifest: Manifest) -> None:
        """Let the next version build on this one, in which some state was skipped."""
        # What the durable store has of these operators may be more than what is left, so the next checkpoint does not build on it.
        if self.gaps is not None:
            self.keeping.recreated |= {gap.operator for gap in self.gaps.found}
        self.versions.build_on(self.keeping.hold(manifest))
        self.keeping.settle(manifest.version)

    def _rebuild(self, session: SparkSession, upto: Version) -> None:
        """Compute a version again: from the newest one that is durable or has copies, or from the first batch on which it depends."""
        copied, began_s = self.keeping.copied(self.routing.live_executors()), time.monotonic()
        start = self.keeping.durable if copied is None else copied.version
        first = Version(max(start + 1, self._record(upto).since))
        kept = "the rows that executors kept" if self.keeps_rows else "the source"
        _log.warning("versions %d to %d are computed again from %s", first, upto, kept)
        self.versions.previous = self.checkpoint.current = copied
        if first > start + 1:
            self._begin_empty(Version(first - 1), upto)
        reader = BatchReader(self.spark.execution(), session)
        with self.routing.as_it_was():
            for number in range(first, upto + 1):
                self._again(reader, Version(number))
                self.rebuilt += 1
        _log.warning("%d versions were computed again in %.1f s", upto + 1 - first, time.monotonic() - began_s)

    def _begin_empty(self, before: Version, upto: Version) -> None:
        """Let the next version build on an empty state, with the watermark and the routing of the version before."""
        self.keeping.exact_after = upto
        facts = self._record(before).facts
        empty = {StoreId(op.id, name): StoreState((), facts.watermark_ms) for op in self.flow.ops for name in op.plan.operator.stores}
        self.versions.build_on(self.keeping.hold(replace(facts, stores=empty)))

    def _record(self, version: Version) -> Record:
        record = self.checkpoint.journal.read(version)
        if record is None:
            raise CheckpointMismatchError(
                where=self.checkpoint.journal.where(version),
                wanted=f"the record of version {version}, whose state was lost",
                found="no such file",
                hint="restore the folder 'headrace' and Spark's logs from one backup, or start with a new checkpointLocation",
            )
        return record

    def _again(self, reader: BatchReader, version: Version) -> None:
        record = self._record(version)
        self.checkpoint.spark_log.check(record.facts)
        self.routing.routing.update(record.facts.routing)
        fail_point("replay", version)
        tuples = None if self.tuples is None else self.tuples.rows(version)
        rows = reader.rows(version) if tuples is None else tuples
        kept = tuples is None and self.flow.source_readers > 1
        if kept:
            rows = rows.persist()
        try:
            with self.keeping.making():
                manifest = self.versions.commit(self.versions.make(rows, version, {}, record), {})
        finally:
            if kept:
                rows.unpersist()
        remove_staged(self.checkpoint, manifest)
        self.versions.build_on(self.keeping.hold(replace(manifest, staged=())))
