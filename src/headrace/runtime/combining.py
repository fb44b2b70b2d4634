"""Whether to combine rows before the shuffle, learned for each operator from its last batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.compile.dataflow import Op
from headrace.config import Config
from headrace.runtime.reports import InstanceReport

SKEWED = 1.5
"""A slot with more than so many times an instance's share of the rows is worth combining for, whatever that does to the other rows."""
COMBINE_BELOW = 0.7
"""Combine before the shuffle while it leaves less than this share of the rows."""
LEARN_ROWS_MIN = 1000


@dataclass
class Combining:
    """What was learned so far."""

    config: Config
    pays: dict[str, bool] = field(default_factory=dict)
    """By operator."""

    def wanted(self, op: Op) -> bool:
        choice = {"always": True, "never": False}.get(self.config.combine, self.pays.get(op.id, True))
        return choice and op.plan.combiner is not None

    def learn(self, op: Op, reports: list[InstanceReport]) -> None:
        rows = sum(r.rows for r in reports)
        if rows < LEARN_ROWS_MIN:
            return
        by_slot: Counter[int] = Counter()
        for report in reports:
            by_slot.update(dict(report.rows_per_slot))
        if len(reports) > 1 and max(by_slot.values()) > SKEWED * rows / len(reports):
            # A hot key: combined where its rows are read, on all cores, its owner gets one row from each.
            self.pays[op.id] = True
        elif self.wanted(op):
            self.pays[op.id] = sum(r.rows_shuffled for r in reports) < COMBINE_BELOW * rows
        else:
            self.pays[op.id] = sum(r.keys for r in reports) * max(1, len(reports)) < COMBINE_BELOW * rows / 2
