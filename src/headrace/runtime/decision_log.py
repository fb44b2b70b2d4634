"""The log of a policy's decisions, and the operators that the policy must leave alone.

The autoscaler writes decisions here. After a change by hand, the policy leaves the operator alone until ``elastic_resume``. Several threads
read and write, so everything happens under one lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping

from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Governor, Outcome, logged
from headrace.ids import OperatorId
from headrace.state.routing import Routing


class DecisionLog:
    """The decisions of one elastic query."""

    def __init__(self, settings: Elastic) -> None:
        self.entries: tuple[Entry, ...] = ()
        """Oldest first. Equal decisions in a row are one entry."""
        self.governor = Governor(settings)
        """Says which decisions may be performed."""
        self._lock = threading.Lock()
        self._undrained: list[Entry] = []

    def note(self, entry: Entry) -> None:
        """Add an entry to the log."""
        with self._lock:
            self.entries = logged(self.entries, entry)
            if self.entries[-1] is entry:
                self._undrained.append(entry)

    def drain(self) -> tuple[Entry, ...]:
        """The new entries since the last call, without those that only repeat an earlier decision."""
        with self._lock:
            drained, self._undrained = tuple(self._undrained), []
        return drained

    def changed(self, operator: OperatorId) -> None:
        """Begin the cool-down of an operator, because a decision about it was performed."""
        with self._lock:
            self.governor = self.governor.changed(operator, time.time())

    def is_overridden(self, operator: OperatorId) -> bool:
        """True if the operator was changed by hand, so that the policy must leave it alone."""
        return operator in self.governor.overridden

    def override(self, operators: Collection[OperatorId], why: str, routing: Mapping[OperatorId, Routing]) -> None:
        """Note that operators were changed by hand. The policy leaves them alone from now on."""
        with self._lock:
            self.governor = self.governor.override(operators)
        for name in operators:
            count = routing[name].instances
            text = f"{why}; no automatic changes of {name} until elastic_resume() or `headrace ctl auto CHECKPOINT`"
            self.note(Entry(time.time(), name, "change", Outcome.MANUAL, text, count, count))

    def resume(self, operators: Collection[OperatorId], routing: Mapping[OperatorId, Routing]) -> None:
        """Give operators that were changed by hand back to the policy."""
        with self._lock:
            returned = [name for name in operators if name in self.governor.overridden]
            self.governor = self.governor.resume(operators)
        for name in returned:
            count = routing[name].instances
            self.note(Entry(time.time(), name, "resume", Outcome.RESUMED, "the policy decides again", count, count))
