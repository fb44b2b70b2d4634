"""The watermark, by Spark's rules, read from Spark's own event-time nodes.

Spark's plan keeps its ``EventTimeWatermark`` nodes, whose statistics are filled while the batch runs. After the batch each node stands
at its greatest event time minus its delay, never going back; the query's watermark is the least over the nodes (or the greatest, if
the session says so), and a node that has seen no data counts as 0.
"""

from __future__ import annotations

from typing import Any

from headrace.compile.catalyst import class_name, walk
from headrace.state.manifest import Manifest

Nodes = tuple[int | None, ...]


def observed(executed_plan: Any) -> Nodes:
    """Per node, in plan order, the greatest event time of this batch minus the delay; None without data."""
    found: list[int | None] = []
    for node in walk(executed_plan):
        if class_name(node) == "EventTimeWatermarkExec":
            stats = node.eventTimeStats().value()
            found.append(int(stats.max()) - int(node.delayMs()) if stats.count() > 0 else None)
    return tuple(found)


def advance(previous: Manifest | None, now: Nodes, policy: str) -> tuple[int, Nodes]:
    """The query's watermark after a batch, and where each node stands."""
    before: Nodes = previous.watermark_nodes_ms if previous and len(previous.watermark_nodes_ms) == len(now) else (None,) * len(now)
    nodes = tuple(max((x for x in pair if x is not None), default=None) for pair in zip(before, now, strict=True))
    reached = previous.watermark_ms if previous else 0
    if nodes:
        choose = max if policy == "max" else min
        reached = max(reached, choose(node if node is not None else 0 for node in nodes))
    return reached, nodes
