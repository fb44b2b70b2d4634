"""The composition root: the parts of a running query, put together by their constructors and closed in reverse order.

    SparkQuery <- LiveRouting <- JobRunner <- VersionMaker, Delivery <- BatchLoop <- BatchGate <- QueryLifetime
                  LiveRouting <- Autoscaler <- ProgressLog <- Endpoint

Nothing is replaced afterwards. The one thing that comes later, Spark's own query, is attached to `SparkQuery`.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.compile.dataflow import Dataflow, inputs_of
from headrace.compile.prepared import Preparations
from headrace.config import Config
from headrace.control.availability.scheduling import ScheduleConfig
from headrace.control.elastic import Elastic
from headrace.control.handover import Facts
from headrace.errors import QueryError
from headrace.guarantees import Approach, Safety
from headrace.ids import FIRST_VERSION, OperatorId, StoreId, Version
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.backfill import Backfill
from headrace.runtime.backlog import Backlog
from headrace.runtime.caretaker import Caretaker
from headrace.runtime.changes import UNCHANGED, Changes
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.combining import Combining
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.deliver import Delivery
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.endpoint import Endpoint
from headrace.runtime.gate import BatchGate
from headrace.runtime.guard import Guard
from headrace.runtime.history import PERIOD_S, History
from headrace.runtime.history_about import about_query
from headrace.runtime.history_files import history_folder
from headrace.runtime.jobs import JOBS_AT_ONCE, JobRunner
from headrace.runtime.leaving import Departures
from headrace.runtime.lending import Files, Share
from headrace.runtime.lifetime import QueryLifetime
from headrace.runtime.loop import BatchLoop
from headrace.runtime.parallel import ParallelRecovery
from headrace.runtime.placement import Placement, shares_of
from headrace.runtime.pool import Pool, PoolClient
from headrace.runtime.progress_log import ProgressLog
from headrace.runtime.recovery import Recovery
from headrace.runtime.safety.checkpointer import RETAINED, Checkpointer
from headrace.runtime.safety.gaps import Gaps
from headrace.runtime.safety.keeping import Keeping
from headrace.runtime.safety.outage import Outage
from headrace.runtime.safety.replay import Replay
from headrace.runtime.safety.replicas import Replicas
from headrace.runtime.safety.sigma import Sigma, memories_of
from headrace.runtime.safety.tuples import Tuples
from headrace.runtime.schedule import OperatorShape
from headrace.runtime.shapes import shapes_of
from headrace.runtime.shedding import Shedder, ShedSettings
from headrace.runtime.sinks import Sink
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.tracing import Tracing
from headrace.runtime.version import VersionMaker
from headrace.runtime.watermark import Pace
from headrace.spark.executors import Executors
from headrace.spark.replayable import forgetful_sources, unreplayable_sources
from headrace.state.routing import Routing

if TYPE_CHECKING:
    # Only queries that serve metrics need the package.
    from headrace.runtime.metrics import Served

SECONDS_MAX = 1e9
"""Stands for never, where a policy needs a number."""
LAG_SPARE = 10
"""Spark keeps the offsets of `RETAINED` batches. A checkpoint is forced this many batches before they are needed."""


@dataclass(frozen=True)
class Engine:
    """The parts of a query that runs, or is about to run."""

    flow: Dataflow
    safety: Safety
    sinks: tuple[Sink, ...]
    session: SparkSession
    checkpoint: Checkpoint
    spark: SparkQuery
    routing: LiveRouting
    gate: BatchGate
    lifetime: QueryLifetime
    progress: ProgressLog
    endpoint: Endpoint
    departures: Departures
    caretaker: Caretaker | None
    autoscaler: Autoscaler | None
    checkpointer: Checkpointer | None
    """Makes state durable from time to time; None if every version is durable when it is committed."""
    replicas: Replicas | None
    """Keeps copies of state on other executors; None without."""
    shedder: Shedder | None
    """Chooses what batches drop; None if the user allows no drops."""
    metrics: Served | None
    """Serves metrics for Prometheus; None without."""
    changes: Changes
    """What became of the stored state when the query started."""
    history: History | None
    """Records progress and decisions in the checkpoint; None without."""
    closing: contextlib.ExitStack
    """Closes the parts in reverse order. Even if some of that fails, the checkpoint is released."""

    def attach(self, query: StreamingQuery) -> None:
        """Take Spark's query, which has started, and start the parts that work beside the batches."""
        self.spark.attach(query)
        self.progress.begin()
        self.closing.callback(self.progress.end)
        self.lifetime.begin()
        if self.caretaker is not None:
            self.closing.callback(self.caretaker.stop)
            self.caretaker.start()
        if self.autoscaler is not None:
            self.closing.callback(self.autoscaler.stop)
            self.autoscaler.start()
        if self.shedder is not None:
            self.closing.callback(self.shedder.stop)
            self.shedder.start()
        if self.checkpointer is not None:
            self.closing.callback(self.checkpointer.stop)
            self.checkpointer.start()
        if self.replicas is not None:
            self.closing.callback(self.replicas.stop)
            self.replicas.start()
        self.closing.callback(self.endpoint.close)
        self.endpoint.open()
        if self.history is not None:
            self.closing.callback(self.history.stop, self.gate.failure)
            settings = None if self.autoscaler is None else self.autoscaler.settings
            self.history.start(lambda: about_query(self.flow, self.sinks, self.spark, self.routing.routing, settings, self.safety))


def assemble(
    flow: Dataflow,
    sinks: tuple[Sink, ...],
    checkpoint: Checkpoint,
    config: Config,
    routing: dict[OperatorId, Routing],
    elastic: Elastic | None,
    trigger_s: float,
    shed: ShedSettings | None = None,
    pace: Pace = Pace.AT_ONCE,
    changes: Changes = UNCHANGED,
    name: str | None = None,
) -> Engine:
    """Put the parts of a query together. Nothing runs yet. Until Spark's query is attached, the caller must release the checkpoint."""
    session, spark = flow.session, SparkQuery(flow.session)
    keeping, homes = _keeping(flow, checkpoint, config)
    placement = _placement(flow, checkpoint, config, session, keeping)
    decisions = None if elastic is None else DecisionLog(elastic)
    facts, lock = _facts(flow, keeping, placement), threading.Lock()
    live = LiveRouting(checkpoint, routing, lock, placement, facts, config.handover, decisions=decisions)
    autoscaler = None if elastic is None or decisions is None else Autoscaler(elastic, live, decisions, spark.is_idle)
    shedder = None if shed is None else Shedder(flow, shed, live.instances, checkpoint.directory)
    served, history = _served(label := name or checkpoint.name, config), _history(checkpoint, spark, config, elastic)
    progress = ProgressLog(spark, inputs_of(flow), trigger_s, autoscaler, shedder, history, served.metrics if served else None, label)
    preparations, shapes = Preparations(), shapes_of(flow, sinks)
    closing = _closing(checkpoint, sinks, served, homes, beside := ThreadPoolExecutor(JOBS_AT_ONCE, "headrace-job"))
    recovery = None if placement is None else Recovery(placement, ParallelRecovery(live, placement, config.parallelRecovery))
    store, active = checkpoint.store, config.safety.approach is Approach.ACTIVE
    runner = JobRunner(flow, sinks, store, preparations, Combining(config), placement, recovery, beside, elastic is not None, active, label)
    versions = VersionMaker(flow, shapes, checkpoint, config, keeping, live, spark, runner, shedder, pace)
    checkpointer = _checkpointer(flow, config, keeping, placement, lambda: not live.lock.locked())
    safety, outage = config.safety, Outage(checkpoint, config.storeWaitSeconds)
    replicas = _replicas(placement, recovery, keeping, safety)
    gaps = None if safety.replays else Gaps(checkpoint, safety, _stores(flow))
    if (tuples := _tuples(flow, checkpoint, safety, placement)) is not None:
        closing.callback(tuples.close)
    loop = BatchLoop(
        flow,
        config,
        checkpoint,
        spark,
        live,
        keeping,
        versions,
        Replay(flow, checkpoint, keeping, versions, live, spark, gaps, tuples),
        checkpointer,
        replicas,
        Delivery(flow, sinks, checkpoint, preparations, keeping.working, _served_inside(shapes), label, beside=beside),
        Backlog(flow.streaming, checkpoint.places.logs, spark.source_offsets),
        progress,
        recovery,
        outage,
        Tracing(label, str(checkpoint.location)) if config.traces else None,
        Backfill(changes.backfilled, versions, spark) if changes.backfilled else None,
    )
    departures, gate = Departures(live, placement, replicas), BatchGate(loop.run, checkpoint, spark, live.lock, outage)
    return Engine(
        flow,
        safety,
        sinks,
        session,
        checkpoint,
        spark,
        live,
        gate,
        QueryLifetime(gate, spark, closing.close, checkpointer),
        progress,
        Endpoint(checkpoint, live, progress.last, autoscaler, departures, None if shedder is None else shedder.log),
        departures,
        None if placement is None or recovery is None else Caretaker(checkpoint.location, live, placement, recovery),
        autoscaler,
        checkpointer,
        replicas,
        shedder,
        served,
        changes,
        history,
        closing,
    )


def _served(label: str, config: Config) -> Served | None:
    """Begin to serve the query's metrics; None if they are not wanted."""
    if config.metricsPort < 0:
        return None
    from headrace.runtime.metrics import Served

    return Served.begin(label, config.metricsHost, config.metricsPort)


def _closing(
    checkpoint: Checkpoint,
    sinks: tuple[Sink, ...],
    served: Served | None,
    homes: contextlib.AbstractContextManager[object],
    beside: ThreadPoolExecutor,
) -> contextlib.ExitStack:
    """What to close at the end of the query, in reverse order."""
    closing = contextlib.ExitStack()
    closing.callback(_close_all, checkpoint, sinks)
    if served is not None:
        closing.callback(served.close)
    closing.enter_context(homes)
    closing.callback(beside.shutdown, wait=False)
    return closing


def _served_inside(shapes: tuple[OperatorShape, ...]) -> frozenset[int]:
    """The numbers of the direct sinks, which get their results inside the jobs."""
    return frozenset(shape.sink for shape in shapes if shape.sink is not None)


def _facts(flow: Dataflow, keeping: Keeping, placement: Placement | None) -> dict[OperatorId, Facts]:
    """By operator: what the choice of a hand-over protocol depends on."""
    facts = {op.id: op.plan.operator.handover(op.mode) for op in flow.ops}
    if keeping.at_home and placement is not None:
        # The owner of a spread slot reads what other instances wrote, which only their executors have.
        facts = {name: replace(each, reads_others=False) for name, each in facts.items()}
    return facts


def _close_all(checkpoint: Checkpoint, sinks: tuple[Sink, ...]) -> None:
    for sink in sinks:
        sink.close()
    checkpoint.release()


def _history(checkpoint: Checkpoint, spark: SparkQuery, config: Config, elastic: Elastic | None) -> History | None:
    period_s = PERIOD_S if elastic is None else elastic.period_s
    return History(checkpoint.location, history_folder(checkpoint), spark, period_s) if config.history else None


def _stores(flow: Dataflow) -> tuple[StoreId, ...]:
    return tuple(StoreId(op.id, name) for op in flow.ops for name in op.plan.operator.stores)


def _keeping(flow: Dataflow, checkpoint: Checkpoint, config: Config) -> tuple[Keeping, contextlib.AbstractContextManager[object]]:
    """Where state is kept, and what to close at the end of the query."""
    # Names of runs are unique within a checkpoint. So later starts of the query may use the same copies, but no other checkpoint may.
    mark = hashlib.sha256(checkpoint.location.encode()).hexdigest()[:12]
    is_far = checkpoint.store.local is None
    at_home, on_executors = config.safety.at_home, Executors.of(flow.session.sparkContext) is not None
    working = None if config.workingDirectory == "none" else f"{config.workingDirectory}/{mark}"
    closing: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if not on_executors:
        # The driver does all the work. It reads the checkpoint's own files, unless new runs are not written there, or it is not a folder.
        working = None
        if at_home or is_far:
            closing = tempfile.TemporaryDirectory(prefix="headrace-home-", ignore_cleanup_errors=True)
            working = str(Path(config.workingDirectory) / mark) if config.workingDirectory.startswith("/") else closing.name

    def since_noted(version: Version) -> Version:
        record = checkpoint.journal.read(version)
        return FIRST_VERSION if record is None else record.since

    sigma, approach = Sigma(memories_of(flow), since_noted), config.safety.approach
    trims, forgets = approach is Approach.UPSTREAM, approach is Approach.AMNESIA
    if is_far and working is None:
        raise QueryError(
            where="option 'headrace.workingDirectory'",
            wanted="a folder, because executors keep copies of the state, which is at " + checkpoint.store.where(""),
            found="'none'",
        )
    driver_reads = not on_executors or not (at_home or is_far)
    keeping = Keeping(checkpoint, at_home, working, driver_reads, config.durable, sigma, trims, forgets)
    keeping.begin()
    return keeping, closing


def _replicas(placement: Placement | None, recovery: Recovery | None, keeping: Keeping, safety: Safety) -> Replicas | None:
    if not safety.replicas or placement is None or recovery is None:
        return None
    return Replicas(placement, keeping, safety.replicas, safety.waits_for_peers, lambda: bool(recovery.interruptions))


def _tuples(flow: Dataflow, checkpoint: Checkpoint, safety: Safety, placement: Placement | None) -> Tuples | None:
    """Keeps rows that a source cannot give again; None if all sources can, or if none are needed."""
    if not (safety.at_home and safety.replays and unreplayable_sources(flow.streaming)):
        return None
    executors = None if placement is None else placement.executors
    return Tuples(checkpoint.location, executors, safety.replicas, tuple(forgetful_sources(flow.streaming)))


def _checkpointer(
    flow: Dataflow, config: Config, keeping: Keeping, placement: Placement | None, is_idle: Callable[[], bool]
) -> Checkpointer | None:
    if not keeping.at_home or keeping.working is None:
        return None
    executors, guard = (None, None) if placement is None else (placement.executors, placement.guard)
    session = flow.session
    files = Files(keeping.checkpoint.store.below("runs"), keeping.working, config.logLevel)
    lag_max = max(1, int(str(session.conf.get(RETAINED))) - LAG_SPARE)
    interval_s = config.safety.checkpoint_s if config.safety.takes_checkpoints else math.inf
    schedule = ScheduleConfig(cast(Literal["min-max", "round-robin", "whole"], config.checkpointOrder), min(interval_s, SECONDS_MAX), 0.0)
    return Checkpointer(keeping, flow, session, files, executors, guard, interval_s, config.versionsToKeep, lag_max, schedule, is_idle)


def _placement(flow: Dataflow, checkpoint: Checkpoint, config: Config, session: SparkSession, keeping: Keeping) -> Placement | None:
    """The homes of instances on executors; None if the driver does all the work."""
    executors = Executors.of(session.sparkContext)
    if executors is None:
        return None

    def shares(op: OperatorId, routing: Routing) -> list[tuple[Share, ...]]:
        return shares_of(checkpoint.latest(), flow.by_id[op], routing)

    lends = config.fetchFrom == "executors"
    pool = None if config.readyExecutors < 0 else PoolClient(Pool.of(executors), checkpoint.location, config.readyExecutors)
    guard = Guard(checkpoint.location, executors)
    runs = checkpoint.store.below("runs")
    return Placement(executors, session, runs, shares, lends, keeping.working, guard, keeping.copies, config.logLevel, pool)
