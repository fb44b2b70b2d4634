"""Changing the parallelism of a running query: rescale, move, rebalance.

State is in runs sorted by slot. An instance that gets slots opens the runs that contain them, and one that loses slots ignores them from
then on (StreamCloud's state recreation, without shipping). Only the routing changes, between two batches, under the batch lock. So each
batch is routed by one table. A batch that fails runs again, with the routing of that moment.

If instances have homes on executors, state is brought to the new homes before the change, while batches go on with the old routing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.control.handover import AUTO, Choice, Facts, Protocol, check_name, choose_protocol
from headrace.control.hot import levelled_routing
from headrace.errors import QueryError
from headrace.ids import SLOTS, InstanceId, OperatorId, RoutingEpoch, Slot, snapped
from headrace.logs import logger
from headrace.runtime.checkpoint import Checkpoint
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.reports import InstanceReport
from headrace.runtime.slot_work import SlotWork
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing
from headrace.state.slots import SlotRange

if TYPE_CHECKING:
    # Reading checkpoints and asking a running query must work without Spark.
    from headrace.runtime.placement import Homes, Placement

INSTANCES_MAX = 4096

LEARN_BYTES_MIN = 1_000_000
"""Fetches smaller than this do not show the speed of fetching: most of their time goes into starting the job."""

_log = logger(__name__)

Slots = int | range | SlotRange | list[int | range | SlotRange]


@dataclass(frozen=True)
class Brought:
    """How much state was brought to new homes, and how long it took."""

    fetched_bytes: int = 0
    lent_bytes: int = 0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class RoutingChange:
    """A change of one operator's routing."""

    operator: OperatorId
    epoch: RoutingEpoch
    instances_before: int
    instances: int
    slots_moved: int
    protocol: str
    why: str
    waited_ms: float
    """Time from the request until the current batch had ended."""
    homes_moved: int = 0
    fetched_bytes: int = 0
    """State that was brought to new homes before the change."""
    lent_bytes: int = 0
    """The part of ``fetched_bytes`` that came from other executors."""
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


Changes = list[RoutingChange]


@dataclass
class LiveRouting:
    """The current routing of a query's operators, and the recent work of each slot."""

    checkpoint: Checkpoint
    routing: dict[OperatorId, Routing]
    """By operator. The loop reads it when a batch begins; it changes only under the batch lock."""
    lock: threading.Lock
    placement: Placement | None = None
    """The homes of instances; None if the driver does all the work."""
    facts: Mapping[OperatorId, Facts] = field(default_factory=dict)
    """By operator: what the choice of a hand-over protocol depends on."""
    handover: str = AUTO
    """The protocol for requests that name none."""
    bytes_per_s: float = 50e6
    """The speed of fetching state, measured at the last large fetch."""
    work: SlotWork = field(default_factory=SlotWork)
    """The recent work of slots and of heavy keys."""
    news: deque[RoutingChange] = field(default_factory=deque)
    """Changes that no progress has reported yet. Several threads add to it."""
    decisions: DecisionLog | None = None
    """The log of the query's policy, which leaves alone what is changed by hand; None if the query has no policy."""

    def settle(self) -> None:
        """Give every instance a home on a living executor. Called before a batch, under the lock."""
        if self.placement is not None:
            self.placement.settle(self.routing)

    def ensure_state(self) -> None:
        """Bring state that only other executors have to the homes that need it. Called before a batch, under the lock."""
        if self.placement is not None:
            self.placement.ensure(self.routing)

    def lost_runs(self) -> frozenset[str] | None:
        """The runs of the newest version that are lost: no living executor has them, nor the durable store. None on a local master."""
        return None if self.placement is None else self.placement.lost_runs(self.routing)

    def live_executors(self) -> frozenset[str]:
        """The ids of executors that live; empty on a local master."""
        return frozenset() if self.placement is None else frozenset(each.id for each in self.placement.executors.live())

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Inside, the routing may be set to that of earlier versions. Afterwards it is what it was. Called under the lock."""
        now = dict(self.routing)
        try:
            yield
        finally:
            self.routing.update(now)

    def observe(self, reports: Mapping[OperatorId, list[InstanceReport]]) -> None:
        """Add a batch to the recent work of slots and keys."""
        self.work.observe(reports, self.routing)

    def instances(self) -> dict[OperatorId, int]:
        """By operator: its number of instances."""
        return {op: routing.instances for op, routing in self.routing.items()}

    def homes(self) -> dict[OperatorId, tuple[str, ...]]:
        """By operator: the executor of each instance. Empty if instances have no homes."""
        known = {} if self.placement is None else self.placement.homes
        return {op: tuple(home.id for home in homes) for op, homes in known.items()}

    def drain_changes(self) -> tuple[RoutingChange, ...]:
        """The changes since the last call."""
        return tuple(self.news.popleft() for _ in range(len(self.news)))

    def _report(self, change: RoutingChange) -> RoutingChange:
        """Log a change, and queue it for the progress of the next batch."""
        counts = f"{change.instances_before} -> {change.instances} instances, {change.slots_moved} slots moved"
        _log.info("%s; %s", counts, change.why, query=self.checkpoint.location, operator=change.operator)
        self.news.append(change)
        return change

    def rescale(self, operator: str | None, instances: int, protocol: str | None = None) -> Changes:
        """Give one operator, or all, another number of instances."""
        if isinstance(instances, bool) or not isinstance(instances, int) or not 1 <= instances <= INSTANCES_MAX:
            raise QueryError(where="rescale", wanted=f"a number of instances from 1 to {INSTANCES_MAX}", found=repr(instances))
        names = self.named("rescale", operator)
        why = f"rescale to {instances} was asked for"
        return self._change(names, why, lambda op, before: self.levelled_routing(op, before, instances), protocol)

    def rebalance(self, operator: str | None, protocol: str | None = None) -> Changes:
        """Share the recent work of one operator, or of all, evenly between its instances."""
        names = self.named("rebalance", operator)
        why = "rebalance was asked for"
        return self._change(names, why, lambda op, before: self.levelled_routing(op, before, before.instances), protocol)

    def spread(self, slots: Slots, operator: str | None) -> Changes:
        """Spread the rows of these slots, and of no others, over all instances."""
        ranges = slot_ranges(slots, "spread") if slots != [] else []
        names = self.named("spread", operator)
        wrong = [name for name in names if ranges and not self.facts.get(name, Facts()).mergeable]
        if wrong:
            wanted = "operators whose state is merged when windows close: time windows in append mode"
            others = [name for name in names if name not in wrong]
            hint = f"name one of {', '.join(others)}" if others else "no operator of this query can; slots with much work can be moved"
            raise QueryError(where="spread", wanted=wanted, found=", ".join(wrong), hint=hint)
        if any(edge != int(edge) for each in ranges for edge in each):
            raise QueryError(where="spread", wanted="whole slots", found=repr(slots), hint="a slot can only be spread with all its keys")
        each = {Slot(slot) for lo, hi in ranges for slot in range(int(lo), int(hi))}
        why = "spread was asked for"
        return self._change(names, why, lambda op, before: before.spreading(each) if before.instances > 1 else before, None)

    def levelled_routing(self, op: OperatorId, before: Routing, instances: int) -> Routing:
        """A routing with this many instances that shares the recent work as evenly as possible."""
        spreads = self.facts.get(op, Facts()).mergeable
        # Without homes all instances read the same files, so moving a slot costs nothing.
        moves_freely = self.placement is None
        work, keys = self.work.slots.get(op), self.work.keys.get(op)
        return levelled_routing(before, instances, work, spreads=spreads, keys=keys, moves_freely=moves_freely)

    def move(self, slots: Slots, to: int, operator: str | None, protocol: str | None = None) -> Changes:
        """Give slots of an operator to one of its instances."""
        ranges = slot_ranges(slots, "move")
        names = self.named("move", operator)
        if operator is None and len(names) > 1:
            raise QueryError(where="move", wanted=f"the operator whose slots are to move: {', '.join(names)}", found="none")

        def moved(name: OperatorId, before: Routing) -> Routing:
            # This is called again under the lock, because another thread may have rescaled meanwhile.
            if isinstance(to, bool) or not isinstance(to, int) or not 0 <= to < before.instances:
                wanted = f"an instance of {name}, 0 to {before.instances - 1}"
                raise QueryError(where="move", wanted=wanted, found=repr(to), hint="rescale first")
            return before.moved(ranges, InstanceId(to))

        return self._change(names, "move was asked for", moved, protocol)

    def named(self, where: str, operator: str | None) -> list[OperatorId]:
        """The operator of this name, or all if it is None. ``where`` names the call in the error for an unknown one."""
        if operator is not None and (not isinstance(operator, str) or operator not in self.routing):
            raise QueryError(where=where, wanted=f"an operator of the query: {', '.join(self.routing)}", found=repr(operator))
        return list(self.routing) if operator is None else [OperatorId(operator)]

    def rehome(self) -> None:
        """Choose homes again after executors have come or gone, so that all of them are used."""
        placement = self.placement
        if placement is None:
            return
        asked = time.monotonic()
        homes, brought = self._ahead(dict(self.routing))
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - brought.fetch_ms
            for name, after in homes.items():
                routing = self.routing[name]
                if len(after) != len(routing.parts):
                    # The operator was rescaled meanwhile, which chose homes of its own.
                    continue
                moved = sum(old != new for old, new in zip(placement.move_in(name, after), after, strict=False))
                if moved:
                    n, why = routing.instances, "executors came or went"
                    self._report(RoutingChange(name, routing.epoch, n, n, 0, "rehome", why, waited_ms, moved, **asdict(brought)))

    def perform(self, operator: OperatorId, why: str, change: Callable[[Routing], Routing]) -> bool:
        """Change an operator's routing as a policy decided; True if it changed.

        ``change`` is called again if somebody else has changed the routing meanwhile.
        """
        return bool(self._change([operator], why, lambda _, routing: change(routing), None, manual=False))

    def _change(
        self, names: list[OperatorId], why: str, change: Callable[[OperatorId, Routing], Routing], protocol: str | None, manual: bool = True
    ) -> Changes:
        """Change routings between two batches. Returns what changed, of each operator whose routing did."""
        asked = time.monotonic()
        wanted = protocol or self.handover
        check_name("protocol", wanted)
        seen = {name: self.routing[name] for name in names}
        planned = {name: change(name, seen[name]) for name in names}
        if manual and self.decisions is not None:
            # Before the wait for the current batch, so that the policy does not undo the change meanwhile.
            self.decisions.override(names, why, self.routing)
        moving = [name for name in names if planned[name] is not seen[name]]
        latest = self.checkpoint.latest()
        ways = {name: self._way(wanted, name, seen[name], planned[name], latest) for name in moving}
        early = {name: planned[name] for name in moving if ways[name].protocol is Protocol.STATE_RECREATION}
        homes, brought = self._ahead(early)
        changed: Changes = []
        with self.lock:
            waited_ms = (time.monotonic() - asked) * 1000 - brought.fetch_ms
            held = {name: planned[name] for name in moving if ways[name].protocol is Protocol.BUFFERING}
            held_homes, held_brought = self._ahead(held)
            for name in moving:
                before = self.routing[name]
                # If another thread has changed it meanwhile, the change is computed again. Most of what was fetched is still useful.
                after = planned[name] if before is seen[name] else change(name, before)
                if after is before:
                    continue
                way = ways[name]
                if way.protocol is Protocol.WINDOW_RECREATION:
                    after = self._recreating(name, before, after)
                self.routing[name] = after
                ready = {**homes, **held_homes}.get(name, ())
                rehomed = self._move_in(name, ready) if len(ready) == len(after.parts) else 0
                counts = before.instances, after.instances, after.moved_from(before)
                reason = f"{why}; {way.protocol}: {way.why}"
                took = held_brought if name in held else brought
                done = RoutingChange(name, after.epoch, *counts, str(way.protocol), reason, waited_ms, rehomed, **asdict(took))
                changed.append(self._report(done))
            self.checkpoint.note_routing(self.routing)
        later = {name: self.routing[name] for name in moving if ways[name].protocol is Protocol.MERGE}
        if later and self.placement is not None:
            threading.Thread(target=self._bring, args=(later,), name="headrace-merge", daemon=True).start()
        return changed

    def _bring(self, routing: dict[OperatorId, Routing]) -> None:
        """After a merge: bring the old state to the new owners, which work already, and report it."""
        try:
            _, brought = self._ahead(routing)
        except Exception:
            # Spark may be shutting down. A batch fetches missing state when it needs it.
            names = ", ".join(routing)
            _log.warning("old state was not fetched ahead after a merge", exc_info=True, query=self.checkpoint.location, operator=names)
            return
        for name, each in routing.items():
            counts, why = (each.instances, each.instances, 0), "the old state has arrived"
            self._report(RoutingChange(name, each.epoch, *counts, str(Protocol.MERGE), why, 0.0, 0, **asdict(brought)))

    def _way(self, wanted: str, name: OperatorId, before: Routing, after: Routing, latest: Manifest | None) -> Choice:
        """Choose the protocol by which an operator's state goes to its new owners."""
        size = 0
        if latest is not None and self.placement is not None and self.placement.working is not None:
            size = sum(bytes_ for _, bytes_ in {(r.file, r.bytes) for r in latest.runs_of(name)}) * after.moved_from(before) // SLOTS
        facts = self.facts.get(name, Facts())
        spread = bool(before.spread or after.spread)
        if spread and wanted == AUTO:
            facts = replace(facts, window=None)
        choice = choose_protocol(wanted, name, facts, size, self.bytes_per_s)
        if spread and choice.protocol is Protocol.WINDOW_RECREATION:
            return Choice(Protocol.STATE_RECREATION, "all instances have rows of spread slots, so no old owner can close their windows")
        return choice

    def _recreating(self, name: OperatorId, before: Routing, after: Routing) -> Routing:
        """The routing with window recreations; ``after`` itself if no window is open, as there is nothing to recreate."""
        window, latest = self.facts[name].window, self.checkpoint.latest()
        newest = [ref.sub_max for ref in latest.runs_of(name) if ref.sub_max is not None] if latest else []
        if latest is None or window is None or not newest or before.spread or after.spread:
            return after
        return after.recreating(before, max(*newest, latest.watermark_ms * 1000), window)

    def end_recreations(self, watermarks_us: Mapping[OperatorId, int]) -> None:
        """End the recreations whose last old window has closed. Called before a batch, under the lock."""
        for name, routing in self.routing.items():
            over = [each for each in routing.recreations if each.end_us <= watermarks_us[name]]
            if over:
                self.routing[name] = after = routing.without(over)
                counts = routing.instances, routing.instances, 0
                why = "the last window of the old owners has closed"
                self._report(RoutingChange(name, after.epoch, *counts, str(Protocol.WINDOW_RECREATION), why, 0.0))
                self.checkpoint.note_routing(self.routing)

    def _ahead(self, routing: dict[OperatorId, Routing]) -> tuple[dict[OperatorId, Homes], Brought]:
        """Bring state to its new homes while batches go on. Returns the new homes, and how much was brought."""
        if self.placement is None or not routing:
            return {}, Brought()
        began = time.monotonic()
        homes, fetched = self.placement.ahead(routing, self.routing)
        took_s = time.monotonic() - began
        if fetched.bytes >= LEARN_BYTES_MIN:
            self.bytes_per_s = fetched.bytes / took_s
        return homes, Brought(fetched.bytes, fetched.lent, took_s * 1000)

    def _move_in(self, name: OperatorId, homes: Homes) -> int:
        """Set the homes of an operator's instances. Returns how many instances have a new home."""
        assert self.placement is not None
        before = self.placement.move_in(name, homes)
        return sum(at >= len(before) or before[at] != home for at, home in enumerate(homes))


def slot_ranges(slots: Slots, where: str = "") -> list[SlotRange]:
    """Ranges of slots, from any form in which a user may give slots.

    >>> slot_ranges(7), slot_ranges(range(3, 9)), slot_ranges([(0, 2), 5])
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
