"""Changing the parallelism of a running query: rescale, move, rebalance.

State lies in runs sorted by slot, so an instance that gets slots opens the runs that hold them, and one that loses slots does not look at
them any more (StreamCloud's state recreation, without shipping). What changes is the routing, between two batches, under the loop's
lock: a row is routed either by the old one or by the new one. A version that fails is run again, by the routing that holds then.
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
        }


@dataclass
class Elastic:
    """The routing of a query's operators, and the work seen in each slot."""

    checkpoint: Checkpoint
    routing: dict[str, Routing]
    """Read by the loop at the start of a batch; changed under its lock only."""
    lock: threading.Lock
    work: dict[str, Weights] = field(default_factory=dict)
    news: list[Change] = field(default_factory=list)
    """Changes that no batch has reported yet."""

    def observe(self, reports: Mapping[str, list[InstanceReport]]) -> None:
        """Learn which slots have the work."""
        for op, each in reports.items():
            seen = self.work.setdefault(op, np.zeros(SLOTS))
            seen *= MEMORY
            for report in each:
                if report.rows_per_slot:
                    slots, rows = np.array(report.rows_per_slot).T
                    seen[slots] += rows

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
            # Asked under the lock: another thread may have rescaled meanwhile.
            if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < before.instances:
                wanted = f"an instance of {name}, 0 to {before.instances - 1}"
                raise QueryError(where="move", wanted=wanted, found=repr(to), hint="rescale first")
            return before.moved(ranges, to)

        self._change(names, "move was asked for", moved)

    def _named(self, where: str, operator: str | None) -> list[str]:
        if operator is not None and (not isinstance(operator, str) or operator not in self.routing):
            raise QueryError(where=where, wanted=f"an operator of the query: {', '.join(self.routing)}", found=repr(operator))
        return list(self.routing) if operator is None else [operator]

    def _change(self, names: list[str], why: str, change: Callable[[str, Routing], Routing]) -> None:
        asked = time.monotonic()
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000
            for name in names:
                before = self.routing[name]
                after = change(name, before)
                if after is not before:
                    self.routing[name] = after
                    moved = after.moved_from(before)
                    self.news.append(
                        Change(name, after.epoch, before.instances, after.instances, moved, "state recreation", why, waited_ms)
                    )
            self.checkpoint.note_routing(self.routing)


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
