"""Which columns Spark would still read of a stateful operator's inputs, once its optimiser has dropped those that nobody uses.

Spark looks for the event time of an operator's rows among the columns that are left. If nobody uses the event time behind the operator,
it is not among them, and then no row is late.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from headrace.spark.gateway import class_name, items, java_session
from headrace.spark.logical import Logical
from headrace.spark.trees import walk


class Pruned:
    """The optimised form of a streaming plan. It is made when it is first needed."""

    def __init__(self, plan: Logical) -> None:
        self._plan = plan

    def inputs(self, node: Logical) -> tuple[frozenset[int], ...] | None:
        """For each input of a node of the plan: the ids of the columns that are left; None if the node is not found again."""
        wanted = [{each.id for each in child.columns} for child in node.children]
        found: list[frozenset[int]] | None = None
        for each in self._nodes.get(node.kind, ()):
            left = [frozenset(int(column.exprId().id()) for column in items(child.output())) for child in items(each.children())]
            if len(left) == len(wanted) and all(mine and mine <= theirs for mine, theirs in zip(left, wanted, strict=True)):
                # A query of a WITH clause may be used twice.
                found = left if found is None else [a | b for a, b in zip(found, left, strict=True)]
        return None if found is None else tuple(found)

    @cached_property
    def _nodes(self) -> dict[str, list[Any]]:
        """The nodes of the optimised plan, by class."""
        optimizer = java_session(self._plan.session).sessionState().optimizer()
        nodes: dict[str, list[Any]] = {}
        for node in walk(optimizer.execute(self._plan.node)):
            nodes.setdefault(class_name(node), []).append(node)
        return nodes
