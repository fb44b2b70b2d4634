"""Changing the parallelism of a running query: rescale, move, rebalance.

State lies in runs sorted by slot, so an instance that gets slots opens the runs that hold them, and one that loses slots does not look at
them any more (StreamCloud's state recreation, without shipping). What changes is the routing, between two batches, under the loop's
lock: a row is routed either by the old one or by the new one. A version that fails is run again, by the routing that holds then.

Where instances have homes on executors, what they will need there is fetched before that, while batches go on by the old routing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.control.handover import AUTO, Choice, Facts, Protocol, check_name, choose
from headrace.control.hot import levelled
from headrace.errors import QueryError
from headrace.ids import SLOTS, InstanceId, KeyHash, OperatorId, RoutingEpoch, Slot, snapped
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.reports import InstanceReport
from headrace.state.levelling import Weights
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing
from headrace.state.slots import SlotRange

if TYPE_CHECKING:
    # What only looks at checkpoints, or asks a running query, must work without Spark.
    from headrace.runtime.placement import Homes, Placement

MEMORY = 0.8
"""What the work seen so far still counts for after another batch: about the last five batches decide."""

KEYS_MAX = 256
"""Heavy keys kept in mind, for each operator."""

INSTANCES_MAX = 4096

LEARN_BYTES_MIN = 1_000_000
"""Less than this says more of how long a job takes to start than of how quickly state is fetched."""

_log = logger(__name__)

Slots = int | range | SlotRange | list[int | range | SlotRange]


@dataclass(frozen=True)
class Brought:
    """State that was brought to where it will be needed."""

    fetched_bytes: int = 0
    lent_bytes: int = 0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class Change:
    """A change of one operator's routing."""

    operator: OperatorId
    epoch: RoutingEpoch
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
    lent_bytes: int = 0
    """... of which this much came from other executors."""
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
            "bytesLent": self.lent_bytes,
            "fetchMs": round(self.fetch_ms, 1),
        }


@dataclass
class LiveRouting:
    """The routing of a query's operators, and the work seen in each slot."""

    checkpoint: Checkpoint
    routing: dict[OperatorId, Routing]
    """Read by the loop at the start of a batch; changed under its lock only."""
    lock: threading.Lock
    placement: Placement | None = None
    """Where instances live; None where the driver does all the work."""
    facts: Mapping[OperatorId, Facts] = field(default_factory=dict)
    """By operator."""
    handover: str = AUTO
    """The protocol, where a request names none."""
    bytes_per_s: float = 50e6
    """How quickly state is fetched; learned from what was."""
    work: dict[OperatorId, Weights] = field(default_factory=dict)
    """By slot."""
    keys: dict[OperatorId, dict[KeyHash, float]] = field(default_factory=dict)
    """Work by hash, of the heaviest keys only."""
    news: deque[Change] = field(default_factory=deque)
    """Changes that no batch has reported yet; several threads add to it."""
    decisions: DecisionLog | None = None
    """Of the query's policy, which leaves alone what is changed by hand; None if the query has no policy."""

    def settle(self) -> None:
        """Before a batch, under the lock: every instance has a home that lives."""
        if self.placement is not None:
            self.placement.settle(self.routing)

    def observe(self, reports: Mapping[OperatorId, list[InstanceReport]]) -> None:
        """Learn which slots have the work."""
        for op, each in reports.items():
            seen = self.work.setdefault(op, np.zeros(SLOTS))
            seen *= MEMORY
            for report in each:
                if report.rows_per_slot:
                    slots, rows = np.array(report.rows_per_slot).T
                    seen[slots] += rows
            self.keys[op] = _heaviest(self.keys.get(op, {}), each)

    def homes(self) -> dict[OperatorId, tuple[str, ...]]:
        """The executors that instances live on, by operator; nothing where there are none."""
        known = {} if self.placement is None else self.placement.homes
        return {op: tuple(home.id for home in homes) for op, homes in known.items()}

    def drain_changes(self) -> tuple[Change, ...]:
        """The changes since the last call."""
        return tuple(self.news.popleft() for _ in range(len(self.news)))

    def _report(self, change: Change) -> None:
        """Log a change, and queue it for the progress of the next batch."""
        counts = f"{change.instances_before} -> {change.instances} instances, {change.slots_moved} slots moved"
        _log.info("%s; %s", counts, change.why, query=self.checkpoint.location, operator=change.operator)
        self.news.append(change)

    def rescale(self, operator: str | None, instances: int, protocol: str | None = None) -> None:
        if isinstance(instances, bool) or not isinstance(instances, int) or not 1 <= instances <= INSTANCES_MAX:
            raise QueryError(where="rescale", wanted=f"a number of instances from 1 to {INSTANCES_MAX}", found=repr(instances))
        names = self.named("rescale", operator)
        why = f"rescale to {instances} was asked for"
        self._change(names, why, lambda op, before: self.levelled(op, before, instances), protocol)

    def rebalance(self, operator: str | None, protocol: str | None = None) -> None:
        names = self.named("rebalance", operator)
        why = "rebalance was asked for"
        self._change(names, why, lambda op, before: self.levelled(op, before, before.instances), protocol)

    def spread(self, slots: Slots, operator: str | None) -> None:
        """Deal the rows of these slots, and of no others, out over all instances."""
        ranges = _ranges(slots, "spread") if slots != [] else []
        names = self.named("spread", operator)
        wrong = [name for name in names if ranges and not self.facts.get(name, Facts()).mergeable]
        if wrong:
            wanted = "operators whose state is merged when windows close: time windows in append mode"
            raise QueryError(where="spread", wanted=wanted, found=", ".join(wrong), hint="name the operator")
        if any(edge != int(edge) for each in ranges for edge in each):
            raise QueryError(where="spread", wanted="whole slots", found=repr(slots), hint="all keys of a slot are spread alike")
        each = {Slot(slot) for lo, hi in ranges for slot in range(int(lo), int(hi))}
        self._change(names, "spread was asked for", lambda op, before: before.spreading(each) if before.instances > 1 else before, None)

    def levelled(self, op: OperatorId, before: Routing, instances: int) -> Routing:
        """So many instances, with as even a part of the work seen lately as can be."""
        spreads = self.facts.get(op, Facts()).mergeable
        # Without homes all instances read the same files, and what changes hands is brought nowhere.
        moves_freely = self.placement is None
        return levelled(before, instances, self.work.get(op), spreads=spreads, keys=self.keys.get(op), moves_freely=moves_freely)

    def move(self, slots: Slots, to: int, operator: str | None, protocol: str | None = None) -> None:
        ranges = _ranges(slots, "move")
        names = self.named("move", operator)
        if operator is None and len(names) > 1:
            raise QueryError(where="move", wanted=f"the operator whose slots are meant: {', '.join(names)}", found="none")

        def moved(name: OperatorId, before: Routing) -> Routing:
            # Asked again under the lock: another thread may have rescaled meanwhile.
            if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < before.instances:
                wanted = f"an instance of {name}, 0 to {before.instances - 1}"
                raise QueryError(where="move", wanted=wanted, found=repr(to), hint="rescale first")
            return before.moved(ranges, InstanceId(to))

        self._change(names, "move was asked for", moved, protocol)

    def named(self, where: str, operator: str | None) -> list[OperatorId]:
        """The operator with this name, or all operators if it is None."""
        if operator is not None and (not isinstance(operator, str) or operator not in self.routing):
            raise QueryError(where=where, wanted=f"an operator of the query: {', '.join(self.routing)}", found=repr(operator))
        return list(self.routing) if operator is None else [OperatorId(operator)]

    def rehome(self) -> None:
        """Executors have come or gone: let instances live on as many as there are."""
        placement = self.placement
        if placement is None:
            return
        asked = time.monotonic()
        homes, brought = self._ahead(dict(self.routing))
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - brought.fetch_ms
            for name, after in homes.items():
                before, routing = placement.homes.get(name, ()), self.routing[name]
                if len(after) != len(routing.parts) or after == before:
                    # Rescaled meanwhile: the change has brought homes of its own.
                    continue
                placement.homes[name] = after
                moved = sum(a != b for a, b in zip(before, after, strict=False))
                if moved:
                    n, why = routing.instances, "executors came or went"
                    self._report(Change(name, routing.epoch, n, n, 0, "rehome", why, waited_ms, moved, **asdict(brought)))

    def perform(self, operator: OperatorId, why: str, change: Callable[[Routing], Routing]) -> bool:
        """Do what a policy has decided; says whether anything changed. ``change`` is asked again if somebody else was quicker."""
        return bool(self._change([operator], why, lambda _, routing: change(routing), None, manual=False))

    def _change(
        self, names: list[OperatorId], why: str, change: Callable[[OperatorId, Routing], Routing], protocol: str | None, manual: bool = True
    ) -> list[OperatorId]:
        """Change routings between two batches; returns the operators whose routing is another now."""
        asked = time.monotonic()
        wanted = protocol or self.handover
        check_name("protocol", wanted)
        seen = {name: self.routing[name] for name in names}
        planned = {name: change(name, seen[name]) for name in names}
        if manual and self.decisions is not None:
            # Before it waits for the batch that runs: what a policy decides meanwhile must not undo it.
            self.decisions.override(names, why, self.routing)
        moving = [name for name in names if planned[name] is not seen[name]]
        latest = self.checkpoint.latest()
        ways = {name: self._way(wanted, name, seen[name], planned[name], latest) for name in moving}
        early = {name: planned[name] for name in moving if ways[name].protocol is Protocol.STATE_RECREATION}
        homes, brought = self._ahead(early)
        changed: list[OperatorId] = []
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - brought.fetch_ms
            held = {name: planned[name] for name in moving if ways[name].protocol is Protocol.BUFFERING}
            held_homes, held_brought = self._ahead(held)
            for name in moving:
                before = self.routing[name]
                # Another thread may have changed it meanwhile; then what was fetched is at least near.
                after = planned[name] if before is seen[name] else change(name, before)
                if after is before:
                    continue
                way = ways[name]
                if way.protocol is Protocol.WINDOW_RECREATION:
                    after = self._recreating(name, before, after)
                self.routing[name] = after
                changed.append(name)
                ready = {**homes, **held_homes}.get(name, ())
                rehomed = self._move_in(name, ready) if len(ready) == len(after.parts) else 0
                counts = before.instances, after.instances, after.moved_from(before)
                reason = f"{why}; {way.protocol}: {way.why}"
                took = held_brought if name in held else brought
                self._report(Change(name, after.epoch, *counts, str(way.protocol), reason, waited_ms, rehomed, **asdict(took)))
            self.checkpoint.note_routing(self.routing)
        later = {name: self.routing[name] for name in moving if ways[name].protocol is Protocol.MERGE}
        if later and self.placement is not None:
            threading.Thread(target=self._bring, args=(later,), name="headrace-merge", daemon=True).start()
        return changed

    def _bring(self, routing: dict[OperatorId, Routing]) -> None:
        """Have the old state where new owners work already, and say so."""
        try:
            _, brought = self._ahead(routing)
        except Exception:
            # Spark may be shutting down. State that is not there yet is fetched when a batch needs it.
            names = ", ".join(routing)
            _log.warning("old state was not fetched ahead after a merge", exc_info=True, query=self.checkpoint.location, operator=names)
            return
        for name, each in routing.items():
            counts, why = (each.instances, each.instances, 0), "the old state has arrived"
            self._report(Change(name, each.epoch, *counts, str(Protocol.MERGE), why, 0.0, 0, **asdict(brought)))

    def _way(self, wanted: str, name: OperatorId, before: Routing, after: Routing, latest: Manifest | None) -> Choice:
        """How an operator's state is to change hands."""
        size = 0
        if latest is not None and self.placement is not None and self.placement.working is not None:
            size = sum(bytes_ for _, bytes_ in {(r.file, r.bytes) for r in latest.runs_of(name)}) * after.moved_from(before) // SLOTS
        facts = self.facts.get(name, Facts())
        spread = bool(before.spread or after.spread)
        if spread and wanted == AUTO:
            facts = replace(facts, window=None)
        choice = choose(wanted, name, facts, size, self.bytes_per_s)
        if spread and choice.protocol is Protocol.WINDOW_RECREATION:
            return Choice(Protocol.STATE_RECREATION, "rows of spread slots lie with all instances, so their windows have no old owner")
        return choice

    def _recreating(self, name: OperatorId, before: Routing, after: Routing) -> Routing:
        """The routing in which new owners begin new windows. Nothing to close, nothing to recreate."""
        window, latest = self.facts[name].window, self.checkpoint.latest()
        newest = [ref.sub_max for ref in latest.runs_of(name) if ref.sub_max is not None] if latest else []
        if latest is None or window is None or not newest or before.spread or after.spread:
            return after
        return after.recreating(before, max(*newest, latest.watermark_ms * 1000), window)

    def end_recreations(self, watermarks_us: Mapping[OperatorId, int]) -> None:
        """Before a batch, under the lock: recreations whose last old window has closed are over."""
        for name, routing in self.routing.items():
            over = [each for each in routing.recreations if each.end_us <= watermarks_us[name]]
            if over:
                self.routing[name] = after = routing.without(over)
                counts = routing.instances, routing.instances, 0
                why = "the last window of the old owners has closed"
                self._report(Change(name, after.epoch, *counts, str(Protocol.WINDOW_RECREATION), why, 0.0))
                self.checkpoint.note_routing(self.routing)

    def _ahead(self, routing: dict[OperatorId, Routing]) -> tuple[dict[OperatorId, Homes], Brought]:
        """Have the state where it will be needed, while batches go on: new homes, and what that took."""
        if self.placement is None or not routing:
            return {}, Brought()
        began = time.monotonic()
        homes, fetched = self.placement.ahead(routing, self.routing)
        took_s = time.monotonic() - began
        if fetched.bytes >= LEARN_BYTES_MIN:
            self.bytes_per_s = fetched.bytes / took_s
        return homes, Brought(fetched.bytes, fetched.lent, took_s * 1000)

    def _move_in(self, name: OperatorId, homes: Homes) -> int:
        """Give an operator's instances their homes; returns how many have another than before, or have one for the first time."""
        assert self.placement is not None
        before = self.placement.homes.get(name, ())
        self.placement.homes[name] = homes
        return sum(at >= len(before) or before[at] != home for at, home in enumerate(homes))


def _heaviest(seen: Mapping[KeyHash, float], reports: list[InstanceReport]) -> dict[KeyHash, float]:
    """The keys that have the most work, after another batch."""
    found = {h: MEMORY * rows for h, rows in seen.items()}
    for report in reports:
        for h, rows in report.rows_per_hash:
            found[h] = found.get(h, 0.0) + rows
    return dict(sorted(found.items(), key=lambda item: -item[1])[:KEYS_MAX])


def _ranges(slots: Slots, where: str = "") -> list[SlotRange]:
    """Slots in any form that a user may give them in.

    >>> _ranges(7), _ranges(range(3, 9)), _ranges([(0, 2), 5])
    ([(7, 8)], [(3, 9)], [(0, 2), (5, 6)])
    """
    found: list[SlotRange] = []
    for each in slots if isinstance(slots, list) else [slots]:
        lo: float
        hi: float
        if isinstance(each, range) and each.step == 1:
            lo, hi = each.start, each.stop
        elif isinstance(each, tuple) and len(each) == 2 and all(isinstance(edge, int | float) for edge in each):
            lo, hi = each
        else:
            lo, hi = (each, each + 1) if isinstance(each, int) else (-1, -1)
        if 0 <= lo < hi <= SLOTS:
            lo, hi = (edge if isinstance(edge, int) else snapped(edge) for edge in (lo, hi))
        if not 0 <= lo < hi <= SLOTS:
            raise QueryError(where=where, wanted=f"slots: numbers, ranges or pairs [lo, hi) within [0, {SLOTS})", found=repr(each))
        found.append((lo, hi))
    return found
