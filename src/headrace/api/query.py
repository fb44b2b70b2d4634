"""The handle of a running query: like Spark's StreamingQuery, with methods for state and routing."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from headrace.api import notebook, uncaught
from headrace.api.failed import as_sparks
from headrace.api.missing import Helpful
from headrace.api.origin import user_line
from headrace.api.replacement import Replacement, replacement
from headrace.api.replanning import Written
from headrace.compile.explain import rendered
from headrace.control.governor import Entry
from headrace.errors import HeadraceError, MissingError, QueryError
from headrace.ids import NO_VERSION, Version
from headrace.runtime.autoscale import decisions_of, required_autoscaler
from headrace.runtime.changes import ACCEPT, BACKFILL, Policy
from headrace.runtime.elastic import Slots
from headrace.runtime.engine import Engine
from headrace.runtime.replacing import NotReplacedError, preview, replace_plan
from headrace.runtime.state_frame import state_frame, store_named
from headrace.state.durable import DurableStore
from headrace.state.gaps import Gap
from headrace.state.routing import Routing

LEASES = 16
OBSERVED = "observedMetrics"
_LEASED: deque[tuple[DurableStore, str]] = deque()


class Progress(dict[str, Any]):
    """The progress of one batch: Spark's progress as a dict, with Headrace's own fields under ``headrace``.

    Fields can also be read as attributes, as Spark's can: ``query.lastProgress.sources[0].numInputRows``. What ``observe`` has measured
    are rows, as Spark's are: ``query.lastProgress.observedMetrics["totals"].asDict()``. An unknown field raises ``MissingError``.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__({name: _rows(value) if name == OBSERVED else _readable(value) for name, value in fields.items()})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            if name.startswith("_"):
                raise AttributeError(name) from None
            raise MissingError(where="progress", wanted=f"a field: {', '.join(self)}", found=repr(name)) from None

    @property
    def json(self) -> str:
        """The progress as JSON text in one line."""
        return json.dumps(self._plain())

    @property
    def prettyJson(self) -> str:
        """The progress as indented JSON text."""
        return json.dumps(self._plain(), indent=2)

    def _plain(self) -> dict[str, Any]:
        """The same with rows as objects of JSON."""
        return self | ({OBSERVED: {name: row.asDict() for name, row in self[OBSERVED].items()}} if OBSERVED in self else {})


def _rows(measured: Mapping[str, Mapping[str, Any]]) -> dict[str, Row]:
    return {name: Row(*values)(*values.values()) for name, values in measured.items()}


def _readable(value: Any) -> Any:
    """A field of a progress. Parts of it can be read as attributes too."""
    if isinstance(value, dict):
        return Progress(value)
    return [_readable(each) for each in value] if isinstance(value, list) else value


class HeadraceQuery(Helpful):
    """The handle of a query; ``writeStream...start()`` and ``hr.start`` return it.

    It has the methods of Spark's ``StreamingQuery``. Others read state (``state``), change the routing (``rescale``, ``rebalance``,
    ``move``, ``spread``) and show what the policy has done (``decisions``).
    """

    _is = "a query"

    def __init__(self, engine: Engine, written: Written, ui: str | None = None) -> None:
        self._engine, self._written, self._ui = engine, written, ui
        uncaught.install()
        self._replacing = threading.RLock()
        """Held while another plan takes the place of this one."""
        self._is_replacing = False
        self._stop_wanted = False

    @property
    def ui(self) -> str | None:
        """The URL of the monitor's page about this query, with the token that opens it; None without (``headrace.ui``)."""
        return self._ui

    @property
    def _spark(self) -> StreamingQuery:
        return self._engine.spark.handle

    @property
    def id(self) -> str:
        """The id of the query, which it keeps over restarts."""
        return str(self._spark.id)

    @property
    def runId(self) -> str:
        """The id of this start of the query."""
        return str(self._spark.runId)

    @property
    def name(self) -> str | None:
        """The name given with ``queryName``, or None."""
        return self._spark.name

    @property
    def isActive(self) -> bool:
        """True while the query runs: it was not stopped, has not failed, and has not come to its end."""
        return self._is_replacing or not self._engine.lifetime.is_over()

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status: ``message``, ``isDataAvailable`` and ``isTriggerActive``."""
        return dict(self._spark.status)

    @property
    def lastProgress(self) -> Progress | None:
        """The progress of the last batch that ran, or None if there was none yet."""
        last = self._engine.progress.last()
        return None if last is None else Progress(last)

    @property
    def recentProgress(self) -> list[Progress]:
        """The progress of the last batches, oldest first. Spark keeps 100 of them (``spark.sql.streaming.numRecentProgressUpdates``)."""
        return [Progress(each) for each in self._engine.progress.recent()]

    @property
    def metrics_url(self) -> str | None:
        """The URL at which this program serves the query's metrics for Prometheus; None without ``headrace.metricsPort``."""
        return None if self._engine.metrics is None else self._engine.metrics.server.url

    def processAllAvailable(self) -> None:
        """Wait until all rows that the sources have now are processed. Raises what ``exception()`` returns if the query fails."""
        try:
            self._engine.lifetime.wait(self._spark.processAllAvailable)
        except StreamingQueryException:
            # exception() says the same in Headrace's words.
            self._engine.lifetime.wait()
        self._raise_failure()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until the query ends. Raises what ``exception()`` returns if it failed.

        With ``timeout``, wait at most so many seconds and return True if the query has ended; without, return None.

        A first Ctrl-C lets the current batch finish, stops the query and raises KeyboardInterrupt, which ends the program without a
        traceback. A second one aborts the batch; a restart runs it again.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            engine = self._engine
            left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
            ended = engine.lifetime.wait(timeout=left_s)
            if not ended or not self._has_successor(engine):
                break
        self._raise_failure()
        return None if timeout is None else ended

    def stop(self) -> None:
        """Let the current batch finish and Spark commit it, then stop the query. Called inside a batch, it returns at once."""
        self._stop_wanted = True
        self._engine.lifetime.stop()

    def replace(
        self, *new: Any, backfill: bool | Collection[str] = False, rename: Mapping[str, str] | None = None, dry_run: bool = False
    ) -> Replacement:
        """Run another query in the place of this one, on the same checkpoint, without losing or doubling a row.

        - ``new``: the new streaming DataFrame or stream, for the sink that the query has; or writers that were not started, one for each
          sink (``df.writeStream...``). Trigger, name and options that the writers do not set stay as they are.
        - ``backfill``: compute the state of new operators, and of operators with new columns, from all rows that the sources have had.
          Without it they start empty. A list of operators, ``["daily totals"]``, does so for these too, although they could keep theirs.
        - ``rename``: new names of columns by their old ones, ``{"src": "caller"}``, so that their state is found.
        - ``dry_run``: print and return what would happen, and change nothing.

        The current batch ends, the new plan starts, and its first version is the change. Operators keep their state where name
        (``hr.named``) or input and computation match. Raises an error and leaves the query running if the change is refused, or if the new
        plan does not start. docs/changing-queries.md has the rules.
        """
        where, location = user_line("replace"), self._engine.checkpoint.location
        with self._replacing:
            found = self._take(self._written.replaced(new, location, where), where, backfill=backfill, rename=rename, dry_run=dry_run)
        if dry_run:
            print(found)
        return found

    def _take(
        self, written: Written, where: str, *, backfill: bool | Collection[str], rename: Mapping[str, str] | None, dry_run: bool
    ) -> Replacement:
        """Run another plan in the place of this one."""
        if not self.isActive:
            hint = "start the changed program on the checkpoint, with option('headrace.operatorChanges', 'accept') or 'backfill'"
            raise QueryError(where=where, wanted="a query that runs", found="one that has ended", hint=hint)
        with self._replacing:
            engine, asked = self._engine, frozenset[str]() if isinstance(backfill, bool) else frozenset(backfill)
            policy = Policy(BACKFILL if backfill else ACCEPT, dict(rename or {}), asked, explicit=True)
            location = engine.checkpoint.location
            written = written.at(location, self._written.plan.run)
            if dry_run:
                return replacement(preview(written.plan, engine.checkpoint, policy))
            self._is_replacing = True
            try:
                done = replace_plan(engine, self._written.plan, written.plan, policy)
            except NotReplacedError as refused:
                self._engine = refused.engine or engine
                raise
            else:
                self._engine, self._written = done.engine, written
            finally:
                self._engine.endpoint.replacing = engine.endpoint.replacing
                self._is_replacing = False
                if self._stop_wanted:
                    self._engine.lifetime.stop()
            return replacement(done.changes, done.version, done.pause_ms)

    def _has_successor(self, engine: Engine) -> bool:
        """True if an engine that has ended was replaced. Waits while it is being replaced."""
        with self._replacing:
            return self._engine is not engine

    def exception(self) -> HeadraceError | None:
        """The error that ended the query, or None. ``details`` of a ``BatchFailedError`` has the whole stack trace."""
        return as_sparks(self._engine.gate.failure())

    def _repr_html_(self) -> str:
        failed = self.exception()
        name = self.name or self._engine.checkpoint.name
        return notebook.of_query(name, self.isActive, "" if failed is None else str(failed), self.lastProgress)

    def watch(self, seconds: float = 1.0) -> None:
        """In a notebook: show the query below the cell, and keep it up to date every ``seconds`` while it runs. Returns at once.

        It shows what evaluating the query shows, with the rate and the time of the last batches as small lines. Raises ``QueryError``
        without IPython.
        """
        if not seconds > 0:
            raise QueryError(where=user_line("watch"), wanted="a time above 0 seconds", found=repr(seconds))
        notebook.watch(self, seconds, user_line("watch"))

    def _raise_failure(self) -> None:
        if not self.isActive and (error := self.exception()) is not None:
            raise error

    def explain(self, extended: bool = False, mode: str | None = None, rate: float = 10_000.0, nodes: int | None = None) -> None:
        """Print the plan: what runs in the JVM and in Python, how rows are routed, and where instances run.

        - ``extended``: print Spark's own plans too.
        - ``mode``: None for the plan; ``"cost"`` to compare the strategies of StreamCloud; ``"dot"`` or ``"svg"`` to draw the graph.
        - ``rate``: for ``"cost"``, rows a second.
        - ``nodes``: for ``"cost"``, the number of machines.
        """
        engine = self._engine
        names, guarantees = [sink.request.format for sink in engine.sinks], [sink.guarantee for sink in engine.sinks]
        homes = engine.routing.homes()
        print(rendered(engine.flow, engine.routing.routing, names, guarantees, mode, rate, nodes, homes, engine.safety))
        if extended:
            self._spark.explain(extended)

    def state(self, operator: str | None = None, version: int | None = None) -> DataFrame:
        """The state of an operator as a batch DataFrame, one row per key (and pane, or map key).

        ``operator`` is its id, as ``explain`` prints it; it is not needed if the query has one operator with one state. ``version`` is
        a kept version (Spark's batch id), by default the newest. With ``headrace.checkpointSeconds`` only durable versions are kept, and
        the newest is made durable first. The DataFrame stays readable for an hour, until this process ends, or
        until 16 more were made. Raises ``QueryError`` before the first batch has finished, and ``VersionNotFoundError``.
        """
        store, op = store_named(self._engine.flow, operator)
        checkpoint, checkpointer = self._engine.checkpoint, self._engine.checkpointer
        if version is None and checkpointer is not None:
            checkpointer.take()
        kept = checkpoint.manifests.versions()
        if not kept and version is None:
            raise QueryError("there is no state yet", where="state", found="no finished batch", hint="call processAllAvailable() first")
        chosen = kept[-1] if version is None else Version(version)
        lease = checkpoint.lease(chosen)
        try:
            frame = state_frame(self._engine.session, checkpoint, store, op, chosen)
        except HeadraceError:
            checkpoint.store.delete(lease)
            raise
        # DataFrames derived from this one read the same files, and it is not known when the last of them is gone.
        _LEASED.append((checkpoint.store, lease))
        while len(_LEASED) > LEASES:
            place, key = _LEASED.popleft()
            place.delete(key)
        notebook.show_rows(frame)
        return frame

    def checkpoint(self) -> int:
        """Make the newest version that Spark has committed durable now, and return its number.

        With ``headrace.checkpointSeconds=0``, every version is durable already. Otherwise this does at once what happens every so many
        seconds, for example before a planned stop of executors. From inside a batch, by a function for ``foreachBatch``, it takes none and
        returns the newest durable version. Raises ``QueryError`` before the first batch has finished.
        """
        checkpointer, kept = self._engine.checkpointer, self._engine.checkpoint.manifests.versions()
        durable = checkpointer.take() if checkpointer is not None else kept[-1] if kept else NO_VERSION
        if durable == NO_VERSION:
            hint = "call processAllAvailable() first"
            raise QueryError("there is no state yet", where="checkpoint", found="no finished batch", hint=hint)
        return durable

    def gaps(self) -> tuple[Gap, ...]:
        """State that was lost and skipped under the guarantee ``gap``, oldest first: operator, slots, versions and rows."""
        return tuple(self._engine.checkpoint.gaps.read())

    def rescale(self, *request: str | int, protocol: str | None = None) -> None:
        """Change the number of instances: ``rescale(4)`` of all operators, ``rescale("join", 4)`` of one.

        ``request`` is the number, or an operator's id and the number. The current batch finishes; the next one runs with the new
        number. Slots are assigned to instances by their recent load. ``protocol`` says how state changes hands: ``"state recreation"``,
        ``"window recreation"``, ``"merge"`` or ``"buffering"``; by default as the option ``headrace.handover`` says. Raises ``QueryError``
        for a number, operator or protocol that is not possible.
        """
        match request:
            case (int() as instances,):
                self._engine.routing.rescale(None, instances, protocol)
            case (str() as operator, int() as instances):
                self._engine.routing.rescale(operator, instances, protocol)
            case _:
                raise QueryError(where="rescale", wanted="rescale(instances) or rescale(operator, instances)", found=repr(request))

    def rebalance(self, operator: str | None = None, protocol: str | None = None) -> None:
        """Assign slots to instances anew, so that all have an equal share of the recent load. As few slots as possible move.

        ``operator`` chooses one operator; by default, all. ``protocol`` is that of ``rescale``.
        """
        self._engine.routing.rebalance(operator, protocol)

    def move(self, slots: Slots, to: int, operator: str | None = None, protocol: str | None = None) -> None:
        """Assign ``slots`` to the instance ``to``, from the next batch on.

        Slots are one number, a range, or a list of numbers and pairs: ``move(7, to=1)``, ``move(range(0, 100), to=1)``,
        ``move([(0, 10), 77], to=0)``. A pair with fractions cuts a slot: ``move((7.25, 7.5), to=2)`` moves a quarter of slot 7.
        ``operator`` is needed if the query has several; ``protocol`` is that of ``rescale``.
        """
        self._engine.routing.move(slots, to, operator, protocol)

    def spread(self, slots: Slots, operator: str | None = None) -> None:
        """Distribute the rows of hot ``slots`` over all instances; their owner merges the partial states. ``spread([])`` ends it.

        This works for time windows in append mode. ``rescale`` and ``rebalance`` do it themselves for slots with more load than one
        instance should have. ``operator`` chooses one operator; by default, all. Raises ``QueryError`` for operators that cannot do it.
        """
        self._engine.routing.spread(slots, operator)

    def decommission(self, executor: str) -> tuple[str, ...]:
        """Let ``executor`` go: an executor's id, or a host with all its executors, such as a spot instance that is to be reclaimed.

        Its instances and their state move to other executors first, so nothing is computed again. Then Spark decommissions it (if
        ``spark.decommission.enabled`` is set, else it is killed) and requests another. Returns the ids of the executors that go.
        """
        return self._engine.departures.decommission(executor)

    def decisions(self) -> tuple[Entry, ...]:
        """What the policy of ``elastic(...)`` and load shedding have decided, and why, oldest first. Equal ones in a row are one entry.

        Raises ``QueryError`` if the query was started without ``elastic`` and has no ``hr.shed``.
        """
        shedder = self._engine.shedder
        return notebook.Decisions(decisions_of(self._engine.autoscaler, None if shedder is None else shedder.entries))

    def elastic_resume(self, operator: str | None = None) -> None:
        """Let the policy decide again about operators that were changed by hand; ``operator`` chooses one of them."""
        required_autoscaler(self._engine.autoscaler).resume(operator)

    def routing(self) -> dict[str, Routing]:
        """By operator, which instance owns which slots from the next batch on."""
        return dict(self._engine.routing.routing.items())
