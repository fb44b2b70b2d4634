"""The recent work of each slot and of the heaviest keys, measured: what slots are levelled by.

The time of an instance's task is shared by its rows. So a slot whose rows are twice as expensive weighs twice as much, and an instance on
a slow machine counts as what it is. Times are not compared where they say nothing: in batches of a few milliseconds, and in the first
batch of a routing, which fetches state. There every row of the operator costs the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.ids import SLOTS, KeyHash, OperatorId, RoutingEpoch
from headrace.runtime.reports import InstanceReport
from headrace.state.levelling import Weights
from headrace.state.routing import Routing

MEMORY = 0.8
"""The weight of earlier work falls by this factor with every batch, so about the last five batches count."""
KEYS_MAX = 256
"""The number of heavy keys that are tracked per operator."""
TASK_S_MIN = 0.02
"""If tasks take less than this on average, the differences between them are mostly noise."""
APART_MAX = 8.0
"""A row costs at most this many times the average, and at least the average divided by it."""


@dataclass
class SlotWork:
    """The work of the last batches, in seconds."""

    slots: dict[OperatorId, Weights] = field(default_factory=dict)
    """By operator: recent work of each slot."""
    keys: dict[OperatorId, dict[KeyHash, float]] = field(default_factory=dict)
    """By operator: recent work by key hash, for the heaviest keys."""
    _epochs: dict[OperatorId, RoutingEpoch] = field(default_factory=dict)

    def observe(self, reports: Mapping[OperatorId, Sequence[InstanceReport]], routing: Mapping[OperatorId, Routing]) -> None:
        """Add the work of a batch."""
        for op, each in reports.items():
            epoch = routing[op].epoch
            costs = costs_per_row(each, measured=self._epochs.get(op) == epoch)
            self._epochs[op] = epoch
            seen = self.slots.setdefault(op, np.zeros(SLOTS))
            seen *= MEMORY
            for report, cost in zip(each, costs, strict=True):
                if report.rows_per_slot:
                    slots, rows = np.array(report.rows_per_slot).T
                    seen[slots] += rows * cost
            self.keys[op] = _heaviest(self.keys.get(op, {}), each, costs)


def costs_per_row(reports: Sequence[InstanceReport], measured: bool) -> list[float]:
    """Seconds per row in each of these tasks of one operator. If not ``measured``, rows of all tasks cost the same."""
    rows, wall_s = sum(report.rows for report in reports), sum(report.wall_s for report in reports)
    average = wall_s / rows if rows and wall_s else 1.0
    if not measured or wall_s < TASK_S_MIN * len(reports):
        return [average] * len(reports)
    each = (report.wall_s / report.rows if report.rows else average for report in reports)
    return [min(APART_MAX * average, max(average / APART_MAX, cost)) for cost in each]


def _heaviest(seen: Mapping[KeyHash, float], reports: Sequence[InstanceReport], costs: Sequence[float]) -> dict[KeyHash, float]:
    """The heaviest keys, with the work of another batch added."""
    found = {h: MEMORY * work for h, work in seen.items()}
    for report, cost in zip(reports, costs, strict=True):
        for h, rows in report.rows_per_hash:
            found[h] = found.get(h, 0.0) + rows * cost
    return dict(sorted(found.items(), key=lambda item: -item[1])[:KEYS_MAX])
