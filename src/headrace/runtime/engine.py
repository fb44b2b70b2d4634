"""The composition root: the parts of a running query, put together by their constructors and closed in reverse order.

    SparkQuery <- LiveRouting <- JobRunner <- VersionMaker, Delivery <- BatchLoop <- BatchGate <- QueryLifetime
                  LiveRouting <- Autoscaler <- ProgressLog <- Endpoint

Nothing is replaced afterwards. The one thing that comes later, Spark's own query, is attached to `SparkQuery`.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.compile.dataflow import Dataflow, inputs_of
from headrace.compile.prepared import Preparations
from headrace.config import Config
from headrace.control.elastic import Elastic
from headrace.ids import OperatorId
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.backlog import Backlog
from headrace.runtime.caretaker import Caretaker
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.combining import Combining
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.deliver import Delivery
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.endpoint import Endpoint
from headrace.runtime.gate import BatchGate
from headrace.runtime.jobs import JOBS_AT_ONCE, JobRunner
from headrace.runtime.lending import Share
from headrace.runtime.lifetime import QueryLifetime
from headrace.runtime.loop import BatchLoop
from headrace.runtime.placement import Placement, shares_of
from headrace.runtime.pool import Pool, PoolClient
from headrace.runtime.progress_log import ProgressLog
from headrace.runtime.recovery import Recovery
from headrace.runtime.sinks import Sink
from headrace.runtime.spark_query import SparkQuery
from headrace.runtime.version import VersionMaker, shapes_of
from headrace.spark.executors import Executors
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Engine:
    """The parts of a query that runs, or is about to run."""

    flow: Dataflow
    sinks: tuple[Sink, ...]
    session: SparkSession
    checkpoint: Checkpoint
    spark: SparkQuery
    routing: LiveRouting
    gate: BatchGate
    lifetime: QueryLifetime
    progress: ProgressLog
    endpoint: Endpoint
    caretaker: Caretaker | None
    autoscaler: Autoscaler | None
    closing: contextlib.ExitStack
    """Closes the parts in reverse order. Even if some of that fails, the checkpoint is released."""

    def attach(self, query: StreamingQuery) -> None:
        """Take Spark's query, which has started, and start the parts that work beside the batches."""
        self.spark.attach(query)
        self.lifetime.begin()
        if self.caretaker is not None:
            self.closing.callback(self.caretaker.stop)
            self.caretaker.start()
        if self.autoscaler is not None:
            self.closing.callback(self.autoscaler.stop)
            self.autoscaler.start()
        self.closing.callback(self.endpoint.close)
        self.endpoint.open()


def assemble(
    flow: Dataflow,
    sinks: tuple[Sink, ...],
    checkpoint: Checkpoint,
    config: Config,
    routing: dict[OperatorId, Routing],
    elastic: Elastic | None,
    trigger_s: float,
) -> Engine:
    """Put the parts of a query together. Nothing runs yet. Until Spark's query is attached, the caller must release the checkpoint."""
    session = flow.session
    spark = SparkQuery(session)
    placement = _placement(flow, checkpoint, config, session)
    decisions = None if elastic is None else DecisionLog(elastic)
    facts = {op.id: op.plan.operator.handover(op.mode) for op in flow.ops}
    live = LiveRouting(checkpoint, routing, threading.Lock(), placement, facts, config.handover, decisions=decisions)
    autoscaler = None
    if elastic is not None and decisions is not None:
        autoscaler = Autoscaler(elastic, live, decisions, spark.is_idle)
    progress = ProgressLog(spark, inputs_of(flow), trigger_s, autoscaler)
    preparations = Preparations()
    shapes = shapes_of(flow, sinks)
    closing = contextlib.ExitStack()
    closing.callback(checkpoint.release)
    beside = ThreadPoolExecutor(JOBS_AT_ONCE, "headrace-job")
    closing.callback(beside.shutdown, wait=False)
    combining = Combining(config)
    recovery = None if placement is None else Recovery(placement)
    shuffles = elastic is not None
    runner = JobRunner(flow, sinks, checkpoint.directory, preparations, combining, placement, recovery, beside, shuffles)
    loop = BatchLoop(
        flow,
        config,
        checkpoint,
        spark,
        live,
        VersionMaker(flow, shapes, checkpoint, config, live, spark, runner),
        Delivery(flow, sinks, checkpoint, preparations, {shape.sink for shape in shapes if shape.sink is not None}),
        Backlog(flow.streaming, checkpoint.location, spark.source_offsets),
        progress,
        recovery,
    )
    gate = BatchGate(loop.run, checkpoint, spark, live.lock)
    return Engine(
        flow,
        sinks,
        session,
        checkpoint,
        spark,
        live,
        gate,
        QueryLifetime(gate, spark, closing.close),
        progress,
        Endpoint(checkpoint, live, progress.last, autoscaler),
        None if placement is None else Caretaker(str(checkpoint.location), live, placement),
        autoscaler,
        closing,
    )


def _placement(flow: Dataflow, checkpoint: Checkpoint, config: Config, session: SparkSession) -> Placement | None:
    """The homes of instances on executors; None if the driver does all the work."""
    executors = Executors.of(session.sparkContext)
    if executors is None:
        return None
    # Names of runs are unique within a checkpoint. So later starts of the query may use the same copies, but no other checkpoint may.
    mark = hashlib.sha256(str(checkpoint.location).encode()).hexdigest()[:12]
    working = None if config.workingDirectory == "none" else f"{config.workingDirectory}/{mark}"

    def shares(op: OperatorId, routing: Routing) -> list[tuple[Share, ...]]:
        return shares_of(checkpoint.latest(), flow.by_id[op], routing)

    pool = None if config.readyExecutors < 0 else PoolClient(Pool.of(executors), str(checkpoint.location), config.readyExecutors)
    return Placement(executors, session, checkpoint.runs, shares, config.fetchFrom == "executors", working, config.logLevel, pool)
