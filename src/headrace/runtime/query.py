"""The handle of a running query: Spark's StreamingQuery, and what only explicit state can give."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.compile.aggregates import check_mode
from headrace.compile.catalyst import first_line
from headrace.compile.dataflow import Dataflow, compile_flow
from headrace.compile.explain import rendered
from headrace.config import Config
from headrace.errors import HeadraceError, QueryError
from headrace.operators.kernel import OutputMode
from headrace.runtime import planned
from headrace.runtime.backlog import Backlog
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.loop import BatchLoop, Stopping, store_id
from headrace.runtime.progress import BatchProgress
from headrace.runtime.session import check_session
from headrace.runtime.sinks import Sink
from headrace.runtime.state_frame import state_frame
from headrace.state.layout import Layout

if TYPE_CHECKING:
    from headrace.graph.stream import Stream

RECENT = 100
LEASES = 16
_LEASED: deque[Path] = deque()


class Progress(dict[str, Any]):
    """Spark's progress as a dict, with Headrace's own under ``headrace``. Fields are readable as attributes, as Spark's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def json(self) -> str:
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        return json.dumps(self, indent=2)


class HeadraceQuery:
    """A running query."""

    def __init__(self, loop: BatchLoop, session: SparkSession) -> None:
        self._loop = loop
        self._session = session
        self._started = threading.Event()
        self._query: StreamingQuery | None = None
        self._ours: deque[BatchProgress] = deque(maxlen=RECENT)

    def _attach(self, query: StreamingQuery) -> None:
        self._query = query
        self._started.set()
        threading.Thread(target=self._wait_and_release, name="headrace-end-of-query", daemon=True).start()

    def _wait_and_release(self) -> None:
        """However the query ends, and whether or not anybody waits for it, its checkpoint is free then."""
        # Why it ended is for those who ask; here also a JVM that is gone is just an end.
        with contextlib.suppress(Exception):
            self._spark.awaitTermination()
        self._loop.checkpoint.release()

    @property
    def _spark(self) -> StreamingQuery:
        assert self._query is not None
        return self._query

    def _executed_plan(self) -> Any:
        self._started.wait(60)
        return self._spark._jsq.streamingQuery().lastExecution().executedPlan()

    @property
    def id(self) -> str:
        return str(self._spark.id)

    @property
    def runId(self) -> str:
        return str(self._spark.runId)

    @property
    def name(self) -> str | None:
        return self._spark.name

    @property
    def isActive(self) -> bool:
        active = bool(self._spark.isActive)
        if not active:
            self._loop.checkpoint.release()
        return active

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._spark.status)

    @property
    def lastProgress(self) -> Progress | None:
        if not self._ours:
            return None
        ours, spark = self._ours[-1], self._spark.lastProgress
        # Spark reports a batch a little after it has ended; until then Headrace's own half is all there is.
        return self._merged(ours, json.loads(spark.json) if spark is not None and spark["batchId"] == ours.version else None)

    @property
    def recentProgress(self) -> list[Progress]:
        """Spark's progress of the batches that ran, each with Headrace's own."""
        spark = {int(p["batchId"]): json.loads(p.json) for p in self._spark.recentProgress}
        return [self._merged(ours, spark.get(ours.version)) for ours in list(self._ours)]

    def _merged(self, ours: BatchProgress, spark: dict[str, Any] | None) -> Progress:
        base = Progress(spark or {"id": self.id, "runId": self.runId, "name": self.name, "batchId": ours.version})
        base["stateOperators"] = ours.operators()
        if ours.event_time():
            base["eventTime"] = {**base.get("eventTime", {}), **ours.event_time()}
        base["headrace"] = ours.headrace() | {"latencyMs": ours.latency(base.get("eventTime", {}))}
        if ours.backlog["rows"] is None:
            base["headrace"]["backlog"] = {**ours.backlog, "rows": _kafka_backlog(base)}
        return base

    def processAllAvailable(self) -> None:
        self._guard(self._spark.processAllAvailable)

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        ended: bool | None = self._guard(lambda: self._spark.awaitTermination(timeout))
        return ended if timeout is None else not self.isActive

    def stop(self) -> None:
        """Let the batch that runs come to its end, then stop."""
        self._loop.stopping.set()
        with self._loop.lock:
            pass
        self._spark.stop()
        self._loop.checkpoint.release()

    def exception(self) -> Exception | None:
        """Why the query ended, if it failed."""
        if self._loop.error is not None:
            return self._loop.error
        found = self._spark.exception()
        return None if found is None or str(Stopping()) in str(found) else found

    def explain(self, extended: bool = False, mode: str | None = None, rate: float = 10_000.0, nodes: int | None = None) -> None:
        """Print the plan: what runs where, how rows are routed.

        ``mode="cost"`` compares the strategies for a rate (rows a second) and a number of nodes; ``"dot"`` and ``"svg"`` draw the graph.
        """
        loop = self._loop
        names = [sink.request.format for sink in loop.sinks]
        print(rendered(loop.flow, loop.instances, names, [sink.guarantee for sink in loop.sinks], mode, rate, nodes))
        if extended:
            self._spark.explain(extended)

    def state(self, operator: str | None = None, version: int | None = None) -> DataFrame:
        """The operator's state as a DataFrame, at the newest or any kept version. It stays readable, and so do
        DataFrames made from it, until 16 more were asked for, the process ends or an hour has passed."""
        stores = {store_id(op.id, name): (op, name) for op in self._loop.flow.ops for name in op.plan.operator.stores}
        if operator is None and len(stores) == 1:
            operator = next(iter(stores))
        if operator not in stores:
            raise QueryError(where="state", wanted=f"an operator's state: {', '.join(stores)}", found=repr(operator))
        op, store = stores[operator]
        checkpoint = self._loop.checkpoint
        kept = checkpoint.manifests.versions()
        if not kept and version is None:
            raise QueryError("there is no state yet", where="state", found="no finished batch", hint="call processAllAvailable() first")
        chosen = kept[-1] if version is None else version
        lease = checkpoint.lease(chosen)
        try:
            kernel, reader = op.plan.operator.stores[store], op.plan.readers[store]
            frame = state_frame(self._session, checkpoint, operator, kernel, reader, chosen, op.hold_ms)
        except HeadraceError:
            lease.unlink(missing_ok=True)
            raise
        # DataFrames made from this one read the same files, and nobody can tell when the last of them is gone.
        _LEASED.append(lease)
        while len(_LEASED) > LEASES:
            _LEASED.popleft().unlink(missing_ok=True)
        return frame

    def _guard(self, call: Callable[[], Any]) -> Any:
        """Call Spark's handle; an error of ours comes out as itself, and a query that was stopped has not failed."""
        result = None
        try:
            result = call()
        except StreamingQueryException as failed:
            if self._loop.error is None and Stopping.__name__ not in str(failed):
                raise
        if not self.isActive and self._loop.error is not None:
            raise self._loop.error from None
        return result


@dataclass(frozen=True)
class Output:
    """One sink's part of a query: what it is to get, and how it is made."""

    stream: Stream
    mode: OutputMode
    where: str
    format: str
    make_sink: Callable[[], Sink]


def start_query(outputs: list[Output], options: dict[str, str], name: str | None, trigger: dict[str, Any], where: str) -> HeadraceQuery:
    """Check everything that can be checked, then start Spark's query."""
    session = outputs[0].stream.sparkSession
    check_session(session)
    config = Config.read(_session_options(session), options)
    flow = compile_flow([(o.stream, o.mode, o.where) for o in outputs], config)
    for output, port in zip(outputs, flow.outlets, strict=True):
        for branch in port:
            if branch.source in flow.by_id:
                check_mode(flow.by_id[branch.source].plan, output.mode, output.where)
    if planned.only_planning():
        formats = tuple(output.format for output in outputs)
        return cast(HeadraceQuery, planned.note(flow, instances_of(flow, config, session), formats, where, name))
    sinks = tuple(output.make_sink() for output in outputs)
    location = options.get("checkpointLocation") or _default_location(session, name, where, sinks)
    checkpoint = Checkpoint(location)
    checkpoint.open(_stores(flow))
    checkpoint.claim()
    try:
        # Only the owner may sweep: what no manifest names yet may be the next version of a query that runs.
        checkpoint.sweep()
        if not checkpoint.manifests.versions():
            for sink in sinks:
                sink.check_new_query()
        return _start(flow, sinks, checkpoint, config, session, name, trigger, where)
    except BaseException:
        checkpoint.release()
        raise


def instances_of(flow: Dataflow, config: Config, session: SparkSession) -> dict[str, int]:
    """Per operator: as the user says, or one per core."""
    given = config.instances_by_operator()
    unknown = [name for name in given if name not in flow.by_id]
    if unknown:
        raise QueryError(where="option 'headrace.instancesOf'", wanted=f"operators among {', '.join(flow.by_id)}", found=", ".join(unknown))
    default = config.instances or session.sparkContext.defaultParallelism
    return {op.id: given.get(op.id, default) for op in flow.ops}


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
    name: str | None,
    trigger: dict[str, Any],
    where: str,
) -> HeadraceQuery:
    instances = instances_of(flow, config, session)
    holder: list[HeadraceQuery] = []
    streaming = flow.streaming
    loop = BatchLoop(
        flow,
        sinks,
        checkpoint,
        config,
        instances,
        lambda: holder[0]._executed_plan(),
        lambda p: holder[0]._ours.append(p),
        Backlog(streaming, checkpoint.location),
        lambda: holder[0].isActive,
        str(session.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")),
    )
    query = HeadraceQuery(loop, session)
    holder.append(query)
    writer = streaming.writeStream.foreachBatch(loop).option("checkpointLocation", str(checkpoint.location))
    if name:
        writer = writer.queryName(name)
    if trigger:
        writer = writer.trigger(**trigger)
    try:
        started = writer.start()
    except Exception as refused:
        raise QueryError(where=where, found=first_line(refused)) from None
    query._attach(started)
    return query


def _session_options(session: Any) -> dict[str, str]:
    return {k: v for k, v in session.conf.getAll.items() if k.startswith("headrace.")} if hasattr(session.conf, "getAll") else {}


def _default_location(session: Any, name: str | None, where: str, sinks: tuple[Sink, ...]) -> str:
    base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    if base:
        return f"{base}/{name}" if name else tempfile.mkdtemp(dir=base)
    if all(sink.request.format.lower() in ("memory", "console", "noop") and sink.request.foreach_batch is None for sink in sinks):
        return tempfile.mkdtemp(prefix="headrace-")
    raise QueryError(
        where=where, wanted="a place for the query's state and offsets", found="none", hint="give option('checkpointLocation', ...)"
    )


def _kafka_backlog(progress: dict[str, Any]) -> int | None:
    """Rows that the source has and the batch left, where Spark's progress has both offsets by topic and partition."""
    total: int | None = None
    for source in progress.get("sources", []):
        latest, end = source.get("latestOffset"), source.get("endOffset")
        if isinstance(latest, dict) and isinstance(end, dict):
            try:
                total = (total or 0) + sum(int(latest[t][p]) - int(end[t][p]) for t in latest for p in latest[t])
            except (KeyError, TypeError, ValueError):
                continue
    return total
