"""The watermark, by Spark's rules, read from Spark's own event-time nodes.

Spark's plan keeps its ``EventTimeWatermark`` nodes, whose statistics are filled while the batch runs. After the batch each node stands
at its greatest event time minus its delay, never going back; the query's watermark is the least over the nodes (or the greatest, if
the session says so), and a node that has seen no data since the query started counts as 0. One that has had no rows for long, while
others had, is left out, so that an idle source does not hold the others back for ever.

A node is known by the id that Spark gave it when it analysed the query. Its place in the physical plan is not fixed: Spark may wrap a
plan in stages (adaptive execution, cached tables), drop a branch without rows, or read one branch twice.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headrace.errors import InvariantError
from headrace.spark.gateway import class_name, items
from headrace.spark.trees import walk

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

IDLE_STEPS = 10
"""A source is idle only after this many batches without it, however far apart they are."""

Nodes = tuple[int | None, ...]
Path = tuple[int | tuple[str, ...], ...]
"""From the root of a physical plan to a node: the number of a child, or the methods that give the plan inside a leaf."""

_INNER = {
    "AdaptiveSparkPlanExec": ("executedPlan",),
    "ShuffleQueryStageExec": ("plan",),
    "BroadcastQueryStageExec": ("plan",),
    "TableCacheQueryStageExec": ("plan",),
    "ResultQueryStageExec": ("plan",),
    "ReusedExchangeExec": ("child",),
    "InMemoryTableScanExec": ("relation", "cachedPlan"),
}
"""Leaves of a physical plan that hold another one, and how to get at it."""


def clock_s() -> float:
    """Seconds that only go forward, and only while this machine runs."""
    return time.monotonic()


class EventTimes:
    """Spark's event-time nodes. Where they stand in the plan is kept between batches: each step from Python into the JVM takes its time."""

    def __init__(self) -> None:
        self._wanted: list[str] = []
        self._paths: list[Path] = []

    def observed(self, execution: Any) -> Nodes:
        """Per node of the analysed plan, the greatest event time of this batch minus the delay; None without data.

        ``execution`` is Spark's ``StreamExecution`` of the query, while one of its batches runs.
        """
        if not self._wanted:
            self._wanted = _ids_in(execution.logicalPlan())
        last = execution.lastExecution()
        plan = last.executedPlan()
        nodes = [_at(plan, path) for path in self._paths]
        if not nodes or not self._has_all(nodes):
            found = [(path, node) for path, node in _walk(plan, ()) if _is_event_time(node)]
            nodes = [node for _, node in found]
            self._check(nodes, last)
            # A batch without rows of one source may lack its node, which a later batch will have.
            self._paths = [path for path, _ in found] if self._has_all(nodes) else []
        reached: dict[str, int] = {}
        for node in nodes:
            stats, name = node.eventTimeStats().value(), _id(node)
            if stats.count() > 0:
                moment_ms = int(stats.max()) - int(node.delayMs())
                reached[name] = max(moment_ms, reached.get(name, moment_ms))
        return tuple(reached.get(name) for name in dict.fromkeys(self._wanted))

    def _has_all(self, nodes: list[Any]) -> bool:
        return all(map(_is_event_time, nodes)) and not Counter(self._wanted) - Counter(map(_id, nodes))

    def _check(self, nodes: list[Any], last: Any) -> None:
        """A node may be missing only where Spark's optimiser has removed it, with a branch that it knows to be empty."""
        ids = set(map(_id, nodes))
        missing = set(self._wanted) - ids
        if missing:
            missing &= set(_ids_in(last.optimizedPlan()))
        if self._wanted and not missing and ids <= set(self._wanted):
            return
        raise InvariantError(
            "the watermark cannot be read from Spark's plan, and without it no window would ever close",
            where="watermark",
            wanted=f"the {len(set(self._wanted))} withWatermark nodes of the query",
            found=f"{len(ids & set(self._wanted))} of them, and {len(ids - set(self._wanted))} others, in\n{last.executedPlan()}",
            hint='call spark.conf.set("spark.sql.adaptive.enabled", "false") before start; if that does not help, report this plan',
        )


def _ids_in(logical: Any) -> list[str]:
    return [_id(node) for node in walk(logical) if class_name(node) == "EventTimeWatermark"]


def _id(node: Any) -> str:
    return str(node.nodeId().toString())


def _is_event_time(node: Any) -> bool:
    return node is not None and class_name(node) == "EventTimeWatermarkExec"


def _walk(node: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """A physical plan's nodes, those inside stages and caches too, parents first."""
    yield path, node
    inner = _INNER.get(class_name(node))
    if inner is not None:
        yield from _walk(_inside(node, inner), (*path, inner))
        return
    for at, child in enumerate(items(node.children())):
        yield from _walk(child, (*path, at))


def _inside(node: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        node = getattr(node, name)()
    return node


def _at(node: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, int):
            children = node.children()
            if step >= children.size():
                return None
            node = children.apply(step)
        elif _INNER.get(class_name(node)) == step:
            node = _inside(node, step)
        else:
            return None
    return node


@dataclass(frozen=True)
class Watermark:
    """Where a query stands in event time after a batch."""

    reached_ms: int = 0
    nodes_ms: Nodes = ()
    idle: tuple[int, ...] = ()
    """Nodes that have had no row for so long that they hold nobody back."""


class Tracker:
    """The watermark of one run of a query.

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
