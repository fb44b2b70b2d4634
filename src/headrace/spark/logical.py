"""Spark's analysed plan of a user's query, as a tree that the front end walks: kinds, children, columns, and bound expressions.

The front end decides what becomes of a node. It never sees a JVM object: nodes and expressions are handles, and everything it decides by
is a plain value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from headrace.errors import require
from headrace.spark.expressions import WATERMARK_KEY, column, data_type, expression_maker, quoted
from headrace.spark.gateway import class_name, items, seq_maker
from headrace.spark.plans import Binding, Plan, analyzed, frame_of
from headrace.spark.trees import SUBQUERY, conjuncts, contains_any, patterns, rewrite, walk, without_shared_parts

QUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
"""Classes of expressions that are a query of their own."""


@dataclass(frozen=True, eq=False)
class Expression:
    """An analysed expression of a plan."""

    session: SparkSession
    node: Any

    @cached_property
    def column_id(self) -> int | None:
        """The id of the column that it is; None if it is more than a column."""
        return int(self.node.exprId().id()) if class_name(self.node) == "AttributeReference" else None

    @property
    def sql(self) -> str:
        """The expression as SQL."""
        return str(self.node.sql())

    @property
    def type(self) -> DataType:
        """Its type."""
        return data_type(self.node)

    @property
    def is_deterministic(self) -> bool:
        """True if it gives the same whenever it is evaluated."""
        return bool(self.node.deterministic())

    @cached_property
    def column_ids(self) -> frozenset[int]:
        """The ids of all columns in it."""
        return frozenset(int(each.exprId().id()) for each in walk(self.node) if class_name(each) == "AttributeReference")

    def conjuncts(self) -> list[Expression]:
        """The conditions that must all be true for this one to be true."""
        return [Expression(self.session, each) for each in conjuncts(without_shared_parts(self.session, self.node))]

    def same_as(self, other: Expression) -> bool:
        """True if Spark takes both for the same."""
        return bool(self.node.semanticEquals(other.node))


@dataclass(frozen=True)
class PlanColumn:
    """An output column of a node."""

    name: str
    id: int
    type: DataType
    delay_ms: int | None
    """The delay of its watermark; None if it is no event time."""

    @property
    def is_event_time(self) -> bool:
        """True if a watermark is defined on it."""
        return self.delay_ms is not None


@dataclass(frozen=True, eq=False)
class Logical(Plan):
    """A node of an analysed plan."""

    @cached_property
    def kind(self) -> str:
        """The name of its class in Spark."""
        return class_name(self.node)

    @cached_property
    def children(self) -> tuple[Logical, ...]:
        """The nodes that it reads."""
        return tuple(Logical(self.session, each) for each in items(self.node.children()))

    @cached_property
    def is_streaming(self) -> bool:
        """True if it reads a stream."""
        return bool(self.node.isStreaming())

    @cached_property
    def columns(self) -> tuple[PlanColumn, ...]:
        """Its output columns."""
        return tuple(_column(each) for each in items(self.node.output()))

    @cached_property
    def output(self) -> tuple[Expression, ...]:
        """Its output columns, as expressions."""
        return tuple(Expression(self.session, each) for each in items(self.node.output()))

    @cached_property
    def column_names(self) -> list[str]:
        """The names of its output columns, which need not differ."""
        return [str(each.name()) for each in items(self.node.output())]

    @property
    def join_type(self) -> str:
        """The kind of a ``Join``, such as "LeftOuter"."""
        return str(self.node.joinType().toString())

    @property
    def limit(self) -> int | None:
        """The number of rows of a ``GlobalLimit``; None if it is no constant."""
        expression = self.node.limitExpr()
        return int(expression.eval(None)) if expression.foldable() else None

    @property
    def observation(self) -> tuple[str, list[str]]:
        """The name of a ``CollectMetrics``, and the names of its measures, which are its expressions."""
        return str(self.node.name()), [str(each.name()) for each in items(self.node.metrics())]

    @property
    def event_time_place(self) -> int:
        """For an ``EventTimeWatermark``: the place of its event time among the columns."""
        return [each.id for each in self.columns].index(int(self.node.eventTime().exprId().id()))

    @property
    def is_global_sort(self) -> bool:
        """For a ``Sort``: True if all rows are sorted, False if each partition is sorted by itself."""
        return bool(getattr(self.node, "global")())

    def tree(self) -> Iterator[Logical]:
        """The node and all nodes below, parents first."""
        yield self
        for child in self.children:
            yield from child.tree()

    def same_as(self, other: Logical) -> bool:
        """True if both are the same node, with the same column ids."""
        return self.node is other.node or bool(self.node.equals(other.node))

    @cached_property
    def expressions(self) -> tuple[Expression, ...]:
        """The expressions of this node alone."""
        return tuple(Expression(self.session, each) for each in items(self.node.expressions()))

    def has_stream_in_subquery(self) -> bool:
        """True if an expression of this node contains a query of a stream, or one that cannot be looked into."""
        wanted = patterns(self.session, (SUBQUERY,))
        with_queries = [each.node for each in self.expressions if contains_any(each.node, wanted)]
        return any(not _has_static_queries(each) for each in with_queries)


def logical_plan(frame: DataFrame) -> Logical:
    """The analysed plan of a DataFrame. The queries of WITH clauses are put where they are used."""
    session, plan = frame.sparkSession, analyzed(frame)
    if contains_any(plan, patterns(session, ("CTE",))):
        plan = _inlined(session, plan, {})
    return Logical(session, plan)


def _inlined(session: SparkSession, plan: Any, queries: dict[int, Any]) -> Any:
    """A plan with the queries of WITH clauses in the place of their references. ``queries`` are those known so far, by id."""

    def replacement(node: Any) -> Any | None:
        if class_name(node) == "WithCTE":
            for each in items(node.cteDefs()):
                queries[int(each.id())] = _inlined(session, each.child(), queries)
            return _inlined(session, node.plan(), queries)
        if class_name(node) == "CTERelationRef":
            known = queries.get(int(node.cteId()))
            return None if known is None else Binding(session, node).to(known)
        return None

    return rewrite(session, plan, replacement)


def _column(attribute: Any) -> PlanColumn:
    metadata = attribute.metadata()
    delay = int(metadata.getLong(WATERMARK_KEY)) if metadata.contains(WATERMARK_KEY) else None
    return PlanColumn(str(attribute.name()), int(attribute.exprId().id()), data_type(attribute), delay)


def _has_static_queries(expression: Any) -> bool:
    """True if all queries in an expression read static DataFrames only, and no query of a WITH clause."""
    queries = [part.plan() for part in walk(expression) if class_name(part) in QUERIES]
    static = (not plan.isStreaming() and all(class_name(node) != "CTERelationRef" for node in walk(plan)) for plan in queries)
    return bool(queries) and all(static)


class Region:
    """A piece of a plan from one node down to another: steps of Spark's, to be applied to the rows of any DataFrame.

    The rows take the place of the lower node. They have its columns, in its order; names and ids need not agree. Both nodes belong to
    one tree.
    """

    def __init__(self, top: Logical, leaf: Logical) -> None:
        session = top.session
        path: list[tuple[Any, int]] = []
        node = top
        while node is not leaf:
            at = next(at for at, child in enumerate(node.children) if any(each is leaf for each in child.tree()))
            path.append((node.node, at))
            node = node.children[at]
        self._path = list(reversed(path))
        self._binding = Binding(session, leaf.node)
        self._to_seq = seq_maker(session)

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows after the steps."""
        plan = self._binding.to(analyzed(rows))
        for node, at in self._path:
            children = list(items(node.children()))
            children[at] = plan
            plan = node.withNewChildren(self._to_seq(children))
        return frame_of(rows.sparkSession, plan)


def by_position(expression: Expression, columns: Sequence[PlanColumn], frame: DataFrame) -> Column:
    """The expression over columns of a node, as a column over a DataFrame that has the node's columns in the same order."""
    output = list(items(analyzed(frame).output()))
    require(len(output) == len(columns), "a lowered plan has the columns of the plan that it stands for")
    ids = {mine.id: theirs for mine, theirs in zip(columns, output, strict=True)}
    return column(expression.session, _renamed(expression, lambda each: ids.get(each)))


def by_name(expression: Expression, names: Mapping[int, str]) -> Column:
    """The expression, as a column over any DataFrame. ``names`` has the DataFrame's name for each column, by id."""
    session = expression.session
    to_expression = expression_maker(session)
    plain = Expression(session, without_shared_parts(session, expression.node))
    return column(session, _renamed(plain, lambda each: to_expression(F.col(quoted(names[each]))) if each in names else None))


def _renamed(expression: Expression, of: Callable[[int], Any]) -> Any:
    def replacement(node: Any) -> Any | None:
        return of(int(node.exprId().id())) if class_name(node) == "AttributeReference" else None

    return rewrite(expression.session, expression.node, replacement)


def made_of(node: Logical, column: int) -> frozenset[int]:
    """The ids of the columns that a projection computes one of its columns from; none if it only passes it on, or is no projection."""
    named = [each for each in node.expressions if node.kind == "Project" and class_name(each.node) == "Alias"]
    return next((each.column_ids for each in named if int(each.node.exprId().id()) == column), frozenset())


def key_places(node: Logical) -> list[int]:
    """For the keys of a ``Deduplicate`` node, the places of these columns in its input."""
    ids = [each.id for each in node.children[0].columns]
    return [ids.index(int(each.exprId().id())) for each in items(node.node.keys())]
