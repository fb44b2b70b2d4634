"""The watermark, by Spark's rules, read from Spark's own event-time nodes.

Spark's plan keeps its ``EventTimeWatermark`` nodes, whose statistics are filled while the batch runs. After the batch each node stands
at its greatest event time minus its delay, never going back; the query's watermark is the least over the nodes (or the greatest, if
the session says so), and a node that has seen no data counts as 0. One that has had no rows for long is left out, so that an idle
source does not hold the others back for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Watermark:
    """Where a query stands in event time after a batch."""

    reached_ms: int = 0
    nodes_ms: Nodes = ()
    seen_ms: tuple[int, ...] = ()
    """Per node: when, by the clock, it last had a row, or the query's first batch ran."""
    idle: tuple[int, ...] = ()
    """Nodes that have had no row for so long that they hold nobody back."""


def advance(previous: Manifest | None, now: Nodes, policy: str, clock_ms: int = 0, idle_ms: float = 0) -> Watermark:
    """The watermark after a batch. A node without rows for longer than ``idle_ms`` counts only if all are so; 0 means never."""
    known = previous is not None and len(previous.watermark_nodes_ms) == len(now)
    before: Nodes = previous.watermark_nodes_ms if previous and known else (None,) * len(now)
    nodes = tuple(max((x for x in pair if x is not None), default=None) for pair in zip(before, now, strict=True))
    then = previous.watermark_seen_ms if previous and len(previous.watermark_seen_ms) == len(now) else (clock_ms,) * len(now)
    seen = tuple(clock_ms if node is not None else last for node, last in zip(now, then, strict=True))
    reached = previous.watermark_ms if previous else 0
    idle = tuple(at for at, last in enumerate(seen) if idle_ms and clock_ms - last > idle_ms)
    idle = idle if len(idle) < len(nodes) else ()
    if nodes:
        choose = max if policy == "max" else min
        reached = max(reached, choose(node if node is not None else 0 for at, node in enumerate(nodes) if at not in idle))
    return Watermark(reached, nodes, seen, idle)
