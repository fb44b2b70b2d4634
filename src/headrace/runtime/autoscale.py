"""The autoscaler: lets a policy follow the load of a running query.

    batch ends -> observe -> decide -> judge -> change the routing between two batches

It works in a thread of its own. The batch loop hands over the report of a batch and goes on. A change waits until the current batch has
ended, like a change by hand. While no batch comes, the query is observed once a period, so that an idle query gives up instances.

A policy decides how many instances there are, and may decide which instance owns which slots. Its moves are performed as they are, unless
they would give an instance many small ranges of slots: state is kept by ranges, and many of them would slow down every batch. In that
case neighbouring slots with as much work move between the same instances. If that is not possible either, slots are assigned by the work
that was measured in them, in few ranges, as for ``rescale``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from headrace.control.batch_report import BatchReport
from headrace.control.decisions import Decision, MoveSlots, Rescale, moves_between, owners_after, routed
from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Outcome, entry_of
from headrace.control.observing import FITTED, Batch, observe
from headrace.errors import HeadraceError, QueryError
from headrace.ids import SLOTS, RoutingEpoch
from headrace.logs import logger
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.elastic import LiveRouting
from headrace.state.levelling import Weights, with_idle
from headrace.state.routing import Routing

_log = logger(__name__)

RANGES_MAX = 16
"""A policy's moves are performed only if no instance has more ranges of slots than this afterwards."""


@dataclass
class Autoscaler:
    """Observes one elastic query, asks its policy and performs what it decides."""

    settings: Elastic
    live: LiveRouting
    decisions: DecisionLog
    is_idle: Callable[[], bool]
    """True if the query has nothing to do: no batch runs, and Spark is not busy before or after one."""
    batches: list[Batch] = field(default_factory=list)
    """The batches of the last period. Only this thread uses them."""
    inbox: deque[BatchReport] = field(default_factory=deque)
    woken: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._policy = self.settings.chosen()
        self._memory = self._policy.first

    def start(self) -> None:
        threading.Thread(target=self._run, name="headrace-autoscaler", daemon=True).start()

    def stop(self) -> None:
        self.ended.set()
        self.woken.set()

    def offer(self, report: BatchReport) -> None:
        """Hand over the report of a batch that has ended. The loop calls this, and does not wait for a decision."""
        self.inbox.append(report)
        self.woken.set()

    def resume(self, operator: str | None = None) -> None:
        """Give operators that were changed by hand back to the policy."""
        self.decisions.resume(self.live.named("elastic_resume", operator), self.live.routing)

    def _run(self) -> None:
        while not self.ended.is_set():
            self.woken.wait(self.settings.period_s)
            self.woken.clear()
            if self.ended.is_set():
                return
            try:
                self.look(time.time())
            except Exception as error:
                # The query goes on with the instances that it has.
                _log.warning("the policy failed", exc_info=True, query=self.live.checkpoint.location)
                self.decisions.note(Entry(time.time(), None, "look", Outcome.FAILED, f"{type(error).__name__}: {error}", 0, 0))

    def look(self, at_s: float) -> None:
        """Observe the query at this moment, and perform what the policy decides. Does nothing if there are too few batches."""
        came = self._read()
        if not self.batches:
            return
        last = self.batches[-1]
        if not came and (self.live.lock.locked() or not self.is_idle()):
            # A batch is running, or Spark is preparing one: the query is not idle.
            return
        seen, routing = self.batches, self.live.routing
        if last.epochs != tuple(routing[each.operator].epoch for each in last.operators):
            # The routing has changed since the last batch, so earlier utilisation does not count. No batch has come: the query is idle.
            seen = [last.resting(routing)]
        observation = observe(seen, last.end_s if came else at_s, self.settings.period_s)
        if observation is None:
            return
        decisions, self._memory = self._policy.decide(observation, self._memory)
        for decision in decisions:
            self._follow(decision, observation.at_s)

    def _read(self) -> bool:
        """Add the batches that have ended, and drop those before the period. True if any was added."""
        came = False
        while self.inbox:
            report = self.inbox.popleft()
            if not report.replayed:
                self.batches.append(Batch.of(report))
                came = True
        if came:
            since_s = self.batches[-1].end_s - self.settings.period_s
            old = sum(batch.end_s <= since_s for batch in self.batches)
            # One older batch says when the period began. More of them show what a batch costs however few rows it has.
            del self.batches[: max(0, min(old - 1, len(self.batches) - FITTED))]
        return came

    def _follow(self, decision: Decision, at_s: float) -> None:
        operator = getattr(decision, "operator", None)
        before = self.live.routing[operator].instances if operator in self.live.routing else 0
        outcome, why = self.decisions.governor.judge(decision, at_s), ""
        if outcome is Outcome.PERFORMED and isinstance(decision, Rescale | MoveSlots):
            outcome, why = self._perform(decision)
            # The cool-down also begins if nothing changed: asked again at once, the policy would decide the same.
            self.decisions.changed(decision.operator)
        entry = entry_of(decision, outcome, before, at_s)
        self.decisions.note(entry if not why else replace(entry, why=f"{entry.why}; {why}"))

    def _perform(self, decision: Rescale | MoveSlots) -> tuple[Outcome, str]:
        name = decision.operator
        seen = self.live.routing[name]

        def change(before: Routing) -> Routing:
            if self.decisions.is_overridden(name):
                return before
            work = self.live.work.slots.get(name)
            return decided(before, decision, seen.epoch, lambda count: self.live.levelled_routing(name, before, count), work)

        try:
            changed = self.live.perform(name, f"{self.settings.policy}: {decision.why}", change)
        except HeadraceError as refused:
            _log.warning("a decision was refused: %s", refused, query=self.live.checkpoint.location, operator=name)
            return Outcome.FAILED, str(refused)
        if changed:
            return Outcome.PERFORMED, ""
        if self.decisions.is_overridden(name):
            return Outcome.OVERRIDDEN, "it was changed by hand meanwhile"
        return Outcome.UNCHANGED, "the slots are already assigned as evenly as their recent work allows"


def decided(
    before: Routing,
    decision: Rescale | MoveSlots,
    epoch: RoutingEpoch,
    levelled: Callable[[int], Routing],
    work: Weights | None = None,
) -> Routing:
    """The routing after a decision that was made for the routing with this epoch. ``levelled`` assigns slots by their ``work``.

    >>> from headrace.control.decisions import Move, ScaleOut
    >>> from headrace.ids import InstanceId, OperatorId
    >>> grown = ScaleOut(operator=OperatorId("sum"), instances=2, moves=(Move(((0, 10),), InstanceId(1)),), why="busy")
    >>> decided(Routing.even(1), grown, 0, Routing.even).ranges
    (((10, 4096),), ((0, 10),))
    >>> decided(Routing.even(1), grown, 7, Routing.even).ranges
    (((0, 2048),), ((2048, 4096),))
    """
    instances = decision.instances if isinstance(decision, Rescale) else before.instances
    if decision.moves and before.epoch == epoch and not before.spread:
        after = routed(before, decision)
        if _few_ranges(after):
            return after
        if isinstance(decision, MoveSlots) and not before.units.cuts:
            after = routed(before, gathered(before, decision, work))
            if _few_ranges(after):
                return after
    return levelled(instances)


def _few_ranges(routing: Routing) -> bool:
    return max(len(ranges) for ranges in routing.ranges) <= RANGES_MAX


def gathered(before: Routing, decision: MoveSlots, work: Weights | None) -> MoveSlots:
    """Moves that shift as much work between the same instances as the decision does, but in neighbouring slots.

    >>> from headrace.control.decisions import Move
    >>> from headrace.ids import InstanceId, OperatorId
    >>> scattered = tuple((slot, slot + 1) for slot in range(0, 200, 2))
    >>> moves = MoveSlots(operator=OperatorId("sum"), moves=(Move(scattered, InstanceId(1)),), why="uneven")
    >>> gathered(Routing.even(2), moves, None).moves
    (Move(slots=((1948, 2048),), to=1),)
    """
    owners = before.table()
    wanted, weights = owners_after(owners, decision.moves), with_idle(np.zeros(SLOTS) if work is None else work)
    after = owners.copy()
    for giver in np.unique(owners[wanted != owners]):
        # The last slots of the giver go first, so that what is left stays together.
        mine = np.flatnonzero(owners == giver)[::-1]
        for taker in np.unique(wanted[(owners == giver) & (wanted != giver)]):
            amount = weights[(owners == giver) & (wanted == taker)].sum() * (1 + 1e-9)
            left = mine[after[mine] == giver]
            taken = left[np.cumsum(weights[left]) - weights[left] / 2 <= amount]
            after[taken] = taker
    return replace(decision, moves=moves_between(owners, after))


def required_autoscaler(autoscaler: Autoscaler | None) -> Autoscaler:
    """The autoscaler. Raises an error that says how to get one if the query has none."""
    if autoscaler is None:
        hint = 'start it with .writeStream.elastic(hr.Elastic(policy="elastic-manager", min=1, max=8))'
        raise QueryError(wanted="a query that is elastic", found="one that only changes by hand", hint=hint)
    return autoscaler


def decisions_of(autoscaler: Autoscaler | None, shed: tuple[Entry, ...] | None) -> tuple[Entry, ...]:
    """What a query's policy has decided, and what load shedding has (None without), oldest first. Raises an error if it has neither."""
    if autoscaler is None and shed is not None:
        return shed
    entries = required_autoscaler(autoscaler).decisions.entries
    return tuple(sorted((*entries, *shed), key=lambda entry: entry.at_s)) if shed else entries


def to_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Log entries as JSON, for the control endpoint."""
    return [entry.to_json() for entry in entries]
