"""Changing the parallelism of a running query: rescale, move, rebalance.

State lies in runs sorted by slot, so an instance that gets slots opens the runs that hold them, and one that loses slots does not look at
them any more (StreamCloud's state recreation, without shipping). What changes is the routing, between two batches, under the loop's
lock: a row is routed either by the old one or by the new one. A version that fails is run again, by the routing that holds then.

Where instances have homes on executors, what they will need there is fetched before that, while batches go on by the old routing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.errors import QueryError
from headrace.ids import SLOTS
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.placement import Homes, Placement
from headrace.runtime.reports import InstanceReport
from headrace.state.routing import Routing, Weights
from headrace.state.slots import SlotRange

MEMORY = 0.8
"""What the work seen so far still counts for after another batch: about the last five batches decide."""

INSTANCES_MAX = 4096

Slots = int | range | SlotRange | list[int | range | SlotRange]


@dataclass(frozen=True)
class Change:
    """A change of one operator's routing."""

    operator: str
    epoch: int
    instances_before: int
    instances: int
    slots_moved: int
    protocol: str
    why: str
    waited_ms: float
    """From the request until the batch that ran then was over."""
    homes_moved: int = 0
    fetched_bytes: int = 0
    """State that was brought to new homes ahead of the change."""
    fetch_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "operator": self.operator,
            "epoch": self.epoch,
            "instancesBefore": self.instances_before,
            "instances": self.instances,
            "slotsMoved": self.slots_moved,
            "protocol": self.protocol,
            "why": self.why,
            "waitedMs": round(self.waited_ms, 1),
            "homesMoved": self.homes_moved,
            "bytesFetched": self.fetched_bytes,
            "fetchMs": round(self.fetch_ms, 1),
        }


@dataclass
class Elastic:
    """The routing of a query's operators, and the work seen in each slot."""

    checkpoint: Checkpoint
    routing: dict[str, Routing]
    """Read by the loop at the start of a batch; changed under its lock only."""
    lock: threading.Lock
    placement: Placement | None = None
    """Where instances live; None where the driver does all the work."""
    work: dict[str, Weights] = field(default_factory=dict)
    news: list[Change] = field(default_factory=list)
    """Changes that no batch has reported yet."""

    def settle(self) -> None:
        """Before a batch, under the lock: every instance has a home that lives."""
        if self.placement is not None:
            self.placement.settle(self.routing)

    def observe(self, reports: Mapping[str, list[InstanceReport]]) -> None:
        """Learn which slots have the work."""
        for op, each in reports.items():
            seen = self.work.setdefault(op, np.zeros(SLOTS))
            seen *= MEMORY
            for report in each:
                if report.rows_per_slot:
                    slots, rows = np.array(report.rows_per_slot).T
                    seen[slots] += rows

    def homes(self) -> dict[str, tuple[str, ...]]:
        """The executors that instances live on, by operator; nothing where there are none."""
        known = {} if self.placement is None else self.placement.homes
        return {op: tuple(home.id for home in homes) for op, homes in known.items()}

    def told(self) -> tuple[Change, ...]:
        """What changed since this was last asked."""
        news, self.news = tuple(self.news), []
        return news

    def rescale(self, operator: str | None, instances: int) -> None:
        if isinstance(instances, bool) or not isinstance(instances, int) or not 1 <= instances <= INSTANCES_MAX:
            raise QueryError(where="rescale", wanted=f"a number of instances from 1 to {INSTANCES_MAX}", found=repr(instances))
        names = self._named("rescale", operator)
        self._change(names, f"rescale to {instances} was asked for", lambda op, before: before.rescaled(instances, self.work.get(op)))

    def rebalance(self, operator: str | None) -> None:
        names = self._named("rebalance", operator)
        self._change(names, "rebalance was asked for", lambda op, before: before.rescaled(before.instances, self.work.get(op)))

    def move(self, slots: Slots, to: int, operator: str | None) -> None:
        ranges = _ranges(slots)
        names = self._named("move", operator)
        if operator is None and len(names) > 1:
            raise QueryError(where="move", wanted=f"the operator whose slots are meant: {', '.join(names)}", found="none")

        def moved(name: str, before: Routing) -> Routing:
            # Asked again under the lock: another thread may have rescaled meanwhile.
            if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < before.instances:
                wanted = f"an instance of {name}, 0 to {before.instances - 1}"
                raise QueryError(where="move", wanted=wanted, found=repr(to), hint="rescale first")
            return before.moved(ranges, to)

        self._change(names, "move was asked for", moved)

    def _named(self, where: str, operator: str | None) -> list[str]:
        if operator is not None and (not isinstance(operator, str) or operator not in self.routing):
            raise QueryError(where=where, wanted=f"an operator of the query: {', '.join(self.routing)}", found=repr(operator))
        return list(self.routing) if operator is None else [operator]

    def rehome(self) -> None:
        """Executors have come or gone: let instances live on as many as there are."""
        placement = self.placement
        if placement is None:
            return
        asked = time.monotonic()
        homes, fetched, fetch_ms = self._ahead(dict(self.routing))
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - fetch_ms
            for name, after in homes.items():
                before, routing = placement.homes.get(name, ()), self.routing[name]
                if len(after) != routing.instances or after == before:
                    # Rescaled meanwhile: the change has brought homes of its own.
                    continue
                placement.homes[name] = after
                moved = sum(a != b for a, b in zip(before, after, strict=False))
                if moved:
                    n, why = routing.instances, "executors came or went"
                    self.news.append(Change(name, routing.epoch, n, n, 0, "rehome", why, waited_ms, moved, fetched, fetch_ms))

    def _change(self, names: list[str], why: str, change: Callable[[str, Routing], Routing]) -> None:
        asked = time.monotonic()
        seen = {name: self.routing[name] for name in names}
        planned = {name: change(name, seen[name]) for name in names}
        homes, fetched, fetch_ms = self._ahead({name: each for name, each in planned.items() if each is not seen[name]})
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - fetch_ms
            for name in names:
                before = self.routing[name]
                # Another thread may have changed it meanwhile; then what was fetched is at least near.
                after = planned[name] if before is seen[name] else change(name, before)
                if after is before:
                    continue
                self.routing[name] = after
                rehomed = self._move_in(name, homes[name]) if name in homes and len(homes[name]) == after.instances else 0
                moved, protocol = after.moved_from(before), "state recreation"
                counts = before.instances, after.instances, moved
                self.news.append(Change(name, after.epoch, *counts, protocol, why, waited_ms, rehomed, fetched, fetch_ms))
            self.checkpoint.note_routing(self.routing)

    def _ahead(self, routing: dict[str, Routing]) -> tuple[dict[str, Homes], int, float]:
        """Have the state where it will be needed, while batches go on: new homes, bytes fetched, milliseconds taken."""
        if self.placement is None or not routing:
            return {}, 0, 0.0
        began = time.monotonic()
        homes, fetched = self.placement.ahead(routing)
        return homes, fetched, (time.monotonic() - began) * 1000

    def _move_in(self, name: str, homes: Homes) -> int:
        """Give an operator's instances their homes; returns how many have another than before, or have one for the first time."""
        assert self.placement is not None
        before = self.placement.homes.get(name, ())
        self.placement.homes[name] = homes
        return sum(at >= len(before) or before[at] != home for at, home in enumerate(homes))


def _ranges(slots: Slots) -> list[SlotRange]:
    """Slots in any form that a user may give them in.

    >>> _ranges(7), _ranges(range(3, 9)), _ranges([(0, 2), 5])
    ([(7, 8)], [(3, 9)], [(0, 2), (5, 6)])
    """
    found = []
    for each in slots if isinstance(slots, list) else [slots]:
        if isinstance(each, range) and each.step == 1:
            lo, hi = each.start, each.stop
        elif isinstance(each, tuple) and len(each) == 2 and all(isinstance(edge, int) for edge in each):
            lo, hi = each
        else:
            lo, hi = (each, each + 1) if isinstance(each, int) else (-1, -1)
        if not 0 <= lo < hi <= SLOTS:
            raise QueryError(where="move", wanted=f"slots: numbers, ranges or pairs [lo, hi) within [0, {SLOTS})", found=repr(each))
        found.append((lo, hi))
    return found
