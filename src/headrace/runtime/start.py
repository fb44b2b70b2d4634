"""Starts a query: plans it, checks everything that can be checked, and lets Spark start."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.build import compile_flow
from headrace.compile.dataflow import Dataflow
from headrace.config import Config
from headrace.control.elastic import Elastic
from headrace.errors import CheckpointError, QueryError, SourceError, UnsupportedError
from headrace.graph.nodes import Rows
from headrace.guarantees import Approach, Guarantee, Safety
from headrace.ids import OperatorId, StoreId, Version
from headrace.logs import logger, set_level
from headrace.operators.kernel import OutputMode
from headrace.runtime.backfill import check_changes
from headrace.runtime.changes import Changes, Policy
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.engine import Engine, assemble
from headrace.runtime.identity import recognise
from headrace.runtime.interpreter import check_workers
from headrace.runtime.lifetime import end_orphans
from headrace.runtime.options import CHECKPOINT, Options
from headrace.runtime.safety.sigma import unbounded
from headrace.runtime.session import check_session, starting
from headrace.runtime.shedding import ShedSettings
from headrace.runtime.sinks import EXACTLY_ONCE, Sink
from headrace.runtime.tracing import check_available
from headrace.runtime.watermark import Pace
from headrace.spark.expressions import duration_us
from headrace.spark.gateway import first_line
from headrace.spark.hadoop import check_file_system, for_hadoop, store_settings
from headrace.spark.replayable import nondeterministic_parts, sources_without_restart, static_inputs, unreplayable_sources
from headrace.spark.ticks import with_ticks
from headrace.state.layout import Layout
from headrace.state.requests import Settings
from headrace.state.routing import Routing

_log = logger(__name__)


@dataclass(frozen=True)
class Output:
    """One sink of a query: the rows that it gets, and how to make it."""

    rows: Rows
    mode: OutputMode
    where: str
    format: str
    make_sink: Callable[[Config], Sink]
    weight: float = 1.0
    """How much this sink's results matter when rows must be dropped."""
    frame: DataFrame | None = None
    """The DataFrame of Spark's that the rows were lowered from; None if they were built by methods of ours."""


@dataclass(frozen=True)
class RunOptions:
    """How a query runs: its name, trigger and policy. They do not change what it computes."""

    name: str | None
    trigger: dict[str, Any]
    elastic: Elastic | None
    where: str
    deadline: str | None = None
    """How old rows may be when their results are delivered; None if rows are dropped only to keep up."""
    as_spark: bool = False
    """True for an unmodified program: a watermark takes effect when it does in Spark."""


@dataclass(frozen=True)
class QueryPlan:
    """A query that is compiled and checked, but has no checkpoint yet and does not run."""

    outputs: tuple[Output, ...]
    options: Options
    run: RunOptions
    config: Config
    flow: Dataflow

    @property
    def session(self) -> SparkSession:
        return self.flow.session


def plan_query(outputs: list[Output], options: Options, run: RunOptions) -> QueryPlan:
    """Compile a query. Raises an error if it cannot run."""
    session = outputs[0].rows.session
    check_session(session)
    config = Config.read(_session_options(session), options)
    set_level(config.logLevel)
    flow = compile_flow([(o.rows, o.mode, o.where) for o in outputs], config)
    for output, port in zip(outputs, flow.outlets, strict=True):
        if output.rows.whole is not None and output.mode is not OutputMode.COMPLETE:
            found = f"{output.rows.whole} in output mode {output.mode}"
            raise UnsupportedError("only complete mode has all results at once", where=output.where, found=found)
        for branch in port:
            if (op := flow.producer(branch)) is not None:
                op.plan.check_mode(output.mode, output.where)
            elif output.mode is OutputMode.COMPLETE:
                raise QueryError(where=output.where, wanted="append or update: this output has no aggregate", found="output mode complete")
    if config.safety.approach is Approach.UPSTREAM:
        _check_bounded(flow, run.where)
    if config.traces:
        check_available()
    if (settings := _shedding(flow, outputs, run, _interval_s(session, run))) is not None:
        # Raises an error if the trigger leaves no time.
        _ = settings.budget_s
    if config.safety.at_home and config.safety.replays:
        _check_replayable(flow, config.safety, run.where)
    for each in unreplayable_sources(flow.streaming):
        _log.warning("%s: %s", each, config.safety.without_replay())
    return QueryPlan(tuple(outputs), options, run, config, flow)


def _check_bounded(flow: Dataflow, where: str) -> None:
    """Raise an error if state depends on rows of any age, so that it cannot be computed again from the last ones."""
    refused = unbounded(flow)
    if refused:
        raise UnsupportedError(
            "the approach upstream computes lost state again from the last rows of the sources",
            where=where,
            wanted="operators that forget by event time: time windows, joins and products within a time, duplicates by an event time",
            found="; ".join(refused),
            hint="add withWatermark and a time window, or choose recovery('checkpoint')",
        )


def _check_replayable(flow: Dataflow, safety: Safety, where: str) -> None:
    """Raise an error if lost state could not be computed again, and log what may differ when it is."""
    refused = unreplayable_sources(flow.streaming)
    if refused and not safety.replicas:
        hint = "choose recovery('peer'), so that executors keep copies of the rows, or leave headrace.checkpointSeconds at 0"
        wanted = "sources that give earlier rows again, because state is kept on executors and computed again after a loss"
        raise SourceError(where=where, wanted=wanted, found="; ".join(refused), hint=hint)
    for each in nondeterministic_parts(flow.streaming):
        _log.warning("versions that are computed again after a loss may differ: %s", each)
    for each in static_inputs(flow.streaming):
        _log.info("versions that are computed again after a loss read this again, and differ if it has changed: %s", each)


def start_query(plan: QueryPlan, policy: Policy | None = None, *, was_undone: bool = False) -> Engine:
    """Open or create the checkpoint, become its writer, and start Spark's query.

    ``policy`` says how the query may differ from the one that the checkpoint belongs to; by default the writer's options say it.
    ``was_undone`` says that the last version was taken back, so that sinks may have its results already.
    """
    session, run = plan.session, plan.run
    check_workers(session.sparkContext)
    sinks = tuple(output.make_sink(plan.config) for output in plan.outputs)
    location = plan.options.get(CHECKPOINT)
    if location is None:
        location = _default_location(session, run.name, run.where, sinks)
    end_orphans()
    checkpoint = Checkpoint(
        location, state=plan.config.stateLocation, settings=lambda: settings_of(session, plan.config.storeRequestSeconds)
    )
    check_file_system(session, checkpoint.location)
    found = recognise(plan.flow, checkpoint, policy or Policy(plan.config.operatorChanges))
    flow = found.flow
    check_changes(flow, found.changes, checkpoint, plan.config)
    checkpoint.open(stores_of(flow), found.about)
    for number, sink in enumerate(sinks):
        sink.identify(checkpoint.query_id(), number)
    checkpoint.lock()
    try:
        # All checks come before the token is taken. On a disk without locks, taking it ends a query that still runs.
        checkpoint.check_logs(replays=plan.config.safety.replays)
        _check_continues(flow, checkpoint)
        first_routing(flow, plan.config, session, checkpoint.routing(), run.elastic)
        _check_name(session, run.name, run.where)
        _check_sinks(sinks, checkpoint, plan.config.safety, was_undone)
        checkpoint.claim()
        checkpoint.check_logs(replays=plan.config.safety.replays)
        if not checkpoint.changes_state():
            checkpoint.keep_identity()
        # Only the owner may sweep. Files that no manifest names may belong to the next version of a running query.
        checkpoint.sweep()
        for sink in sinks:
            sink.begin()
        if found.changes.are_there or (policy is not None and policy.explicit):
            # The change is a version of its own, even if no source has new rows.
            checkpoint.spark_log.add_empty()
        return _start(flow, sinks, checkpoint, plan, found.changes)
    except BaseException:
        checkpoint.release()
        raise


def settings_of(session: SparkSession, request_s: float = Settings.request_s) -> Settings:
    """How this session reaches stores behind a network."""
    return Settings(tuple(sorted(store_settings(session).items())), request_s)


def _check_continues(flow: Dataflow, checkpoint: Checkpoint) -> None:
    """Raise an error if a source cannot go on from the offsets in the checkpoint."""
    refused = sources_without_restart(flow.streaming)
    if refused and checkpoint.spark_log.newest("offsets") is not None:
        raise SourceError(
            where=checkpoint.location,
            wanted="sources that go on where the query stopped",
            found="; ".join(refused),
            hint="start with a new checkpointLocation; to restart without loss, write the rows to files or Kafka first",
        )


def _check_sinks(sinks: tuple[Sink, ...], checkpoint: Checkpoint, safety: Safety, was_undone: bool) -> None:
    """Raise an error if a sink has other results than the checkpoint says. Log what a sink cannot promise."""
    newest, delivered = checkpoint.newest_facts(), checkpoint.spark_log.newest("commits")
    latest = None if newest is None else newest.version
    if was_undone or not safety.commits_first:
        # Results leave before their version is committed, so a sink may have those of one more version.
        latest = Version(0 if latest is None else latest + 1)
    for sink in sinks:
        sink.check_follows(latest, None if delivered is None else Version(delivered))
        if safety.guarantee is Guarantee.PRECISE and sink.guarantee != EXACTLY_ONCE:
            _log.info("the %s is %s: if the driver is lost, it may get its last batch again, with the same id", sink.place, sink.guarantee)


def _start(flow: Dataflow, sinks: tuple[Sink, ...], checkpoint: Checkpoint, plan: QueryPlan, changes: Changes) -> Engine:
    session, run = plan.session, plan.run
    routing = first_routing(flow, plan.config, session, checkpoint.routing(), run.elastic)
    elastic = None if run.elastic is None else run.elastic.on(session.sparkContext.defaultParallelism)
    trigger_s = _interval_s(session, run)
    shed = _shedding(flow, plan.outputs, run, trigger_s)
    engine = assemble(flow, sinks, checkpoint, plan.config, routing, elastic, trigger_s, shed, _pace(session, run), changes, run.name)
    writer = streaming_of(flow).writeStream.foreachBatch(engine.gate).option("checkpointLocation", for_hadoop(checkpoint.location))
    if run.name:
        writer = writer.queryName(run.name)
    if run.trigger:
        writer = writer.trigger(**run.trigger)
    try:
        with starting(session):
            started = writer.start()
    except Exception as refused:
        raise QueryError(where=run.where, found=first_line(refused)) from None
    try:
        engine.attach(started)
    except BaseException as failure:
        # The caller gets no handle, so nobody else could stop the query.
        engine.lifetime.stop_now()
        if isinstance(failure, OSError):
            hint = "free disk space or file descriptors, and start the query again; it was stopped"
            wanted = "to open the control endpoint"
            raise CheckpointError(where=checkpoint.location, wanted=wanted, found=str(failure), hint=hint) from None
        raise
    return engine


def streaming_of(flow: Dataflow) -> DataFrame:
    """The streaming DataFrame that Spark runs. It may have a source more than the flow, the last one, so that batches come by the clock."""
    return with_ticks(flow.streaming) if any(op.plan.timing.ticks for op in flow.ops) else flow.streaming


def _shedding(flow: Dataflow, outputs: Sequence[Output], run: RunOptions, trigger_s: float) -> ShedSettings | None:
    """The settings of load shedding; None if no rows may be dropped. Refuses settings that would have no effect."""
    weights = tuple(output.weight for output in outputs)
    if flow.sheds and {"availableNow", "once"} & set(run.trigger):
        # What is there is processed, however long that takes.
        return None
    if flow.sheds:
        deadline_s = None if run.deadline is None else duration_us(flow.session, run.deadline, run.where) / 1e6
        return ShedSettings(weights, deadline_s, trigger_s, run.where)
    found = [*([f"deadline({run.deadline!r})"] if run.deadline is not None else []), *(f"weight({w:g})" for w in weights if w != 1)]
    if found:
        raise QueryError(
            where=run.where,
            wanted="a stream from which rows may be dropped",
            found=f"none, and {', '.join(found)}",
            hint="call hr.shed(stream, max_loss=...) on a stream, or leave out weight and deadline, which have no effect without",
        )
    return None


def first_routing(
    flow: Dataflow, config: Config, session: SparkSession, last: dict[OperatorId, Routing], elastic: Elastic | None = None
) -> dict[OperatorId, Routing]:
    """The routing of each operator at the start of the query.

    The number of instances is the user's, or else that of the last start, or else one per core within the policy's bounds.
    """
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


def _check_name(session: SparkSession, name: str | None, where: str) -> None:
    if name is not None and any(query.name == name for query in session.streams.active):
        found, hint = f"{name!r}, the name of a query that is running", "stop that one first, or give this one another queryName"
        raise QueryError(where=where, wanted="a queryName of its own", found=found, hint=hint)


def stores_of(flow: Dataflow) -> dict[StoreId, tuple[Layout, dict[str, object]]]:
    """By store: its layout and description, which query.json keeps."""
    found: dict[StoreId, tuple[Layout, dict[str, object]]] = {}
    for op in flow.ops:
        kernels = op.plan.stores_as_json()
        for name, store in op.plan.operator.stores.items():
            earlier = [each.to_json() for each in op.earlier.get(name, ())]
            about = {**op.plan.description.shown, "kernel": kernels[name], **({"earlier": earlier} if earlier else {})}
            found[StoreId(op.id, name)] = store.layout, about
    return found


def _pace(session: SparkSession, run: RunOptions) -> Pace:
    """When a watermark that a batch has moved takes effect."""
    if not run.as_spark:
        return Pace.AT_ONCE
    follows = str(session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")).lower() == "true"
    return Pace.AFTER_ROWS if follows and not run.trigger.get("once") else Pace.ONE_BATCH


def _interval_s(session: SparkSession, run: RunOptions) -> float:
    """The trigger interval in seconds; 0 if batches follow one another."""
    interval = run.trigger.get("processingTime")
    return 0.0 if interval is None else duration_us(session, str(interval), run.where) / 1e6


def _session_options(session: Any) -> dict[str, str]:
    return {k: v for k, v in session.conf.getAll.items() if k.lower().startswith("headrace.")} if hasattr(session.conf, "getAll") else {}


def _default_location(session: Any, name: str | None, where: str, sinks: tuple[Sink, ...]) -> str:
    base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    if base:
        return f"{base}/{name or uuid.uuid4()}"
    if all(sink.request.foreach_batch is not None or sink.request.format.lower() in ("memory", "console", "noop") for sink in sinks):
        return tempfile.mkdtemp(prefix="headrace-")
    raise QueryError(
        where=where, wanted="a place for the query's state and offsets", found="none", hint="give option('checkpointLocation', ...)"
    )
