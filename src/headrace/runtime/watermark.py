"""The watermark, by Spark's rules, from the event times that ``spark/event_times.py`` reads.

After a batch, each ``withWatermark`` node is at its greatest event time minus its delay, and never goes back. The query's watermark is the
least of the nodes (or the greatest, if the session says so). A node that has seen no rows since the query started counts as 0. A node that
has had no rows for long, while others had, is idle and left out, so that it does not hold the others back for ever.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from headrace.spark.event_times import Nodes
from headrace.state.journal import Record

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

IDLE_STEPS = 10
"""A node is idle only after this many batches without its rows, however far apart they are."""


def clock_s() -> float:
    """A clock in seconds that never goes back, and stands still while this machine sleeps."""
    return time.monotonic()


@dataclass(frozen=True)
class Watermark:
    """The watermark of a query and of its nodes after a batch."""

    reached_ms: int = 0
    nodes_ms: Nodes = ()
    idle: tuple[int, ...] = ()
    """Nodes that have had no rows for so long that they are left out."""


class Pace(StrEnum):
    """When a watermark that a batch has moved takes effect."""

    AT_ONCE = "at once"
    AFTER_ROWS = "after rows"
    """As in Spark: after the rows of the next batch, if such a batch is known to come."""
    ONE_BATCH = "one batch"
    """The same, but Spark runs no batch without rows, so that it is always the next batch with rows."""


def noted(record: Record) -> Watermark:
    """The watermark that a version reached when it was first made."""
    facts = record.facts
    return Watermark(facts.watermark_ms, facts.watermark_nodes_ms, facts.watermark_idle)


class Tracker:
    """Computes the watermark of a query since its start.

    As in Spark, a restart forgets the watermarks of single nodes, but not that of the query. It also resets idle times. The idle time of a
    node counts from the first batch without its rows. While the query is down, or no source has rows, no idle time passes. If no source
    has rows, no batch comes, so a long time between two batches counts only in part.
    """

    def __init__(self, policy: str = "min", idle_s: float = 0) -> None:
        self._policy = policy
        self._choose = max if policy.lower() == "max" else min
        self._idle_s = idle_s
        self._nodes: Nodes = ()
        self._absent_s: tuple[float | None, ...] = ()
        """By node: for how long others have had rows while it had none; None if it had rows in the last batch."""
        self._begin_s = 0.0

    def fresh(self) -> Tracker:
        """A tracker by the same rules that has seen nothing, and takes no node for idle."""
        return Tracker(self._policy)

    def advance(self, before_ms: int, now: Nodes, begin_s: float) -> Watermark:
        """The watermark after a batch that began at ``begin_s``. Idle nodes count only if all are idle. With 0 idle seconds none is."""
        earlier = self._nodes or (None,) * len(now)
        absent = self._absent_s or (None,) * len(now)
        self._nodes = tuple(max((x for x in pair if x is not None), default=None) for pair in zip(earlier, now, strict=True))
        # Spark asks all sources when a batch begins. Rows that arrive while it runs belong to the next one.
        passed_s, self._begin_s = min(begin_s - self._begin_s, self._idle_s / IDLE_STEPS), begin_s
        self._absent_s = tuple(
            None if node is not None else 0.0 if waited is None else waited + passed_s for node, waited in zip(now, absent, strict=True)
        )
        idle = tuple(at for at, waited in enumerate(self._absent_s) if self._idle_s and waited is not None and waited >= self._idle_s)
        idle = idle if len(idle) < len(now) else ()
        return Watermark(self.of(before_ms, self._nodes, idle), self._nodes, idle)

    def of(self, before_ms: int, nodes: Nodes, idle: tuple[int, ...]) -> int:
        """The watermark of a query whose nodes are at these times."""
        return max(before_ms, self._choose(node or 0 for at, node in enumerate(nodes) if at not in idle)) if nodes else before_ms
