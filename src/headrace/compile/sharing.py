"""Reading a source once for all streams of a query that use it: the steps in which the streams differ are done on the batch.

``e.filter(a)`` and ``e.filter(b)`` are two streaming DataFrames over one source, and Spark would read the source for each. Their common
part ``e`` becomes the source of the query, and the filters become steps of its readers. A step moves to the batch only if it means the same
there. Watermarks do not move, because their statistics belong to the streaming plan; nor do random expressions or the batch's time.
Two calls of ``load()`` are two sources, even if they read the same folder: Spark keeps offsets for each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.compile.plan_text import is_without_code, lines
from headrace.spark import gateway, plans, trees

_STEPS = {"Project", "Filter", "Generate", "SubqueryAlias", "Join"}


@dataclass(frozen=True)
class Rest:
    """The steps of a streaming DataFrame that are done on the batch, after the part that it shares with other streams."""

    frame: DataFrame
    """The streaming DataFrame with all its steps."""
    base: DataFrame
    """The shared part, as it occurs in `frame`."""
    method: str = "steps on rows of a shared source"
    where: str = ""

    def apply(self, rows: DataFrame) -> DataFrame:
        plan = plans.substitute(self.frame.sparkSession, plans.analyzed(self.frame), [(self.base, rows)])
        return plans.frame_of(rows.sparkSession, plan)

    def __str__(self) -> str:
        base = plans.analyzed(self.base)
        steps = lines(self.frame.sparkSession, plans.analyzed(self.frame), lambda node: [] if node.equals(base) else None)
        return "; ".join(reversed(steps))


def anchor(frame: DataFrame) -> Any:
    """The part of a streaming DataFrame's plan that must stay in the streaming plan."""
    return _chain(frame)[-1]


def shared(frames: dict[str, DataFrame]) -> tuple[dict[str, DataFrame], dict[str, tuple[str, Rest | None]]]:
    """The sources to read; and for each stream that shares one, the source to read and the steps that remain."""
    chains = {name: _chain(frame) for name, frame in frames.items()} if len(frames) > 1 else {name: [] for name in frames}
    groups: list[list[str]] = []
    for name, chain in chains.items():
        mine = next((group for group in groups if _same(frames[name].sparkSession, chains[group[0]][-1], chain[-1])), None)
        groups.append([name]) if mine is None else mine.append(name)
    sources: dict[str, DataFrame] = {}
    found: dict[str, tuple[str, Rest | None]] = {}
    for first, *others in groups:
        if not others:
            sources[first], found[first] = frames[first], (first, None)
            continue
        session = frames[first].sparkSession
        depth = _depth_in_common(session, [chains[name] for name in (first, *others)])
        sources[first] = plans.frame_of(session, chains[first][-depth])
        for name in (first, *others):
            whole = depth == len(chains[name])
            found[name] = (first, None if whole else Rest(frames[name], plans.frame_of(session, chains[name][-depth])))
    return sources, found


def _chain(frame: DataFrame) -> list[Any]:
    """The nodes from the root of a plan down to the first step that must stay in the streaming plan, that one included."""
    stay = trees.patterns(frame.sparkSession, trees.MOMENTARY)
    node = plans.analyzed(frame)
    chain = [node]
    while (child := _below(node, stay)) is not None:
        chain.append(child)
        node = child
    return chain


def _below(node: Any, stay: list[Any]) -> Any | None:
    """The input of a step that may move to the batch; None if the step must stay."""
    if gateway.class_name(node) not in _STEPS:
        return None
    if not all(each.deterministic() and not any(each.containsPattern(p) for p in stay) for each in gateway.items(node.expressions())):
        return None
    children = list(gateway.items(node.children()))
    streaming = [child for child in children if child.isStreaming()]
    static = [child for child in children if not child.isStreaming()]
    if len(streaming) != 1 or any(not each.deterministic() or any(each.containsPattern(p) for p in stay) for each in static):
        return None
    return streaming[0]


def _depth_in_common(session: SparkSession, chains: list[list[Any]]) -> int:
    """How many nodes, counted from the lowest one, are the same in all chains."""
    depth = 1
    for nodes in list(zip(*(reversed(chain) for chain in chains), strict=False))[1:]:
        if not all(_same(session, nodes[0], node) for node in nodes[1:]):
            break
        depth += 1
    return depth


def _same(session: SparkSession, one: Any, other: Any) -> bool:
    """True if two plans give the same rows of the same source in the same columns.

    Spark decides, after the ids of watermark nodes are made equal. Comparing texts would not do: they are the same for ``explode`` and
    ``explode_outer``, and for two columns with one name.
    """
    if one.equals(other):
        return True
    mine, theirs = ([node for node in trees.walk(plan) if not node.children().size()] for plan in (one, other))
    if len(mine) != len(theirs) or not all(a.equals(b) for a, b in zip(mine, theirs, strict=True)):
        return False
    if not is_without_code(one) or not is_without_code(other) or one.schema().json() != other.schema().json():
        return False
    alike = plans.with_equal_watermark_ids
    return bool(alike(session, one).sameResult(alike(session, other)))
