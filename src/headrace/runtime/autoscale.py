"""The autoscaler: lets a policy follow the load of a running query.

    batch ends -> observe -> decide -> judge -> change the routing between two batches

It works in a thread of its own. The loop hands over what a batch did and goes on; a change waits for the batch that runs, as one by
hand does. While no batch comes the query is looked at once a period, so that a stream that has gone quiet gives up what it does not need.

What a policy decides is how many instances there are and, if it says so, who owns which slots. Its moves are made as they are, unless
they would scatter slots over instances: state is kept by ranges of slots, and a thousand little ranges would cost every batch more than
a slot out of place. Then the routing deals the slots out by the work seen in them, in few ranges, as it does for ``rescale``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.control.decisions import Decision, MoveSlots, Rescale, routed
from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Outcome, entry_of
from headrace.control.observing import Batch, observe
from headrace.errors import HeadraceError, QueryError
from headrace.ids import RoutingEpoch
from headrace.logs import logger
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.elastic import LiveRouting
from headrace.runtime.progress import BatchProgress
from headrace.state.routing import Routing

_log = logger(__name__)

RANGES_MAX = 16
"""Ranges of slots that an instance may have by a policy's moves."""


@dataclass
class Autoscaler:
    """One for each query that is elastic."""

    settings: Elastic
    live: LiveRouting
    decisions: DecisionLog
    is_idle: Callable[[], bool]
    """True if the query has nothing to do: neither a batch, nor what Spark does before and after one."""
    batches: list[Batch] = field(default_factory=list)
    """As far back as a period goes; the thread's own."""
    inbox: deque[BatchProgress] = field(default_factory=deque)
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

    def offer(self, progress: BatchProgress) -> None:
        """A batch has ended. Called by the loop, which does not wait for anything."""
        self.inbox.append(progress)
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
        """Decide, if there is enough to decide from."""
        came = self._read()
        if not self.batches:
            return
        last = self.batches[-1]
        if not came and (self.live.lock.locked() or not self.is_idle()):
            # A long batch is no idleness, nor is a long way to the next one.
            return
        seen, routing = self.batches, self.live.routing
        if last.epochs != tuple(routing[each.operator].epoch for each in last.operators):
            # Changed since: how busy it was says nothing of how it is now. That nothing came says that it is idle.
            seen = [last.resting(routing)]
        observation = observe(seen, last.end_s if came else at_s, self.settings.period_s)
        if observation is None:
            return
        decisions, self._memory = self._policy.decide(observation, self._memory)
        for decision in decisions:
            self._follow(decision, observation.at_s)

    def _read(self) -> bool:
        """Take in what came, and forget what is too old to matter."""
        came = False
        while self.inbox:
            progress = self.inbox.popleft()
            if not progress.replayed:
                self.batches.append(Batch.read(progress.headrace()))
                came = True
        if came:
            since_s = self.batches[-1].end_s - self.settings.period_s
            old = sum(batch.end_s <= since_s for batch in self.batches)
            # The last of the old ones says when the others began.
            del self.batches[: max(0, old - 1)]
        return came

    def _follow(self, decision: Decision, at_s: float) -> None:
        operator = getattr(decision, "operator", None)
        before = self.live.routing[operator].instances if operator in self.live.routing else 0
        outcome, why = self.decisions.governor.judge(decision, at_s), ""
        if outcome is Outcome.PERFORMED and isinstance(decision, Rescale | MoveSlots):
            outcome, why = self._perform(decision)
            # Also where nothing came of it: asked again at once, the answer would be the same.
            self.decisions.changed(decision.operator)
        entry = entry_of(decision, outcome, before, at_s)
        self.decisions.note(entry if not why else Entry(**{**vars(entry), "why": f"{entry.why}; {why}"}))

    def _perform(self, decision: Rescale | MoveSlots) -> tuple[Outcome, str]:
        name = decision.operator
        seen = self.live.routing[name]

        def change(before: Routing) -> Routing:
            if self.decisions.is_overridden(name):
                return before
            return decided(before, decision, seen.epoch, lambda count: self.live.levelled(name, before, count))

        try:
            changed = self.live.perform(name, f"{self.settings.policy}: {decision.why}", change)
        except HeadraceError as refused:
            _log.warning("a decision was refused: %s", refused, query=self.live.checkpoint.location, operator=name)
            return Outcome.FAILED, str(refused)
        if changed:
            return Outcome.PERFORMED, ""
        if self.decisions.is_overridden(name):
            return Outcome.OVERRIDDEN, "it was changed by hand meanwhile"
        return Outcome.UNCHANGED, "the work seen in slots lately is dealt out as evenly as it can be"


def decided(before: Routing, decision: Rescale | MoveSlots, epoch: RoutingEpoch, levelled: Callable[[int], Routing]) -> Routing:
    """The routing that a decision, made when the routing had this epoch, leads to; ``levelled`` deals slots out by their work.

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
        if max(len(ranges) for ranges in after.ranges) <= RANGES_MAX:
            return after
    return levelled(instances)


def of_query(autoscaler: Autoscaler | None) -> Autoscaler:
    """The autoscaler, or an error that says how to get one."""
    if autoscaler is None:
        hint = 'start it with .writeStream.elastic(hr.Elastic(policy="elastic-manager", min=1, max=8))'
        raise QueryError(wanted="a query that is elastic", found="one that only changes by hand", hint=hint)
    return autoscaler


def to_json(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [entry.to_json() for entry in entries]
