"""Decides whether to combine rows before the shuffle, for each operator from its last batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.compile.dataflow import Op
from headrace.config import Config
from headrace.ids import OperatorId, Slot
from headrace.runtime.reports import InstanceReport

SKEWED = 1.5
"""Rows are always combined if one slot has more than this many times an instance's even share of the rows."""
COMBINE_BELOW = 0.7
"""Rows are combined as long as less than this share of them is left to shuffle."""
LEARN_ROWS_MIN = 1000


@dataclass
class Combining:
    """What the batches so far have shown."""

    config: Config
    pays: dict[OperatorId, bool] = field(default_factory=dict)
    """By operator: True if combining leaves few enough rows."""

    def wanted(self, op: Op) -> bool:
        """True if an operator's rows shall be combined before the next shuffle."""
        choice = {"always": True, "never": False}.get(self.config.combine, self.pays.get(op.id, True))
        return choice and op.plan.many is not None

    def learn(self, op: Op, reports: list[InstanceReport]) -> None:
        """Find out from the reports of a batch whether combining pays for an operator."""
        rows = sum(r.rows for r in reports)
        if rows < LEARN_ROWS_MIN:
            return
        by_slot: Counter[Slot] = Counter()
        for report in reports:
            by_slot.update(dict(report.rows_per_slot))
        if len(reports) > 1 and max(by_slot.values()) > SKEWED * rows / len(reports):
            # A hot key. All cores combine its rows where they are read, and its owner gets one row from each map task.
            self.pays[op.id] = True
        elif self.wanted(op):
            self.pays[op.id] = sum(r.rows_shuffled for r in reports) < COMBINE_BELOW * rows
        else:
            self.pays[op.id] = sum(r.keys for r in reports) * max(1, len(reports)) < COMBINE_BELOW * rows / 2
