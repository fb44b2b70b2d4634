"""Window functions in Spark's analysed plans: what they partition and order by, and how many rows of a partition are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.gateway import class_name, has_method, items, jvm_of, seq, singleton
from headrace.spark.logical import Expression, Logical
from headrace.spark.trees import conjuncts, without_shared_parts

RANKS = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}
"""Functions whose value for a row depends on the rows before it alone, so that the last rows of a partition need not be kept."""
_BOUNDS = {"LessThanOrEqual": 0, "LessThan": -1, "EqualTo": 0}
_TURNED = {"GreaterThanOrEqual": 0, "GreaterThan": -1, "EqualTo": 0}


@dataclass(frozen=True, eq=False)
class Order:
    """One of the expressions that a partition is ordered by."""

    expression: Expression
    descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class Wanted:
    """A bound on a rank: rows with a greater one are filtered out."""

    function: str
    """One of the values of ``RANKS``."""
    limit: int


@dataclass(frozen=True, eq=False)
class WindowParts:
    """A node that computes window functions."""

    node: Logical
    partition: tuple[Expression, ...]
    order: tuple[Order, ...]
    functions: tuple[str, ...]
    """The names of its functions: values of ``RANKS``, or Spark's own."""

    @property
    def only_ranks(self) -> bool:
        """True if all its functions are ranks."""
        return all(each in RANKS.values() for each in self.functions)

    def settled(self, ties: tuple[Expression, ...]) -> Logical:
        """The same node, in which ``ties`` decide the order of rows that are equal by the user's order.

        This is for ``row_number`` alone. With ``rank``, Spark's optimiser takes rows apart that are equal by the user's order.
        """
        session, node = self.node.session, self.node.node
        expressions = jvm_of(session).org.apache.spark.sql.catalyst.expressions
        upwards = singleton(expressions, "Ascending")
        none = seq(session, [])
        added = [expressions.SortOrder(each.node, upwards, upwards.defaultNullOrdering(), none) for each in ties]
        order = seq(session, [*items(node.orderSpec()), *added])
        more = [node.hint()] if has_method(node, "hint") else []
        return Logical(session, node.copy(node.windowExpressions(), node.partitionSpec(), order, node.child(), *more))


def window_parts(node: Logical) -> WindowParts:
    """The parts of a ``Window`` node."""
    session = node.session
    found = [each.child().windowFunction() for each in items(node.node.windowExpressions())]
    functions = [each.aggregateFunction() if class_name(each) == "AggregateExpression" else each for each in found]
    return WindowParts(
        node,
        tuple(Expression(session, each) for each in items(node.node.partitionSpec())),
        tuple(_order(session, each) for each in items(node.node.orderSpec())),
        tuple(RANKS.get(class_name(each), str(each.prettyName())) for each in functions),
    )


def covers(node: Logical, lower: Logical) -> bool:
    """True if each partition of a ``Window`` node lies within one of another below, whose columns it must still have."""
    mine, theirs = ([Expression(each.session, part) for part in items(each.node.partitionSpec())] for each in (node, lower))
    return all(any(part.same_as(own) for own in mine) for part in theirs)


def wanted_rows(parts: WindowParts, top: Logical) -> Wanted | None:
    """How many rows of each partition pass the filters above, up to the node ``top``. None if this cannot be told, or there is no bound."""
    if not parts.only_ranks or not parts.order:
        return None
    path: list[Logical] = []
    node = top
    while node is not parts.node:
        path.append(node)
        if len(node.children) != 1:
            # A join with a table. The filters below it still count.
            path, node = [], next(child for child in node.children if child.is_streaming)
        else:
            node = node.children[0]
    added = parts.node.columns[-len(parts.functions) :]
    ranks = {column.id: function for column, function in zip(added, parts.functions, strict=True)}
    for each in reversed(path):
        if each.kind == "Project":
            ranks |= _renamed(each, ranks)
        elif each.kind == "Filter":
            found = _bound(each, ranks)
            if found is not None:
                return found
        elif each.kind not in ("SubqueryAlias", "View", "ResolvedHint"):
            return None
    return None


def _order(session: SparkSession, order: Any) -> Order:
    return Order(
        Expression(session, order.child()),
        class_name(order.direction()) == "Descending$",
        class_name(order.nullOrdering()) == "NullsFirst$",
    )


def _renamed(project: Logical, ranks: dict[int, str]) -> dict[int, str]:
    """The ranks that a projection gives another name."""
    aliases = (each for each in items(project.node.projectList()) if class_name(each) == "Alias")
    shown = ((int(each.exprId().id()), Expression(project.session, each.child()).column_id) for each in aliases)
    return {name: ranks[rank] for name, rank in shown if rank is not None and rank in ranks}


def _bound(node: Logical, ranks: dict[int, str]) -> Wanted | None:
    """The bound on a rank that a filter has."""
    session = node.session
    for each in conjuncts(without_shared_parts(session, node.node.condition())):
        name = class_name(each)
        for table, column, value in ((_BOUNDS, 0, 1), (_TURNED, 1, 0)):
            if name not in table:
                continue
            rank, limit = Expression(session, each.children().apply(column)).column_id, each.children().apply(value)
            if rank in ranks and limit.foldable() and limit.deterministic() and (found := limit.eval(None)) is not None:
                return Wanted(ranks[rank], max(0, int(found) + table[name]))
    return None
