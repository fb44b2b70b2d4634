"""Which decisions of a policy are performed: cool-down, dry run, manual override, and a log of every decision with its reason.

    decisions -> judge -> performed, or the reason why not -> log

After a change an operator is left alone for the cool-down. An operator that somebody has changed by hand is left alone until it is given
back to the policy. Decisions that are not performed are logged too. A decision that repeats is one entry with a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from headrace.control.decisions import Decision, MoveSlots, Nothing, ReleaseExecutors, RequestExecutors, Rescale, Shed
from headrace.control.elastic import Elastic
from headrace.control.wording import counted, percent
from headrace.ids import OperatorId

ENTRIES_MAX = 500
"""The log keeps this many entries."""


class Outcome(StrEnum):
    """What happened to a decision."""

    STEADY = "steady"
    """The decision was to change nothing."""
    PERFORMED = "performed"
    """The routing was changed."""
    COOLING_DOWN = "cooling down"
    """Not performed: the operator was changed less than the cool-down ago."""
    OVERRIDDEN = "overridden"
    """Not performed: somebody has changed the operator by hand."""
    DRY_RUN = "dry run"
    """Not performed: the user asked for decisions without changes."""
    UNCHANGED = "unchanged"
    """Performed, but the slots were assigned like this already."""
    FAILED = "failed"
    """The change was tried, and failed."""
    UNSUPPORTED = "not supported"
    """Not performed: running queries cannot do this."""
    MANUAL = "by hand"
    """No decision of the policy: somebody has changed the operator."""
    RESUMED = "resumed"
    """An operator was given back to the policy."""


@dataclass(frozen=True)
class Entry:
    """A decision in the log; ``query.decisions()`` returns them."""

    at_s: float
    """When it was made, in seconds since the epoch."""
    operator: OperatorId | None
    """The operator that it is about; None if it is about all."""
    what: str
    """The kind of decision, in words."""
    outcome: Outcome
    """What became of it."""
    why: str
    """The reason, with figures."""
    instances_before: int
    """The number of instances before."""
    instances: int
    """The number of instances decided on; the same as before if only slots move or nothing changes."""
    times: int = 1
    """How often the decision was made in a row."""
    last_s: float = 0.0
    """When it was made last. The reason is that of the last time."""

    def to_json(self) -> dict[str, Any]:
        """The entry as a JSON object, as ``headrace ctl decisions CHECKPOINT --json`` prints it."""
        return {
            "atS": round(self.at_s, 3),
            "lastS": round(max(self.at_s, self.last_s), 3),
            "operator": self.operator,
            "what": self.what,
            "outcome": str(self.outcome),
            "instancesBefore": self.instances_before,
            "instances": self.instances,
            "why": self.why,
            "times": self.times,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Entry:
        """The entry that ``to_json`` turned into ``body``."""
        name = None if body["operator"] is None else OperatorId(body["operator"])
        numbers = body["instancesBefore"], body["instances"], body["times"], body["lastS"]
        return cls(body["atS"], name, body["what"], Outcome(body["outcome"]), body["why"], *numbers)

    def repeats(self, before: Entry) -> bool:
        """True if this entry is to be counted with the one before. Entries that changed nothing count as equal if only numbers differ."""
        if (self.operator, self.outcome) != (before.operator, before.outcome):
            return False
        if self.outcome in (Outcome.STEADY, Outcome.COOLING_DOWN, Outcome.OVERRIDDEN):
            return True
        same = (self.what, self.instances_before, self.instances) == (before.what, before.instances_before, before.instances)
        return same and self.outcome is not Outcome.PERFORMED


@dataclass(frozen=True)
class Governor:
    """Judges decisions by the settings and by earlier changes."""

    settings: Elastic
    changed_at_s: Mapping[OperatorId, float] = field(default_factory=dict)
    """When a decision last changed each operator."""
    overridden: frozenset[OperatorId] = frozenset()

    def judge(self, decision: Decision, at_s: float) -> Outcome:
        """PERFORMED if the decision may be performed now; otherwise the reason why not."""
        if isinstance(decision, Nothing):
            return Outcome.STEADY
        if not isinstance(decision, Rescale | MoveSlots):
            return Outcome.UNSUPPORTED
        if decision.operator in self.overridden:
            return Outcome.OVERRIDDEN
        if self.settings.dry_run:
            return Outcome.DRY_RUN
        changed_at_s = self.changed_at_s.get(decision.operator)
        if changed_at_s is not None and at_s - changed_at_s < self.settings.cooldown_s:
            return Outcome.COOLING_DOWN
        return Outcome.PERFORMED

    def changed(self, operator: OperatorId, at_s: float) -> Governor:
        return replace(self, changed_at_s={**self.changed_at_s, operator: at_s})

    def override(self, operators: Iterable[OperatorId]) -> Governor:
        return replace(self, overridden=self.overridden | frozenset(operators))

    def resume(self, operators: Iterable[OperatorId]) -> Governor:
        return replace(self, overridden=self.overridden - frozenset(operators))


def entry_of(decision: Decision, outcome: Outcome, instances: int, at_s: float) -> Entry:
    """The log entry of a decision about an operator with this many instances."""
    operator = getattr(decision, "operator", None)
    match decision:
        case Rescale(instances=wanted):
            what = "scale out" if wanted > instances else "scale in"
        case MoveSlots(moves=moves):
            wanted, what = instances, f"move {counted(round(sum(hi - lo for move in moves for lo, hi in move.slots)), 'slot')}"
        case Shed(instance=instance, keep=keep):
            wanted, what = instances, f"keep {percent(keep)} of the rows of instance {instance}"
        case RequestExecutors(total=total):
            wanted, what = instances, f"have {counted(total, 'executor')}"
        case ReleaseExecutors(count=count):
            wanted, what = instances, f"release {counted(count, 'executor')}"
        case _:
            wanted, what = instances, "nothing"
    return Entry(at_s, operator, what, outcome, decision.why, instances, wanted, last_s=at_s)


def logged(log: tuple[Entry, ...], entry: Entry) -> tuple[Entry, ...]:
    """The log with one more entry. An entry that repeats the last one of its operator raises the count of that one.

    >>> quiet = Entry(1.0, OperatorId("sum"), "nothing", Outcome.STEADY, "CPU 0.51", 2, 2)
    >>> (one,) = logged(logged((), quiet), replace(quiet, at_s=2.0, why="CPU 0.52"))
    >>> one.at_s, one.last_s, one.times, one.why
    (1.0, 2.0, 2, 'CPU 0.52')
    """
    last = next((at for at in range(len(log) - 1, -1, -1) if log[at].operator == entry.operator), None)
    if last is None or not entry.repeats(log[last]):
        return (*log, entry)[-ENTRIES_MAX:]
    again = replace(entry, at_s=log[last].at_s, times=log[last].times + 1, last_s=entry.at_s)
    return (*log[:last], again, *log[last + 1 :])
