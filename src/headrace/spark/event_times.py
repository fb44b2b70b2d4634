"""Event times of a running batch, read from the ``EventTimeWatermark`` nodes of Spark's plans.

Spark fills the statistics of these nodes while a batch runs. A node is known by the id that Spark gave it in the analysed plan. Its
position in the physical plan changes: Spark may wrap a plan in stages (adaptive execution, cached tables), drop a branch without rows,
or read one branch twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from headrace.errors import InvariantError
from headrace.spark.gateway import class_name, items
from headrace.spark.trees import walk

Nodes = tuple[int | None, ...]
"""Per event-time node, its greatest event time minus its delay, in ms. None without rows."""
Path = tuple[int | tuple[str, ...], ...]
"""From the root of a physical plan to a node: the number of a child, or the methods that give the plan inside a leaf."""

INNER_PLANS = {
    "AdaptiveSparkPlanExec": ("executedPlan",),
    "ShuffleQueryStageExec": ("plan",),
    "BroadcastQueryStageExec": ("plan",),
    "TableCacheQueryStageExec": ("plan",),
    "ResultQueryStageExec": ("plan",),
    "ReusedExchangeExec": ("child",),
    "InMemoryTableScanExec": ("relation", "cachedPlan"),
}
"""Leaves of a physical plan that contain another plan, and the methods that return it."""


class EventTimes:
    """Reads a query's event times. It keeps the nodes' positions between batches, because every step into the JVM costs time."""

    def __init__(self) -> None:
        self._wanted: list[str] = []
        self._paths: list[Path] = []

    def observed(self, execution: Any) -> Nodes:
        """Per node of the analysed plan, the greatest event time of this batch minus the delay. None without rows.

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
            # If a source has no rows, its node may be missing from this batch, but not from a later one.
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
        """Raise unless all nodes were found. A node may be missing only if the optimiser removed it, with a branch known to be empty."""
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
    """A physical plan's nodes, including those inside stages and caches, parents first."""
    yield path, node
    inner = INNER_PLANS.get(class_name(node))
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
    """The node at a path, or None if the plan has another shape."""
    for step in path:
        if isinstance(step, int):
            children = node.children()
            if step >= children.size():
                return None
            node = children.apply(step)
        elif INNER_PLANS.get(class_name(node)) == step:
            node = _inside(node, step)
        else:
            return None
    return node
