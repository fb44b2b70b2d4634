"""What a part of a plan becomes: rows of Headrace's graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame

from headrace.compile.nodes import compile_node
from headrace.config import Config
from headrace.errors import UnsupportedError
from headrace.graph.nodes import Rows, StatefulNode
from headrace.graph.steps import FunctionStep
from headrace.operators.kernel import OutputMode
from headrace.spark.logical import Logical, Region


@dataclass(frozen=True)
class Lowered:
    """A node of a plan as rows. The rows have the node's columns in the node's order; their names may differ."""

    plan: Logical
    rows: Rows
    where: str

    def after(self, top: Logical) -> Lowered:
        """The rows after the stateless steps from this node up to ``top``."""
        if top is self.plan:
            return self
        region = Region(top, self.plan)
        step = FunctionStep(" then ".join(steps_between(top, self.plan)) or "as", region.apply, self.where)
        return Lowered(top, self.rows.after(step, region.apply(self.rows.frame)), self.where)

    def named(self, names: Sequence[str]) -> Lowered:
        """The same rows with these names of columns."""
        if list(names) == self.rows.columns:
            return self

        def rename(rows: DataFrame) -> DataFrame:
            return rows.toDF(*names)

        return Lowered(self.plan, self.rows.after(FunctionStep("named", rename, self.where), rename(self.rows.frame)), self.where)

    def filtered(self, condition: Column) -> Lowered:
        """The rows that meet a condition on their names."""

        def keep(rows: DataFrame) -> DataFrame:
            return rows.filter(condition)

        return Lowered(self.plan, self.rows.after(FunctionStep("filter", keep, self.where), keep(self.rows.frame)), self.where)

    def uniquely_named(self, taken: Iterable[str] = ()) -> Lowered:
        """The same rows with names that differ from one another, and from those that are taken, by more than case."""
        return self.named(unique_names(self.rows.columns, taken))


def unique_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Names that differ by more than case. A number is appended to those that are taken.

    >>> unique_names(["id", "ID", "id_2", "n"], taken=["n"])
    ['id', 'ID_2', 'id_2_2', 'n_2']
    """
    known = {name.lower() for name in taken}
    found = []
    for name in names:
        free, number = name, 2
        while free.lower() in known:
            free, number = f"{name}_{number}", number + 1
        known.add(free.lower())
        found.append(free)
    return found


def steps_between(top: Logical, leaf: Logical) -> list[str]:
    """The user's names for the steps from a node up to another, the lowest first."""
    names: list[str] = []
    node = top
    while node is not leaf:
        if node.kind in STEP_NAMES:
            names.append(STEP_NAMES[node.kind])
        node = next(child for child in node.children if any(each is leaf for each in child.tree()))
    return names[::-1]


STEP_NAMES = {
    "Project": "select",
    "Filter": "filter",
    "Join": "join with a DataFrame",
    "Generate": "explode",
    "Sort": "sort",
    "GlobalLimit": "limit",
    "Expand": "expand",
    "MapInPandas": "mapInPandas",
    "MapInArrow": "mapInArrow",
}
"""The user's names for stateless steps. Others change no row."""


def results_of(node: StatefulNode) -> Rows:
    """The rows of a node's results. Compiles the node, so that what it cannot do is known at once."""
    if not all(each.append_only for each in node.inputs):
        raise UnsupportedError(
            "its results change with every batch, so what is computed from them would have to be taken back",
            where=node.where,
            found="a stateful operator on the results of an aggregate without a window",
            hint="group the first aggregate by F.window(...) with a watermark, so that each of its results is final",
        )
    for each in node.inputs:
        if each.whole is not None:
            hint = "only steps without state may follow it"
            raise UnsupportedError(where=node.where, found=f"a stateful operator on the results of {each.whole}", hint=hint)
    plan = compile_node(node, Config())
    empty = node.inputs[0].session.createDataFrame([], plan.results.schema)
    return Rows(empty, node, append_only=OutputMode.APPEND in plan.timing.modes)
