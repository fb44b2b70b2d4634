"""Looking at a program's queries without running them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.compile.dataflow import Dataflow
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
    """Stands for a query in a program that is only looked at: it is over at once, and has done nothing."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.isActive = False
        self.lastProgress = None
        self.recentProgress: list[Any] = []

    def awaitTermination(self, timeout: int | None = None) -> bool:
        return True

    def processAllAvailable(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def exception(self) -> None:
        pass


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


def note(flow: Dataflow, routing: dict[str, Routing], sinks: tuple[str, ...], where: str, name: str | None) -> PlannedQuery:
    _PLANNED[-1].append(Planned(flow, routing, sinks, where, name))
    return PlannedQuery(name)
