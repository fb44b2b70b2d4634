"""Plans of a program's queries, without running them; for ``headrace plan``."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from headrace.api.query import HeadraceQuery, Progress
from headrace.api.replacement import Replacement
from headrace.api.replanning import Written
from headrace.compile.dataflow import Dataflow
from headrace.compile.explain import rendered
from headrace.guarantees import Safety
from headrace.ids import OperatorId
from headrace.runtime.options import Options
from headrace.runtime.start import Output, first_routing
from headrace.runtime.state_frame import store_named
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Planned:
    """A query that was built but not run."""

    flow: Dataflow
    routing: dict[OperatorId, Routing]
    sinks: tuple[str, ...]
    where: str
    name: str | None
    safety: Safety
    written: Written
    """What was asked for."""
    outputs: tuple[Output, ...] = ()
    """What would have been written: rows and output mode of each sink."""
    options: Options = field(default_factory=Options)
    """The options of the query."""


_PLANNED: ContextVar[list[Planned] | None] = ContextVar("headrace-planned", default=None)


@contextlib.contextmanager
def planning() -> Iterator[list[Planned]]:
    """Inside the context, queries are not started but added to the list that it yields."""
    noted: list[Planned] = []
    token = _PLANNED.set(noted)
    try:
        yield noted
    finally:
        _PLANNED.reset(token)


def is_on() -> bool:
    """True inside ``planning()``."""
    return _PLANNED.get() is not None


def note(written: Written) -> PlannedQuery:
    """Add a query to the list of ``planning()`` instead of starting it."""
    plan = written.plan
    noted = _PLANNED.get()
    assert noted is not None
    routing = first_routing(plan.flow, plan.config, plan.session, {}, plan.run.elastic)
    formats = tuple(output.format for output in plan.outputs)
    planned = Planned(plan.flow, routing, formats, plan.run.where, plan.run.name, plan.config.safety, written, plan.outputs, plan.options)
    noted.append(planned)
    return PlannedQuery(planned)


class PlannedQuery(HeadraceQuery):
    """The handle of a query that was planned but not started. It has ended at once, without processing anything.

    It has all methods of a query, so that the program goes on to its next query: state without rows, no decisions, no progress.
    """

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self._id, self._ui = str(uuid.uuid4()), None

    @property
    def id(self) -> str:
        return self._id

    @property
    def runId(self) -> str:
        return self._id

    @property
    def name(self) -> str | None:
        return self._planned.name

    @property
    def isActive(self) -> bool:
        return False

    @property
    def status(self) -> dict[str, Any]:
        return {"message": "planned, not started", "isDataAvailable": False, "isTriggerActive": False}

    @property
    def lastProgress(self) -> None:
        return None

    @property
    def recentProgress(self) -> list[Progress]:
        return []

    def awaitTermination(self, timeout: float | None = None) -> bool:
        return True

    def exception(self) -> None:
        return None

    def explain(self, extended: bool = False, mode: str | None = None, rate: float = 10_000.0, nodes: int | None = None) -> None:
        plan = self._planned
        sinks = [f"to {sink}" for sink in plan.sinks]
        print(rendered(plan.flow, plan.routing, list(plan.sinks), sinks, mode, rate, nodes, safety=plan.safety))

    def state(self, operator: str | None = None, version: int | None = None) -> DataFrame:
        store, op = store_named(self._planned.flow, operator)
        reader = op.plan.readers[store.name]
        return reader.finish(self._planned.flow.session.createDataFrame([], reader.schema))

    def routing(self) -> dict[str, Routing]:
        return dict(self._planned.routing.items())

    def gaps(self) -> tuple[()]:
        return ()

    def decisions(self) -> tuple[()]:
        return ()

    def processAllAvailable(self) -> None:
        """Return at once: there is nothing to wait for."""

    def stop(self) -> None:
        """Do nothing: the query does not run."""

    def replace(self, *new: Any, **more: Any) -> Replacement:
        """Do nothing: the query does not run."""
        return Replacement(dry_run=True)

    def rescale(self, *request: Any, **more: Any) -> None:
        """Do nothing: the query does not run."""

    def rebalance(self, *request: Any, **more: Any) -> None:
        """Do nothing: the query does not run."""

    def move(self, *request: Any, **more: Any) -> None:
        """Do nothing: the query does not run."""

    def spread(self, *request: Any, **more: Any) -> None:
        """Do nothing: the query does not run."""

    def elastic_resume(self, *request: Any, **more: Any) -> None:
        """Do nothing: the query does not run."""
