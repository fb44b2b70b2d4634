"""From Spark's analysed plan to Headrace's graph.

The plan is cut at its stateful nodes. Below the lowest ones it stays what it is: a streaming DataFrame. A stateful node becomes a node of
the graph. The stateless nodes above it stay Spark's: they are applied, as one piece, to the results of each batch. A node that is not
listed here is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from headrace.errors import QueryError, UnsupportedError
from headrace.frontend import aggregates, duplicates, joins, limits, observations, user_states, watermarks, windows
from headrace.frontend.lowered import Lowered
from headrace.frontend.own import is_own, own_rows
from headrace.frontend.registry import lowered_by
from headrace.graph.nodes import Rows, SharedNode, UnionNode
from headrace.spark.logical import Logical, logical_plan, made_of
from headrace.spark.named import name_of
from headrace.spark.plan_ranks import covers, window_parts
from headrace.spark.pruned import Pruned
from headrace.spark.stateful import STATEFUL

BUILT_IN = (aggregates, duplicates, joins, limits, observations, user_states, watermarks, windows)
"""The modules that lower nodes. Importing a module registers its functions."""

WHOLE = {"Sort": "sort(...)", "GlobalLimit": "limit(...)", "LocalLimit": "limit(...)"}
"""Steps on the results of an aggregate that need all of them at once, which only complete mode has."""
PER_BATCH = {"FlatMapGroupsInPandas", "FlatMapGroupsInArrow", "FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow", "MapGroups", "CoGroup"}
"""Nodes that read several rows, but of one batch alone: Spark keeps nothing of them from batch to batch."""
_PIECES = {
    "FlatMapGroupsInPandas",
    "FlatMapGroupsInArrow",
    "Project",
    "Filter",
    "Generate",
    "Expand",
    "SubqueryAlias",
    "View",
    "ResolvedHint",
    "MapInPandas",
    "MapInArrow",
    "PythonMapInArrow",
}
_PIECES |= {"Repartition", "RepartitionByExpression", "RebalancePartitions", *WHOLE}
"""Stateless nodes with one input that mean the same on the results of a batch."""
_BESIDE_ROWS = ("CollectMetrics", "EventTimeWatermark")
"""Nodes that read rows for something else than their results."""
_STATIC_JOINS = ({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"}, {"Inner", "Cross", "RightOuter"})
"""Kinds of joins with a static DataFrame: with the stream on the left, and on the right. Others would need all rows of the stream."""


def has_state(frame: DataFrame) -> bool:
    """True if a DataFrame is a stream with an operator that keeps state and that is more than a limit."""
    return any(keeps_state(node) and node.kind not in WHOLE for node in logical_plan(frame).tree())


def keeps_state(node: Logical) -> bool:
    """True if a node, on a stream, reads several rows or keeps state between batches."""
    if not node.is_streaming:
        return False
    if is_own(node):
        return True
    if node.kind in PER_BATCH or (node.kind == "Sort" and not node.is_global_sort):
        return False
    return node.kind in STATEFUL or (node.kind == "Join" and all(child.is_streaming for child in node.children))


def lower(frame: DataFrame, where: str, mode: str = "append", *, panes: bool = True) -> Rows:
    """The rows of a streaming DataFrame, for a query in this output mode. Raises UnsupportedError for what Headrace cannot do.

    Without ``panes``, each row of a time window is kept in every window that it belongs to, as Spark does.
    """
    plan = logical_plan(frame)
    found = Lowerer(plan, where, mode, Pruned(plan), panes).lower(plan)
    return found.named(plan.column_names).rows


Known = dict[tuple[str, bool], list[tuple[Logical, Lowered]]]
_SHARED = "Aggregate"
"""The nodes that several DataFrames of a query may share."""
_TOGETHER: ContextVar[Known | None] = ContextVar("headrace-together", default=None)


@contextmanager
def together() -> Iterator[None]:
    """Inside, DataFrames are lowered for one query: an aggregate that several of them read becomes one operator."""
    token = _TOGETHER.set({})
    try:
        yield
    finally:
        _TOGETHER.reset(token)


@dataclass
class Lowerer:
    """Lowers the nodes of one plan."""

    plan: Logical
    where: str
    mode: str
    pruned: Pruned
    panes: bool = True
    _known: list[tuple[Logical, Lowered]] = field(default_factory=list)
    _tops: list[tuple[Logical, Logical]] = field(default_factory=list)

    def lower(self, node: Logical) -> Lowered:
        """The rows of a node."""
        if not any(keeps_state(each) for each in node.tree()):
            return Lowered(node, Rows(node.frame()), self.where)
        leaf = self._leaf(node)
        self._tops.append((leaf, node))
        if leaf.kind == "Union":
            lowered = self._union(leaf)
        else:
            lowered = self._stateful(leaf)
        lowered = self._named(lowered, [name for each in self._between(node, leaf) if (name := name_of(each)) is not None])
        found = lowered.after(node)
        whole = next((STATEFUL[each.kind] for each in self._between(node, leaf) if self._needs_all(each)), None)
        if whole is not None and leaf.kind == "Union":
            raise self._refused(node, f"{whole} of a union", "")
        return found if whole is None else replace(found, rows=replace(found.rows, whole=whole))

    def _named(self, lowered: Lowered, names: list[str]) -> Lowered:
        """The rows with the name that the user gave to the operator that they come from."""
        if not names:
            return lowered
        if lowered.rows.origin is None or isinstance(lowered.rows.origin, UnionNode | SharedNode):
            hint = "call hr.named on the results of the operator, before a union"
            wanted = "the results of one stateful operator"
            kind = "a union" if isinstance(lowered.rows.origin, UnionNode) else "rows of a source"
            raise QueryError(where=self.where, wanted=wanted, found=f"{kind} named {names[0]!r}", hint=hint)
        if len(set(names)) > 1:
            raise QueryError(where=self.where, wanted="one name for an operator", found=" and ".join(map(repr, names)))
        return replace(lowered, rows=replace(lowered.rows, name=names[0]))

    def above(self, node: Logical) -> Logical:
        """The node at the top of the stateless piece that reads this node's results; the node itself if several pieces do."""
        if sum(each.kind == node.kind and each.same_as(node) for each in self.plan.tree()) > 1:
            # One operator serves all of them, so what one of them leaves out must stay.
            return node
        return next((top for leaf, top in reversed(self._tops) if leaf is node), node)

    def is_named(self, node: Logical) -> bool:
        """True if the user has given a name to the operator, so that its state must not depend on the steps behind it."""
        top = self.above(node)
        return any(name_of(each) is not None for each in self._between(top, node))

    def used(self, node: Logical) -> tuple[frozenset[int], ...] | None:
        """For each input of a node: the ids of the columns that somebody uses; None if that is not known."""
        return self.pruned.inputs(node)

    def _leaf(self, node: Logical) -> Logical:
        """The first node below that is no stateless step."""
        while True:
            below = self._below(node)
            if below is None:
                return node
            node = below

    def _below(self, node: Logical) -> Logical | None:
        """The input of a stateless step; None for a stateful node, a union, and what reads rows without changing them."""
        if node.has_stream_in_subquery():
            raise self._refused(node, "a subquery over a stream", "join the two streams instead")
        if node.kind == "Window":
            return node.children[0] if self._needs_all(node) or self._goes_on(node) else None
        if node.kind in ("Union", *_BESIDE_ROWS) or (keeps_state(node) and not self._needs_all(node)):
            return None
        streaming = [child for child in node.children if child.is_streaming]
        if node.kind in _PIECES and len(node.children) == 1:
            return streaming[0]
        if node.kind == "Join" and len(streaming) == 1:
            if node.join_type in _STATIC_JOINS[0 if node.children[0].is_streaming else 1]:
                return streaming[0]
            raise self._refused(node, f"a {node.join_type} join of a stream with a DataFrame that is no stream", "")
        raise self._refused(node, f"{node.kind} on results of a stateful operator", "")

    def _needs_all(self, node: Logical) -> bool:
        """True if a step needs all results of the operator below at once, which it gets in complete mode."""
        if node.kind in WHOLE:
            return node.kind == "Sort" or (self.mode == "complete" and any(_shows_all(each) for each in node.tree()))
        below = (each for each in node.tree() if each.kind not in (*WHOLE, "Window"))
        return node.kind == "Window" and self.mode == "complete" and any(keeps_state(each) for each in below)

    def _goes_on(self, node: Logical) -> bool:
        """True if a window function reads the results of another, and gets each of its partitions whole: then it needs no state."""
        below = node.children[0]
        while below.kind in _PIECES and below.kind not in WHOLE and len(below.children) == 1:
            below = below.children[0]
        return below.kind == "Window" and covers(node, below)

    def _between(self, top: Logical, leaf: Logical) -> list[Logical]:
        nodes = []
        node = top
        while node is not leaf:
            nodes.append(node)
            below = self._below(node)
            assert below is not None
            node = below
        return nodes

    def _stateful(self, node: Logical) -> Lowered:
        if is_own(node):
            return own_rows(node, self.where)
        known = next((lowered for each, lowered in [*self._known, *self._shared()] if each.same_as(node)), None)
        if known is not None:
            return replace(known, plan=node)
        self._check_times(node)
        function = lowered_by(node.kind)
        if function is None:
            raise self._refused(node, STATEFUL.get(node.kind, node.kind), "")
        shared = node.kind == _SHARED and _TOGETHER.get() is not None
        # What others may share is lowered by itself: which columns are used below it must not depend on who reads its results.
        lowered = function(node, replace(self, plan=node, pruned=Pruned(node), _known=[], _tops=[]) if shared else self)
        self._known.append((node, lowered))
        if shared:
            self._shared().append((node, lowered))
        return lowered

    def _shared(self) -> list[tuple[Logical, Lowered]]:
        """What other DataFrames of the same query have that may be shared with them."""
        known = _TOGETHER.get()
        return [] if known is None else known.setdefault((self.mode, self.panes), [])

    def _check_times(self, node: Logical) -> None:
        """Refuse an operator on results of a window function that have an event time which these are not emitted by."""
        older = {each for child in node.children if child.is_streaming for each in _older_times(child)}
        if older:
            names = ", ".join(c.name for child in node.children for c in child.columns if c.id in older)
            found = f"a stateful operator on results of a window function that have other event times: {names}"
            raise self._refused(node, found, "drop these columns before it")

    def _union(self, node: Logical) -> Lowered:
        """The union of several inputs, of which at least one has state."""
        names = [f"c{at}" for at in range(len(node.columns))]
        inputs = []
        for child in node.children:
            rows = self.lower(child).named(names).rows
            if rows.whole is not None:
                raise self._refused(node, f"a union with the results of {rows.whole}", "")
            if rows.origin is None:
                # A streaming DataFrame becomes a node, so that its steps are recorded.
                rows = Rows(_empty(rows.frame), SharedNode(rows, self.where))
            inputs.append(rows)
        frame = _empty(node.frame()).toDF(*names)
        rows = Rows(frame, UnionNode(tuple(inputs), self.where), append_only=all(each.append_only for each in inputs))
        return Lowered(node, rows, self.where).named(node.column_names)

    def _refused(self, node: Logical, found: str, hint: str) -> UnsupportedError:
        return UnsupportedError(
            "Headrace cannot run this yet",
            where=self.where,
            found=found,
            hint=" or ".join(each for each in (hint, "run the query on Spark: option('headrace.fallback', 'spark')") if each),
        )


def _older_times(node: Logical) -> set[int]:
    """The ids of event times that may be older than the watermark when a row is emitted, because a window function has kept the row."""
    if node.kind == "Window":
        by = {part.column_id for part in window_parts(node).partition}
        return {each.id for each in node.columns if each.is_event_time and each.id not in by}
    streaming = [child for child in node.children if child.is_streaming]
    if node.kind == "Union":
        places = {at for child in streaming for at, each in enumerate(child.columns) if each.id in _older_times(child)}
        return {each.id for at, each in enumerate(node.columns) if at in places}
    if not streaming or (keeps_state(node) and node.kind not in WHOLE):
        return set()
    below = _older_times(streaming[0])
    return {each.id for each in node.columns if each.is_event_time and (each.id in below or made_of(node, each.id) & below)}


def _shows_all(node: Logical) -> bool:
    """True if a node gives all its results again in each batch of complete mode."""
    return node.kind in ("Aggregate", "Window") and node.is_streaming


def _empty(frame: DataFrame) -> DataFrame:
    """An empty DataFrame with the same columns. Event-time columns keep their watermark."""
    return frame.sparkSession.createDataFrame([], frame.schema)
