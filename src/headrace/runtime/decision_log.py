"""What a query's policy has decided, and which operators it may decide about.

The autoscaler writes decisions here. A change by hand takes its operators away from the policy until somebody gives them back. Several
threads read and write, so everything happens under one lock.
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
    """One for each query that is elastic."""

    def __init__(self, settings: Elastic) -> None:
        self.entries: tuple[Entry, ...] = ()
        """Oldest first; the same decision in a row is one entry."""
        self.governor = Governor(settings)
        """Says which decisions may be performed."""
        self._lock = threading.Lock()
        self._undrained: list[Entry] = []

    def note(self, entry: Entry) -> None:
        with self._lock:
            self.entries = logged(self.entries, entry)
            if self.entries[-1] is entry:
                self._undrained.append(entry)

    def drain(self) -> tuple[Entry, ...]:
        """The entries since the last call; a decision that only repeats the one before it is not among them."""
        with self._lock:
            drained, self._undrained = tuple(self._undrained), []
        return drained

    def changed(self, operator: OperatorId) -> None:
        """A decision about an operator was performed: its cool-down begins."""
        with self._lock:
            self.governor = self.governor.changed(operator, time.time())

    def is_overridden(self, operator: OperatorId) -> bool:
        """True if an operator was changed by hand, so that the policy must leave it alone."""
        return operator in self.governor.overridden

    def override(self, operators: Collection[OperatorId], why: str, routing: Mapping[OperatorId, Routing]) -> None:
        """Somebody changes operators by hand; the policy leaves them alone from now on."""
        with self._lock:
            self.governor = self.governor.override(operators)
        for name in operators:
            count = routing[name].instances
            text = f"{why}; no automatic changes of {name} until elastic_resume() or `headrace ctl CHECKPOINT auto`"
            self.note(Entry(time.time(), name, "change", Outcome.MANUAL, text, count, count))

    def resume(self, operators: Collection[OperatorId], routing: Mapping[OperatorId, Routing]) -> None:
        """Give operators that were changed by hand back to the policy."""
        with self._lock:
            returned = [name for name in operators if name in self.governor.overridden]
            self.governor = self.governor.resume(operators)
        for name in returned:
            count = routing[name].instances
            self.note(Entry(time.time(), name, "resume", Outcome.RESUMED, "the policy decides again", count, count))
