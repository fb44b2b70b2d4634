"""Starting a query: everything that can be checked is checked first."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql import SparkSession

from headrace.compile.aggregates import check_mode
from headrace.compile.dataflow import Dataflow, Op, compile_flow
from headrace.config import Config
from headrace.control.elastic import Elastic
from headrace.control.handover import Facts
from headrace.errors import CheckpointError, QueryError
from headrace.graph.window_column import duration_us
from headrace.operators.kernel import OutputMode, store_id
from headrace.operators.windowed import WindowedAggregate
from headrace.runtime import planned
from headrace.runtime.autoscale import Autoscaler
from headrace.runtime.backlog import Backlog
from headrace.runtime.caretaker import Caretaker
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.identity import recognise
from headrace.runtime.interpreter import check_workers
from headrace.runtime.lending import Share
from headrace.runtime.lifetime import end_orphans
from headrace.runtime.loop import BatchLoop
from headrace.runtime.options import CHECKPOINT, Options
from headrace.runtime.placement import Placement, shares_of
from headrace.runtime.query import HeadraceQuery
from headrace.runtime.session import check_session, starting
from headrace.runtime.sinks import Sink
from headrace.spark.executors import Executors
from headrace.spark.gateway import first_line
from headrace.state.layout import Layout
from headrace.state.routing import Routing

if TYPE_CHECKING:
    from headrace.graph.stream import Stream


@dataclass(frozen=True)
class Output:
    """One sink's part of a query: what it is to get, and how it is made."""

    stream: Stream
    mode: OutputMode
    where: str
    format: str
    make_sink: Callable[[], Sink]


@dataclass(frozen=True)
class Manner:
    """How a query is run, whatever it computes."""

    name: str | None
    trigger: dict[str, Any]
    elastic: Elastic | None
    where: str


def start_query(outputs: list[Output], options: Options, manner: Manner) -> HeadraceQuery:
    """Check everything that can be checked, then start Spark's query."""
    name, where = manner.name, manner.where
    session = outputs[0].stream.sparkSession
    check_session(session)
    config = Config.read(_session_options(session), options)
    flow = compile_flow([(o.stream, o.mode, o.where) for o in outputs], config)
    for output, port in zip(outputs, flow.outlets, strict=True):
        for branch in port:
            if branch.source in flow.by_id:
                check_mode(flow.by_id[branch.source].plan, output.mode, output.where)
            elif output.mode is OutputMode.COMPLETE:
                raise QueryError(where=output.where, wanted="append or update, as no aggregate keeps results", found="output mode complete")
    if planned.only_planning():
        routing = first_routing(flow, config, session, {}, manner.elastic)
        query = planned.Planned(flow, routing, tuple(output.format for output in outputs), where, name)
        return cast(HeadraceQuery, planned.note(query, session))
    check_workers(session.sparkContext)
    sinks = tuple(output.make_sink() for output in outputs)
    location = options.get(CHECKPOINT)
    if location is None:
        location = _default_location(session, name, where, sinks)
    end_orphans()
    checkpoint = Checkpoint(location)
    found = recognise(flow, checkpoint, config.operatorChanges)
    flow = found.flow
    checkpoint.open(_stores(flow), found.about)
    checkpoint.lock()
    try:
        # All that can refuse the start comes before the token: where the disk has no locks, it ends a query that runs.
        checkpoint.check_logs()
        first_routing(flow, config, session, checkpoint.routing(), manner.elastic)
        _check_name(session, name, where)
        if not checkpoint.manifests.versions():
            for sink in sinks:
                sink.check_new_query()
        checkpoint.claim()
        checkpoint.check_logs()
        if not checkpoint.drops_state():
            checkpoint.keep_identity()
        # Only the owner may sweep: what no manifest names yet may be the next version of a query that runs.
        checkpoint.sweep()
        for sink in sinks:
            sink.begin()
        return _start(flow, sinks, checkpoint, config, session, manner)
    except BaseException:
        checkpoint.release()
        raise


def _check_name(session: SparkSession, name: str | None, where: str) -> None:
    if name is not None and any(query.name == name for query in session.streams.active):
        found, hint = f"{name!r}, the name of a query that is running", "stop that one first, or give this one another queryName"
        raise QueryError(where=where, wanted="a queryName of its own", found=found, hint=hint)


def first_routing(
    flow: Dataflow, config: Config, session: SparkSession, last: dict[str, Routing], elastic: Elastic | None = None
) -> dict[str, Routing]:
    """Per operator: as many instances as the user says, else as it had when the query last ran, else one per core, within bounds."""
    given = config.instances_by_operator()
    unknown = [name for name in given if name not in flow.by_id]
    if unknown:
        raise QueryError(where="option 'headrace.instancesOf'", wanted=f"operators among {', '.join(flow.by_id)}", found=", ".join(unknown))
    found = {}
    cores = session.sparkContext.defaultParallelism
    usual = cores if elastic is None else max(elastic.min, min(elastic.most(cores), cores))
    for op in flow.ops:
        wanted = given.get(op.id, config.instances)
        if op.id in last:
            found[op.id] = last[op.id].rescaled(wanted) if wanted not in (0, last[op.id].instances) else last[op.id]
        else:
            found[op.id] = Routing.even(wanted or usual)
    return found


def _stores(flow: Dataflow) -> dict[str, tuple[Layout, dict[str, object]]]:
    """What the checkpoint must know of every store."""
    return {
        store_id(op.id, name): (store.layout, {**op.plan.description, "kernel": op.plan.kernels[name]})
        for op in flow.ops
        for name, store in op.plan.operator.stores.items()
    }


def _start(
    flow: Dataflow,
    sinks: tuple[Sink, ...],
    checkpoint: Checkpoint,
    config: Config,
    session: SparkSession,
    manner: Manner,
) -> HeadraceQuery:
    routing = first_routing(flow, config, session, checkpoint.routing(), manner.elastic)
    placement = _placement(flow, checkpoint, config, session)
    facts = {op.id: _facts(op) for op in flow.ops}
    elastic = LiveRouting(checkpoint, routing, threading.Lock(), placement, facts, config.handover)
    holder: list[HeadraceQuery] = []
    streaming = flow.streaming
    loop = BatchLoop(
        flow,
        sinks,
        checkpoint,
        config,
        elastic,
        lambda: holder[0]._execution(),
        lambda p: holder[0]._on_progress(p),
        Backlog(streaming, checkpoint.location, lambda: holder[0]._source_offsets()),
        lambda: holder[0]._life.is_active(),
        shuffles=manner.elastic is not None,
    )
    caretaker = None if placement is None else Caretaker(str(checkpoint.location), elastic, placement, config.readyExecutors)
    cores = session.sparkContext.defaultParallelism
    autoscaler = None if manner.elastic is None else Autoscaler(manner.elastic.on(cores), elastic)
    query = HeadraceQuery(loop, session, caretaker, autoscaler, _interval_s(session, manner))
    holder.append(query)
    writer = streaming.writeStream.foreachBatch(loop).option("checkpointLocation", str(checkpoint.location))
    if manner.name:
        writer = writer.queryName(manner.name)
    if manner.trigger:
        writer = writer.trigger(**manner.trigger)
    try:
        with starting(session):
            started = writer.start()
    except Exception as refused:
        raise QueryError(where=manner.where, found=first_line(refused)) from None
    try:
        query._attach(started)
    except BaseException as failure:
        # Nobody would have a handle to stop it by.
        query._life.stop_now()
        if isinstance(failure, OSError):
            hint = "free the place or the descriptors that it needs, and start again; the query was stopped"
            wanted = "to open the control endpoint"
            raise CheckpointError(where=str(checkpoint.location), wanted=wanted, found=str(failure), hint=hint) from None
        raise
    return query


def _interval_s(session: SparkSession, manner: Manner) -> float:
    """At which interval the trigger lets batches begin; 0: one after the other."""
    interval = manner.trigger.get("processingTime")
    return 0.0 if interval is None else duration_us(session, str(interval), manner.where) / 1e6


def _facts(op: Op) -> Facts:
    """What the choice of a hand-over protocol depends on."""
    kernel = op.plan.operator
    at_once = kernel.emits_at_once(op.mode)
    if not isinstance(kernel, WindowedAggregate) or kernel.window.is_instant or op.mode is OutputMode.COMPLETE:
        return Facts(None, at_once)
    window = kernel.window
    return Facts((window.size_us, window.advance_us, window.offset_us), at_once)


def _placement(flow: Dataflow, checkpoint: Checkpoint, config: Config, session: SparkSession) -> Placement | None:
    """Homes, where there are executors to live on."""
    executors = Executors.of(session.sparkContext)
    if executors is None:
        return None
    # Runs are named once and for all, so queries that follow one another on a checkpoint may share copies, and no others may.
    mark = hashlib.sha256(str(checkpoint.location).encode()).hexdigest()[:12]
    working = None if config.workingDirectory == "none" else f"{config.workingDirectory}/{mark}"

    def shares(op: str, routing: Routing) -> list[tuple[Share, ...]]:
        return shares_of(checkpoint.latest(), flow.by_id[op], routing)

    return Placement(executors, session, checkpoint.runs, shares, config.fetchFrom == "executors", working)


def _session_options(session: Any) -> dict[str, str]:
    return {k: v for k, v in session.conf.getAll.items() if k.lower().startswith("headrace.")} if hasattr(session.conf, "getAll") else {}


def _default_location(session: Any, name: str | None, where: str, sinks: tuple[Sink, ...]) -> str:
    base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    if base:
        return f"{base}/{name}" if name else tempfile.mkdtemp(dir=base)
    if all(sink.request.format.lower() in ("memory", "console", "noop") and sink.request.foreach_batch is None for sink in sinks):
        return tempfile.mkdtemp(prefix="headrace-")
    raise QueryError(
        where=where, wanted="a place for the query's state and offsets", found="none", hint="give option('checkpointLocation', ...)"
    )
