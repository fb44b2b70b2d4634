"""Computes the state of new operators from all rows that the sources have had, in the first version after a change of the query.

    Spark's log of offsets    ...  41    42    43 | 44
                              read again, oldest  |  the version of the change: its rows, on top of
                              first, by the new   |    - the state of 43, for operators that keep theirs
                              operators alone     |    - the state from history, for the others

Each batch of Spark's log is read again as it was, so event times, lateness and timers are what they would have been. Of batches that the
log has forgotten, the rows up to the oldest offsets that are left are read as one. Operators that a new one reads are computed again too,
from empty state, and only for it: their own state and results are not touched.

Results that the new operators have given on the way are delivered with the version of the change. In append mode these are all results, in
update mode the last one of each key; in complete mode every version has all results anyway. Until that version is committed, nothing has
changed: after a crash all of this is done again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from headrace.compile.dataflow import Dataflow, Op
from headrace.config import Config
from headrace.errors import CheckpointMismatchError, SourceError, UnsupportedError
from headrace.ids import FIRST_VERSION, OperatorId, Version
from headrace.logs import logger
from headrace.operators.kernel import OutputMode
from headrace.runtime import watermark
from headrace.runtime.changes import Changes
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.failpoints import fail_point
from headrace.runtime.initial import initial_states
from headrace.runtime.newest_results import newest_results
from headrace.runtime.schedule import OperatorShape
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.version import Made, States, VersionMaker
from headrace.spark.event_times import Nodes
from headrace.spark.replayable import unreplayable_sources
from headrace.spark.reread import BatchReader
from headrace.state.journal import Record
from headrace.state.manifest import Manifest, StagedFile

_log = logger(__name__)


def check_changes(flow: Dataflow, changes: Changes, checkpoint: Checkpoint, config: Config, *, is_running: bool = False) -> None:
    """Raise an error if the state cannot be changed as it must be.

    ``is_running`` says that the query runs: the batch that it may be delivering just now ends before anything changes.
    """
    where = checkpoint.location
    if changes.evolved and not is_running and (newest := checkpoint.newest_facts()) is not None:
        delivered = checkpoint.spark_log.newest("commits")
        if delivered is None or delivered < newest.version:
            raise CheckpointMismatchError(
                where=where,
                wanted=f"the last batch, {newest.version}, to be delivered before the columns of its results change",
                found=f"batches delivered up to {delivered}",
                hint="start the program once as it was; it delivers the batch, and can be changed then",
            )
    if not changes.backfilled:
        return
    if refused := unreplayable_sources(flow.streaming):
        raise SourceError(
            where=f"{where}, backfill",
            wanted="sources that give earlier rows again",
            found="; ".join(refused),
            hint="let new operators start empty, without backfill",
        )
    if config.safety.at_home:
        raise UnsupportedError(
            where=f"{where}, backfill",
            wanted="headrace.checkpointSeconds=0 and every version durable",
            found="state that is kept on executors between checkpoints",
            hint="restart the query with headrace.checkpointSeconds=0 for the change",
        )


@dataclass
class HistoryMaker(VersionMaker):
    """Makes one version after the other from history, with some of the operators. None of them is committed."""

    reader: BatchReader | None = None
    last: Version = FIRST_VERSION
    """The last version of history."""
    until_ms: int = 0
    """The query's watermark after that version. What falls due later, falls due in the version of the change."""
    nodes: Nodes = ()

    def next(self, version: Version, is_first: bool) -> Manifest:
        """Compute one version on top of the last one."""
        assert self.reader is not None
        rows = self.reader.rows(version, from_beginning=is_first)
        kept = self.flow.source_readers > 1
        rows = rows.persist() if kept else rows
        try:
            self.previous = self.make(rows, version, {}).manifest
        finally:
            if kept:
                rows.unpersist()
        return self.previous

    def before(self, version: Version) -> Manifest | None:
        return self.previous

    def _now_ms(self, version: Version, record: Record | None) -> int:
        return self.checkpoint.spark_log.batch_time_ms(version)

    def _initial_states(self) -> States:
        wanted = {shape.id for shape in self.shapes}
        flow = replace(self.flow, ops=tuple(op for op in self.flow.ops if op.id in wanted))
        return initial_states(flow, self.checkpoint, self.checkpoint.fence.writer, self.config.durable)

    def _held_back(self, before: Manifest | None, late_ms: int) -> int:
        return min(super()._held_back(before, late_ms), max(self.until_ms, late_ms))

    def _advance(self, held_ms: int, begin_s: float) -> watermark.Watermark:
        assert self.tracker is not None
        assert self.reader is not None
        timed = any(op.plan.timing.uses_watermark for op in self.flow.ops)
        nodes = self.reader.event_times() if timed and (self.flow.reads_event_times or not self.flow.watermarks) else ()
        moved = self.tracker.advance(held_ms, nodes + self.runner.drain_times(), begin_s)
        self.nodes = moved.nodes_ms
        at_end = self.version_made == self.last
        waits = timed and self._after_rows
        reached_ms = self.until_ms if at_end else held_ms if waits else min(moved.reached_ms, self.until_ms)
        return replace(moved, reached_ms=max(reached_ms, held_ms))


@dataclass
class Backfill:
    """Computes the state of these operators before the first version is made, and adds it to the state of the version before."""

    operators: Collection[OperatorId]
    maker: VersionMaker
    spark: SparkQuery
    results: tuple[StagedFile, ...] = ()
    """What the operators have emitted in history, for the sinks."""
    found: Manifest | None = None
    """The state from history, once it is computed."""
    batches: int = 0
    """How many batches were read again."""

    def run(self, session: SparkSession, version: Version) -> None:
        """Let ``version`` build on the state of the version before and the state from history. Does the work only once."""
        base = self.maker.before(version)
        if base is None:
            return
        if self.found is None:
            self._read_again(session, base)
        assert self.found is not None
        mine = {store: state for store, state in self.found.stores.items() if store.operator in self.operators}
        self.maker.build_on(replace(base, stores={**base.stores, **mine}))

    def with_results(self, made: Made) -> Made:
        """The version, with the results from history before its own."""
        return replace(made, manifest=replace(made.manifest, staged=(*self.results, *made.manifest.staged)))

    def _read_again(self, session: SparkSession, base: Manifest) -> None:
        began_s = time.monotonic()
        flow, checkpoint = self.maker.flow, self.maker.checkpoint
        versions = sorted(Version(each) for each in checkpoint.spark_log.numbers("offsets") if each <= base.version)
        names = ", ".join(self.operators)
        _log.info("%s: the rows of %d batches and those before are read again", names, len(versions), query=checkpoint.location)
        assert self.maker.tracker is not None
        history = HistoryMaker(
            flow,
            _shapes(self.maker.shapes, flow, self.operators),
            checkpoint,
            self.maker.config,
            self.maker.keeping,
            self.maker.routing,
            self.spark,
            self.maker.runner,
            pace=self.maker.pace,
            tracker=self.maker.tracker.fresh(),
            reader=BatchReader(self.spark.execution(), session),
            last=base.version,
            until_ms=base.watermark_ms,
        )
        read = {branch.source for port in flow.outlets for branch in port if branch.source in self.operators}
        emitted: dict[OperatorId, list[tuple[StagedFile, ...]]] = {op.id: [] for op in flow.ops if op.id in read}
        for version in versions:
            fail_point("backfill", version)
            made = history.next(version, is_first=version == versions[0])
            for name, each in emitted.items():
                each.append(tuple(file for file in made.staged if file.operator == name))
        self.found, self.batches = history.previous, len(versions)
        self.results = tuple(file for name, each in emitted.items() for file in self._delivered(session, flow.by_id[name], each))
        # Windows that are due by these event times close in the version of the change.
        self.maker.tracker.advance(base.watermark_ms, history.nodes, watermark.clock_s())
        _log.info("%s: history was read in %.1f s", names, time.monotonic() - began_s, query=checkpoint.location)

    def _delivered(self, session: SparkSession, op: Op, emitted: list[tuple[StagedFile, ...]]) -> tuple[StagedFile, ...]:
        """The results of an operator that its sinks shall get."""
        if op.mode is OutputMode.COMPLETE:
            return ()
        if op.mode is OutputMode.APPEND or op.plan.results.keys is None:
            return tuple(file for each in emitted for file in each)
        return newest_results(session, self.maker.checkpoint, op, emitted)


def _shapes(shapes: Collection[OperatorShape], flow: Dataflow, wanted: Collection[OperatorId]) -> tuple[OperatorShape, ...]:
    """What the schedule must know about these operators and all that they read. All their results are staged or read by these operators."""
    needed = set(wanted)
    for op in reversed(flow.ops):
        if op.id in needed:
            needed |= {above.id for above in flow.upstream(op)}
    kept = [shape for shape in shapes if shape.id in needed]
    return tuple(replace(each, sink=None, only_reader=each.only_reader if each.only_reader in needed else None) for each in kept)
