"""The aggregate nodes of Spark's analysed plans: grouping expressions, the aggregate calls in the results, and the results around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from headrace.spark.expressions import column, expression_maker, quoted, text, without_alias
from headrace.spark.gateway import class_name, items
from headrace.spark.logical import Expression, Logical
from headrace.spark.trees import rewrite, walk, without_shared_parts

_ROW_COUNT = "rows"


@dataclass(frozen=True, eq=False)
class AggregateParts:
    """An aggregate, divided into what the operator computes and what is computed from its results."""

    node: Logical
    groups: tuple[Expression, ...]
    """The distinct grouping expressions."""
    group_names: tuple[str, ...]
    """For each of them a name: that of the column in the results which shows it, if there is one."""
    calls: tuple[Expression, ...]
    """The distinct aggregate calls in the results."""
    call_names: tuple[str, ...]
    results: tuple[Expression, ...]
    """The output columns: expressions over grouping expressions and calls."""

    def shown(self, group_names: Sequence[str], call_names: Sequence[str]) -> list[Column]:
        """The output columns, over a DataFrame that has groups and calls under these names."""
        session = self.node.session
        to_expression = expression_maker(session)
        groups = [(group.node, to_expression(F.col(quoted(name)))) for group, name in zip(self.groups, group_names, strict=True)]
        calls = {text(call.node): to_expression(F.col(quoted(name))) for call, name in zip(self.calls, call_names, strict=True)}

        def replacement(node: Any) -> Any | None:
            if class_name(node) == "AggregateExpression":
                return calls[text(node)]
            return next((shown for group, shown in groups if group.semanticEquals(node)), None)

        columns = []
        for result, wanted in zip(self.results, self.node.columns, strict=True):
            rewritten = rewrite(session, without_shared_parts(session, without_alias(result.node)), replacement)
            columns.append(column(session, rewritten).alias(wanted.name))
        return columns

    def plain_groups(self) -> list[tuple[int, int]]:
        """For each output column that is a grouping column as it was: the id of the output column and that of the column below.

        Empty if a call is not deterministic: then it matters which rows are there.
        """
        grouped = {group.column_id for group in self.groups}
        if not all(call.is_deterministic for call in self.calls):
            return []
        ids = [Expression(self.node.session, without_alias(each.node)).column_id for each in self.results]
        return [(column.id, own) for column, own in zip(self.node.columns, ids, strict=True) if own is not None and own in grouped]

    def is_plain(self) -> bool:
        """True if the results are the groups and then the calls, each once, and there is a call."""
        wanted = [*(group.node for group in self.groups), *(call.node for call in self.calls)]
        found = [without_alias(each.node) for each in self.results]
        return bool(self.calls) and len(wanted) == len(found) and all(a.semanticEquals(b) for a, b in zip(wanted, found, strict=True))


def aggregate_parts(node: Logical) -> AggregateParts:
    """The parts of an ``Aggregate``, or of a ``Distinct``, which groups by all its columns."""
    session = node.session
    if node.kind == "Distinct":
        columns = tuple(Expression(session, each) for each in items(node.node.output()))
        return AggregateParts(node, columns, tuple(node.column_names), (), (), columns)
    groups: list[Expression] = []
    for each in items(node.node.groupingExpressions()):
        group = Expression(session, without_alias(each))
        if not any(group.same_as(known) for known in groups):
            groups.append(group)
    results = [Expression(session, each) for each in items(node.node.aggregateExpressions())]
    calls: dict[str, Any] = {}
    names: dict[str, str] = {}
    for result in results:
        for part in walk(result.node):
            if class_name(part) == "AggregateExpression" and text(part) not in calls:
                calls[text(part)] = part
                whole = without_alias(result.node)
                names[text(part)] = str(result.node.name()) if whole.equals(part) else str(part.aggregateFunction().prettyName())
    group_names = [next((str(r.node.name()) for r in results if without_alias(r.node).semanticEquals(g.node)), "") for g in groups]
    return AggregateParts(
        node,
        tuple(groups),
        tuple(name or f"key_{at + 1}" for at, name in enumerate(group_names)),
        tuple(Expression(session, call) for call in calls.values()),
        tuple(names.values()),
        tuple(results),
    )
