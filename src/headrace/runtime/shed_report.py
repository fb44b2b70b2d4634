"""What a batch dropped: for its progress, and for the policy that scales the query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.ids import OperatorId
from headrace.spark.task_times import Tags
from headrace.state.drops import Counted, Drop, Drops, ShedId


@dataclass(frozen=True)
class Shed:
    """What a batch dropped, for its progress."""

    drops: Drops | None
    counted: Mapping[ShedId, Counted]
    delivered: Mapping[str, float]
    """By sink: the share of its rows that were kept."""
    weights: Mapping[str, float]
    deadline_s: float | None
    expected_s: float
    """How long the batch was expected to take; 0 if that was not known."""
    lookup_us: float
    """How long it took to look up the plan, in microseconds."""
    offered: Mapping[OperatorId, float] = field(default_factory=dict)
    """By operator: rows that would have come to it, by rows that did."""
    tags: Tags = field(default_factory=dict)
    """By job that reads these rows: the tag under which Spark knows how long its tasks ran."""

    @property
    def arrived(self) -> int:
        """The most rows that arrived at one place."""
        return max((each.arrived for each in self.counted.values()), default=0)

    def to_json(self) -> dict[str, Any]:
        keep = {} if self.drops is None else self.drops.places
        places = {
            name: {"arrived": each.arrived, "shed": each.arrived - each.kept, "threshold": keep.get(name, Drop()).threshold}
            for name, each in self.counted.items()
        }
        return {
            "plan": None if self.drops is None else self.drops.plan,
            "places": places,
            "sinks": [{"sink": name, "weight": self.weights[name], "delivered": round(share, 6)} for name, share in self.delivered.items()],
            "deadlineMs": None if self.deadline_s is None else self.deadline_s * 1000,
            "expectedMs": round(self.expected_s * 1000, 1),
            "lookupUs": round(self.lookup_us, 1),
        }
