"""Looking at a program's queries without running them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.dataflow import Dataflow
from headrace.compile.explain import rendered
from headrace.runtime.state_frame import store_named
from headrace.state.routing import Routing


@dataclass(frozen=True)
class Planned:
    """A query that was built but not run."""

    flow: Dataflow
    routing: dict[str, Routing]
    sinks: tuple[str, ...]
    where: str
    name: str | None


class PlannedQuery:
    """Stands for a query in a program that is only looked at: it is over at once, and has done nothing.

    It has all that a query has, so that the program goes on to whatever it starts next: state without rows, no decisions, no progress.
    """

    def __init__(self, planned: Planned, session: SparkSession) -> None:
        self._planned, self._session = planned, session
        self.name = planned.name
        self.id = self.runId = str(uuid.uuid4())
        self.isActive = False
        self.status = {"message": "planned, not started", "isDataAvailable": False, "isTriggerActive": False}
        self.lastProgress = None
        self.recentProgress: list[Any] = []

    def awaitTermination(self, timeout: int | None = None) -> bool:
        return True

    def exception(self) -> None:
        pass

    def explain(self, extended: bool = False, mode: str | None = None, rate: float = 10_000.0, nodes: int | None = None) -> None:
        plan = self._planned
        print(rendered(plan.flow, plan.routing, list(plan.sinks), [f"to {sink}" for sink in plan.sinks], mode, rate, nodes))

    def state(self, operator: str | None = None, version: int | None = None) -> DataFrame:
        _, op, store = store_named(self._planned.flow, operator)
        reader = op.plan.readers[store]
        return reader.finish(self._session.createDataFrame([], reader.schema))

    def routing(self) -> dict[str, Routing]:
        return dict(self._planned.routing)

    def decisions(self) -> tuple[()]:
        return ()

    def _nothing(self, *request: Any, **more: Any) -> None:
        """There is nothing to wait for, to stop or to change."""

    processAllAvailable = stop = rescale = rebalance = move = spread = elastic_resume = _nothing


_PLANNED: list[list[Planned]] = []


@contextlib.contextmanager
def planning() -> Iterator[list[Planned]]:
    """Inside, queries that are started are noted in the list instead."""
    _PLANNED.append([])
    try:
        yield _PLANNED[-1]
    finally:
        _PLANNED.pop()


def only_planning() -> bool:
    return bool(_PLANNED)


def note(query: Planned, session: SparkSession) -> PlannedQuery:
    _PLANNED[-1].append(query)
    return PlannedQuery(query, session)
