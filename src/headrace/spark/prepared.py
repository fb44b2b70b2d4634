"""Plans that are built in the same way for every batch: built once on empty leaves, then only the leaves are replaced.

Building a DataFrame takes several calls to the JVM and an analysis by Spark for every step, tens of milliseconds in all. A graph with a few
unions has dozens of steps. So the plan is built on empty leaves and kept, already analysed. If nothing in it depends on the time of
optimisation, it is optimised too, which merges steps and drops unused columns. A batch only rebuilds the nodes between leaves and root.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.errors import require
from headrace.spark.gateway import class_name, items, seq_maker
from headrace.spark.plans import Binding, analyzed, can_be_optimized_early, frame_of, optimized
from headrace.spark.trees import walk

Frames = Mapping[str, DataFrame]
"""The leaves of a plan: DataFrames by name."""
Build = Callable[[Frames], DataFrame]


@dataclass(frozen=True)
class _Leaf:
    name: str
    binding: Binding


@dataclass(frozen=True)
class _Inner:
    """A node with leaves below it. Children without leaves are Spark's own nodes, which are used again as they are."""

    node: Any
    children: tuple[Any, ...]


class Prepared:
    """The plan that ``build`` makes, with placeholders for the leaves."""

    def __init__(self, build: Build, leaves: Frames, session: SparkSession) -> None:
        # A template is recognised by the number of its RDD, even if Spark gives its columns new ids.
        templates = {name: session.createDataFrame([], frame.schema) for name, frame in leaves.items()}
        self._names = {analyzed(frame).rdd().id(): name for name, frame in templates.items()}
        frame = build(templates)
        plan = analyzed(frame)
        there = {node.rdd().id() for node in walk(plan) if class_name(node) == "LogicalRDD"}
        missing = [name for number, name in self._names.items() if number not in there]
        require(not missing, f"every leaf has a place in the plan that is built on it; missing: {', '.join(missing)}")
        self.constant = bool(plan.deterministic())
        """False if the plan has random expressions. Their seeds are fixed already, so every batch would get the same numbers."""
        self._root = self._with_places(session, optimized(frame) if can_be_optimized_early(session, plan) else plan)

    def on(self, leaves: Frames, session: SparkSession) -> DataFrame:
        """The plan on these leaves, as a DataFrame."""
        filling = _Filling({name: analyzed(frame) for name, frame in leaves.items()}, seq_maker(session))
        return frame_of(session, filling.node(self._root), analyzed=True)

    def _with_places(self, session: SparkSession, node: Any) -> Any:
        if class_name(node) == "LogicalRDD" and node.rdd().id() in self._names:
            return _Leaf(self._names[node.rdd().id()], Binding(session, node))
        children = tuple(self._with_places(session, child) for child in items(node.children()))
        return _Inner(node, children) if any(isinstance(child, _Leaf | _Inner) for child in children) else node


class _Filling:
    """Replaces the placeholders of a plan by the leaves of one batch."""

    def __init__(self, leaves: dict[str, Any], to_seq: Callable[[list[Any]], Any]) -> None:
        self._leaves = leaves
        self._to_seq = to_seq
        self._bound: dict[Hashable, Any] = {}

    def node(self, node: Any) -> Any:
        if isinstance(node, _Leaf):
            key = (node.name, node.binding.ids)
            if key not in self._bound:
                self._bound[key] = node.binding.to(self._leaves[node.name])
            return self._bound[key]
        if isinstance(node, _Inner):
            return node.node.withNewChildren(self._to_seq([self.node(child) for child in node.children]))
        return node
