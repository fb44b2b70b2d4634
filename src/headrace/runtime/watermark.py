"""The watermark, by Spark's rules, read from Spark's own event-time nodes.

Spark's plan keeps its ``EventTimeWatermark`` nodes, whose statistics are filled while the batch runs. After the batch each node stands
at its greatest event time minus its delay, never going back; the query's watermark is the least over the nodes (or the greatest, if
the session says so), and a node that has seen no data counts as 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace.compile.catalyst import class_name, items
from headrace.state.manifest import Manifest

Nodes = tuple[int | None, ...]


class EventTimes:
    """Spark's event-time nodes. Where they stand in the plan is found once: each step from Python into the JVM takes its time."""

    def __init__(self) -> None:
        self._paths: list[tuple[int, ...]] | None = None

    def observed(self, executed_plan: Any) -> Nodes:
        """Per node, in plan order, the greatest event time of this batch minus the delay; None without data."""
        nodes = [_at(executed_plan, path) for path in self._paths or ()]
        if self._paths is None or not all(map(_is_event_time, nodes)):
            found = [(path, node) for path, node in _walk(executed_plan, ()) if _is_event_time(node)]
            self._paths, nodes = [path for path, _ in found], [node for _, node in found]
        return tuple(_reached(node) for node in nodes)


def _reached(node: Any) -> int | None:
    stats = node.eventTimeStats().value()
    return int(stats.max()) - int(node.delayMs()) if stats.count() > 0 else None


def _is_event_time(node: Any) -> bool:
    return node is not None and class_name(node) == "EventTimeWatermarkExec"


def _walk(node: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Any]]:
    yield path, node
    for at, child in enumerate(items(node.children())):
        yield from _walk(child, (*path, at))


def _at(node: Any, path: tuple[int, ...]) -> Any | None:
    for at in path:
        children = node.children()
        if at >= children.size():
            return None
        node = children.apply(at)
    return node


def advance(previous: Manifest | None, now: Nodes, policy: str) -> tuple[int, Nodes]:
    """The query's watermark after a batch, and where each node stands."""
    before: Nodes = previous.watermark_nodes_ms if previous and len(previous.watermark_nodes_ms) == len(now) else (None,) * len(now)
    nodes = tuple(max((x for x in pair if x is not None), default=None) for pair in zip(before, now, strict=True))
    reached = previous.watermark_ms if previous else 0
    if nodes:
        choose = max if policy == "max" else min
        reached = max(reached, choose(node if node is not None else 0 for node in nodes))
    return reached, nodes
