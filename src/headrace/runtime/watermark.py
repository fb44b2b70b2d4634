"""The watermark, by Spark's rules, from the event times that ``spark/event_times.py`` reads.

After a batch each ``withWatermark`` node stands at its greatest event time minus its delay, and never goes back. The query's watermark is
the least over the nodes (or the greatest, if the session says so). A node that has seen no rows since the query started counts as 0. One
that has had no rows for long, while others had, is left out, so that an idle source does not hold the others back for ever.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from headrace.spark.event_times import Nodes

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

IDLE_STEPS = 10
"""A source is idle only after this many batches without it, however far apart they are."""


def clock_s() -> float:
    """Seconds that only go forward, and only while this machine runs."""
    return time.monotonic()


@dataclass(frozen=True)
class Watermark:
    """Where a query stands in event time after a batch."""

    reached_ms: int = 0
    nodes_ms: Nodes = ()
    idle: tuple[int, ...] = ()
    """Nodes that have had no row for so long that they hold nobody back."""


class Tracker:
    """The watermark of one start of a query.

    As in Spark, what a single node has reached is forgotten when the query stops; the query's watermark is not. The idle clock too
    starts anew. It runs from the first batch in which a node has no rows: while the query is down, or no source has rows, nobody waits.
    That no source has rows shows only in that no batch comes, so the time between two batches counts no more than a part of all.
    """

    def __init__(self, policy: str = "min", idle_s: float = 0) -> None:
        self._choose = max if policy.lower() == "max" else min
        self._idle_s = idle_s
        self._nodes: Nodes = ()
        self._absent_s: tuple[float | None, ...] = ()
        """For how long others have had rows while a node had none; None for one that had some in the last batch."""
        self._begin_s = 0.0

    def advance(self, before_ms: int, now: Nodes, begin_s: float) -> Watermark:
        """The watermark after a batch that began at ``begin_s``. A node that is idle counts only if all are; 0 seconds: none ever is."""
        earlier = self._nodes or (None,) * len(now)
        absent = self._absent_s or (None,) * len(now)
        self._nodes = tuple(max((x for x in pair if x is not None), default=None) for pair in zip(earlier, now, strict=True))
        # All sources were asked when the batch began. What came while it ran belongs to the next one.
        passed_s, self._begin_s = min(begin_s - self._begin_s, self._idle_s / IDLE_STEPS), begin_s
        self._absent_s = tuple(
            None if node is not None else 0.0 if waited is None else waited + passed_s for node, waited in zip(now, absent, strict=True)
        )
        idle = tuple(at for at, waited in enumerate(self._absent_s) if self._idle_s and waited is not None and waited >= self._idle_s)
        idle = idle if len(idle) < len(now) else ()
        reached_ms = before_ms
        if now:
            reached_ms = max(before_ms, self._choose(node or 0 for at, node in enumerate(self._nodes) if at not in idle))
        return Watermark(reached_ms, self._nodes, idle)
