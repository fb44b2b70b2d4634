"""The handle of a running query: Spark's StreamingQuery, and what only explicit state can give."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from headrace.api.missing import Helpful
from headrace.compile.explain import rendered
from headrace.control.governor import Entry
from headrace.errors import HeadraceError, MissingError, QueryError
from headrace.ids import Version
from headrace.runtime import failures
from headrace.runtime.autoscale import of_query
from headrace.runtime.elastic import Slots
from headrace.runtime.engine import Engine
from headrace.runtime.state_frame import state_frame, store_named
from headrace.spark.gateway import GONE
from headrace.state.routing import Routing

LEASES = 16
_LEASED: deque[Path] = deque()


class Progress(dict[str, Any]):
    """Spark's progress as a dict, with Headrace's own under ``headrace``. Fields are readable as attributes, as Spark's are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            if name.startswith("_"):
                raise AttributeError(name) from None
            raise MissingError(where="progress", wanted=f"a field: {', '.join(self)}", found=repr(name)) from None

    @property
    def json(self) -> str:
        return json.dumps(self)

    @property
    def prettyJson(self) -> str:
        return json.dumps(self, indent=2)


class HeadraceQuery(Helpful):
    """A running query."""

    _is = "a query"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def _spark(self) -> StreamingQuery:
        return self._engine.spark.handle

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
        return not self._engine.lifetime.is_over()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._spark.status)

    @property
    def lastProgress(self) -> Progress | None:
        last = self._engine.progress.last()
        return None if last is None else Progress(last)

    @property
    def recentProgress(self) -> list[Progress]:
        """Spark's progress of the batches that ran, each with Headrace's own."""
        return [Progress(each) for each in self._engine.progress.recent()]

    def processAllAvailable(self) -> None:
        """Wait until all that the sources have now is processed; if the query fails meanwhile, raise what ``exception()`` gives."""
        try:
            self._engine.lifetime.wait(self._spark.processAllAvailable)
        except StreamingQueryException:
            # It says no more than exception() does.
            self._engine.lifetime.wait()
        self._raise_failure()

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the end of the query; if it failed, raise what ``exception()`` gives. With a timeout in seconds: whether it has ended.

        Interrupted from the keyboard, it lets the batch that runs come to its end, stops the query and raises KeyboardInterrupt;
        interrupted once more, it breaks the batch off, and a restart runs it again.
        """
        ended = self._engine.lifetime.wait(timeout=timeout)
        self._raise_failure()
        return None if timeout is None else ended

    def stop(self) -> None:
        """Let the batch that runs come to its end, let Spark note that, then stop. Called inside a batch, it returns at once."""
        self._engine.lifetime.stop()

    def exception(self) -> HeadraceError | None:
        """Why the query ended, if it failed: in a line or two, with the whole text in ``details`` where it was not Headrace."""
        gate, spark = self._engine.gate, self._engine.spark
        if gate.error is not None or spark.is_active():
            return gate.error
        try:
            if (found := spark.failure()) is not None:
                gate.error = failures.of_query(found, self._engine.checkpoint.location)
        except GONE as gone:
            gate.error = failures.of_gone(gone)
        return gate.error

    def _raise_failure(self) -> None:
        if not self.isActive and (error := self.exception()) is not None:
            raise error

    def explain(self, extended: bool = False, mode: str | None = None, rate: float = 10_000.0, nodes: int | None = None) -> None:
        """Print the plan: what runs where, how rows are routed.

        ``mode="cost"`` compares the strategies for a rate (rows a second) and a number of nodes; ``"dot"`` and ``"svg"`` draw the graph.
        """
        engine = self._engine
        names, guarantees = [sink.request.format for sink in engine.sinks], [sink.guarantee for sink in engine.sinks]
        print(rendered(engine.flow, engine.routing.routing, names, guarantees, mode, rate, nodes, engine.routing.homes()))
        if extended:
            self._spark.explain(extended)

    def state(self, operator: str | None = None, version: int | None = None) -> DataFrame:
        """The operator's state as a DataFrame, at the newest or any kept version. It stays readable, and so do
        DataFrames made from it, until 16 more were asked for, the process ends or an hour has passed."""
        store, op = store_named(self._engine.flow, operator)
        checkpoint = self._engine.checkpoint
        kept = checkpoint.manifests.versions()
        if not kept and version is None:
            raise QueryError("there is no state yet", where="state", found="no finished batch", hint="call processAllAvailable() first")
        chosen = kept[-1] if version is None else Version(version)
        lease = checkpoint.lease(chosen)
        try:
            frame = state_frame(self._engine.session, checkpoint, store, op, chosen)
        except HeadraceError:
            lease.unlink(missing_ok=True)
            raise
        # DataFrames made from this one read the same files, and nobody can tell when the last of them is gone.
        _LEASED.append(lease)
        while len(_LEASED) > LEASES:
            _LEASED.popleft().unlink(missing_ok=True)
        return frame

    def rescale(self, *request: str | int, protocol: str | None = None) -> None:
        """Give the query, or one of its operators, another number of instances: ``rescale(4)``, ``rescale("join", 4)``.

        The batch that runs comes to its end; the next one runs on as many. Slots go to new owners by the work seen in them lately, and
        their state by the protocol: ``"state recreation"``, ``"window recreation"``, ``"merge"`` or ``"buffering"``; if none is named,
        by what the option ``headrace.handover`` says.
        """
        match request:
            case (int() as instances,):
                self._engine.routing.rescale(None, instances, protocol)
            case (str() as operator, int() as instances):
                self._engine.routing.rescale(operator, instances, protocol)
            case _:
                raise QueryError(where="rescale", wanted="rescale(instances) or rescale(operator, instances)", found=repr(request))

    def rebalance(self, operator: str | None = None, protocol: str | None = None) -> None:
        """Deal the slots out anew, so that all instances get an even part of the work seen lately; moves as few as it can."""
        self._engine.routing.rebalance(operator, protocol)

    def move(self, slots: Slots, to: int, operator: str | None = None, protocol: str | None = None) -> None:
        """Give slots to an instance: ``move(7, to=1)``, ``move(range(0, 100), to=1)``, ``move([(0, 10), 77], to=0)``;
        ``move((7.25, 7.5), to=2)`` cuts slot 7 and gives away a quarter of it."""
        self._engine.routing.move(slots, to, operator, protocol)

    def spread(self, slots: Slots, operator: str | None = None) -> None:
        """Deal the rows of hot slots out over all instances, whoever owns them; the owner merges what each keeps. ``spread([])`` ends it.

        For time windows in append mode; ``rescale`` and ``rebalance`` do it by themselves for slots with more than an instance's share.
        """
        self._engine.routing.spread(slots, operator)

    def decisions(self) -> tuple[Entry, ...]:
        """What the policy of ``elastic(...)`` has decided so far and why, oldest first; the same one in a row is one entry."""
        return of_query(self._engine.autoscaler).decisions.entries

    def elastic_resume(self, operator: str | None = None) -> None:
        """Let the policy decide again about operators that were changed by hand, or about one of them."""
        of_query(self._engine.autoscaler).resume(operator)

    def routing(self) -> dict[str, Routing]:
        """Per operator, which instance owns which slots from the next batch on."""
        return dict(self._engine.routing.routing.items())
