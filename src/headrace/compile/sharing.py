"""Reading a source once for all streams of a query that use it: the steps in which the streams differ are done on the batch.

``e.filter(a)`` and ``e.filter(b)`` are two streaming DataFrames over one source, and Spark would read the source for each. Their common
part ``e`` becomes the source of the query, and the filters become steps of its readers. A step moves to the batch only if it means the same
there. Watermarks do not move, because their statistics belong to the streaming plan; nor do random expressions or the batch's time.
Two calls of ``load()`` are two sources, even if they read the same folder: Spark keeps offsets for each.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame

from headrace.spark.plan_text import lines
from headrace.spark.plans import Plan, substituted
from headrace.spark.steps import chain, same_rows


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
        return substituted(self.frame, [(self.base, rows)])

    def __str__(self) -> str:
        return "; ".join(reversed(lines(self.frame, known=(self.base, []))))


def streaming_part(frame: DataFrame) -> Plan:
    """The part of a streaming DataFrame's plan that must stay in the streaming plan."""
    return chain(frame)[-1]


def shared_sources(frames: dict[str, DataFrame]) -> tuple[dict[str, DataFrame], dict[str, tuple[str, Rest | None]]]:
    """The sources to read; and for each stream that shares one, the source to read and the steps that remain."""
    chains = {name: chain(frame) for name, frame in frames.items()} if len(frames) > 1 else {name: [] for name in frames}
    groups: list[list[str]] = []
    for name, parts in chains.items():
        mine = next((group for group in groups if same_rows(chains[group[0]][-1], parts[-1])), None)
        groups.append([name]) if mine is None else mine.append(name)
    sources: dict[str, DataFrame] = {}
    found: dict[str, tuple[str, Rest | None]] = {}
    for first, *others in groups:
        if not others:
            sources[first], found[first] = frames[first], (first, None)
            continue
        depth = _depth_in_common([chains[name] for name in (first, *others)])
        sources[first] = chains[first][-depth].frame()
        for name in (first, *others):
            whole = depth == len(chains[name])
            found[name] = (first, None if whole else Rest(frames[name], chains[name][-depth].frame()))
    return sources, found


def _depth_in_common(chains: list[list[Plan]]) -> int:
    """How many plans, counted from the lowest one, are the same in all chains."""
    depth = 1
    for plans in list(zip(*(reversed(each) for each in chains), strict=False))[1:]:
        if not all(same_rows(plans[0], plan) for plan in plans[1:]):
            break
        depth += 1
    return depth
