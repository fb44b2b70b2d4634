"""Joins of two streams in Spark's analysed plans: equal keys, the other conditions, and how long Spark keeps the rows of either side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.expressions import WATERMARK_KEY
from headrace.spark.gateway import class_name, items, jvm_of, none, seq, singleton
from headrace.spark.logical import QUERIES, Expression, Logical
from headrace.spark.trees import conjuncts, rewrite, walk, without_shared_parts

PRESERVED = {"left": 0, "right": 1, "semi": 0}
"""By kind of join: the side whose columns come out of the join as they were. A filter behind the join on these alone is moved before it."""
HOW = {"Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full", "LeftSemi": "semi"}
"""Spark's kinds of joins that two streams may have."""
_PROBE_MS = 10**12


@dataclass(frozen=True, eq=False)
class JoinParts:
    """A join of two streams."""

    how: str
    """One of the values of `HOW`; another word is Spark's name of a kind that it does not have for two streams."""
    left: Logical
    right: Logical
    keys: tuple[tuple[Expression, Expression], ...]
    """The expressions that must be equal, over the columns of the left and of the right side."""
    condition: Expression | None
    """The other conditions."""
    conjuncts: tuple[Expression, ...]
    """The same, one by one."""
    keep_ms: tuple[int | None, int | None]
    """For each side: a row is forgotten when the watermark has passed its event time by this much; None: never."""
    bounds_others: bool
    """True if a bound is on a column that is not the event time, so that it says nothing about the event times of a pair."""
    dropped: tuple[Expression, ...]
    """For a join that preserves one side: conditions behind the join on this side alone, by which Spark drops its rows before the join."""
    time_key: int | None
    """The number of the key by whose event time Spark forgets the rows of both sides; None if it goes by `keep_ms`."""


def join_parts(node: Logical, filters: tuple[Expression, ...] = ()) -> JoinParts:
    """The parts of a ``Join``. ``filters`` are conditions that all its results must meet; Spark makes them part of an inner join."""
    session, join = node.session, node.node
    how = HOW.get(str(join.joinType().toString()), str(join.joinType().sql()).lower())
    left, right = node.children
    own = [] if join.condition().isEmpty() else [join.condition().get()]
    whole = _all_of(session, own + [each.node for each in filters if how == "inner"])
    whole = None if whole is None else without_shared_parts(session, whole)
    keys, others = _divided(session, whole, left, right)
    times = {each.id for side in (left, right) for each in side.columns if each.is_event_time}
    condition, on_times = (
        _all_of(session, others),
        _all_of(session, [each for each in others if Expression(session, each).column_ids <= times]),
    )
    time_key = next((at for side in (0, 1) for at, pair in enumerate(keys) if _is_event_time(pair[side])), None)
    keep: tuple[int | None, int | None] = (None, None)
    implied = keep
    if time_key is None:
        keep, implied = ((_keep_ms(session, left, right, each), _keep_ms(session, right, left, each)) for each in (condition, on_times))
    return JoinParts(
        how,
        left,
        right,
        tuple((Expression(session, a), Expression(session, b)) for a, b in keys),
        None if condition is None else Expression(session, condition),
        tuple(Expression(session, each) for each in others),
        keep,
        any(mine is not None and sure is None for mine, sure in zip(keep, implied, strict=True)),
        _dropped(how, node, filters),
        time_key,
    )


def _dropped(how: str, node: Logical, filters: tuple[Expression, ...]) -> tuple[Expression, ...]:
    if how not in PRESERVED:
        return ()
    own = {each.id for each in node.children[PRESERVED[how]].columns}
    return tuple(part for each in filters for part in each.conjuncts() if part.column_ids and part.column_ids <= own)


@dataclass(frozen=True, eq=False)
class SidePart:
    """A part of a condition that reads one side alone, so that it can be computed before the join."""

    side: int
    expression: Expression
    id: int
    """The id of the column that stands for it in the condition."""


def computed_by_side(condition: Expression, left: Logical, right: Logical) -> tuple[Expression, tuple[SidePart, ...]]:
    """A condition in which columns stand for its largest parts that read one side alone, and these parts."""
    session = condition.session
    alias = jvm_of(session).org.apache.spark.sql.catalyst.expressions.Alias
    own = [frozenset(each.id for each in side.columns) for side in (left, right)]
    parts: list[SidePart] = []

    def replacement(node: Any) -> Any | None:
        part = Expression(session, node)
        side = next((at for at, ids in enumerate(own) if part.column_ids and part.column_ids <= ids), None)
        if side is None or part.column_id is not None or not part.is_deterministic:
            return None
        named = alias(node, "part", _new_id(session), seq(session, []), none(session), seq(session, []))
        parts.append(SidePart(side, part, int(named.exprId().id())))
        return named.toAttribute()

    return Expression(session, rewrite(session, condition.node, replacement)), tuple(parts)


def _new_id(session: SparkSession) -> Any:
    """A new id for a column."""
    return singleton(jvm_of(session).org.apache.spark.sql.catalyst.expressions, "NamedExpression").newExprId()


def _all_of(session: SparkSession, conditions: list[Any]) -> Any | None:
    both = jvm_of(session).org.apache.spark.sql.catalyst.expressions.And
    found = None
    for each in conditions:
        found = each if found is None else both(found, each)
    return found


def filters_above(top: Logical, join: Logical) -> tuple[Expression, ...]:
    """The conditions of the filters in a piece of a plan above a join that the join's own columns decide."""
    found: list[Expression] = []
    ids = {each.id for each in join.columns}
    node = top
    while node is not join:
        if node.kind == "Filter":
            each = node.expressions[0]
            if each.is_deterministic and each.column_ids <= ids and not node.has_stream_in_subquery() and not _has_query(each.node):
                found.append(each)
        elif node.kind not in ("Project", "SubqueryAlias", "View"):
            found = []
        if len(node.children) != 1:
            return ()
        node = node.children[0]
    # A later condition may hold only for rows that meet an earlier one.
    return tuple(reversed(found))


def _has_query(expression: Any) -> bool:
    return any(class_name(part) in QUERIES or "Python" in class_name(part) for part in walk(expression))


def _divided(session: SparkSession, condition: Any, left: Logical, right: Logical) -> tuple[list[tuple[Any, Any]], list[Any]]:
    """The pairs of expressions that must be equal, left and right, and all other conditions."""
    if condition is None:
        return [], []
    expressions = jvm_of(session).org.apache.spark.sql.catalyst.expressions
    mine, theirs = ({each.id for each in side.columns} for side in (left, right))
    keys: list[tuple[Any, Any]] = []
    others: list[Any] = []
    for each in conjuncts(condition):
        pair = _pair(session, each, mine, theirs) if class_name(each) in ("EqualTo", "EqualNullSafe") else None
        if pair is None:
            others.append(each)
        elif class_name(each) == "EqualTo":
            keys.append(pair)
        else:
            # Spark does the same: two nulls are equal, so a default takes their place, and whether it does is a key too.
            defaults = [expressions.Literal.default(pair[0].dataType()) for _ in pair]
            keys.append(tuple(_coalesced(session, x, d) for x, d in zip(pair, defaults, strict=True)))
            keys.append((expressions.IsNull(pair[0]), expressions.IsNull(pair[1])))
    return keys, others


def _coalesced(session: SparkSession, expression: Any, default: Any) -> Any:
    return jvm_of(session).org.apache.spark.sql.catalyst.expressions.Coalesce(seq(session, [expression, default]))


def _pair(session: SparkSession, equal: Any, mine: set[int], theirs: set[int]) -> tuple[Any, Any] | None:
    """The two sides of an equality, the left side's first; None if it does not compare the sides."""
    sides = [Expression(session, each) for each in (equal.left(), equal.right())]
    ids = [each.column_ids for each in sides]
    if not all(ids) or not all(each.is_deterministic for each in sides):
        return None
    if ids[0] <= mine and ids[1] <= theirs:
        return sides[0].node, sides[1].node
    if ids[0] <= theirs and ids[1] <= mine:
        return sides[1].node, sides[0].node
    return None


def _is_event_time(expression: Any) -> bool:
    return class_name(expression) == "AttributeReference" and bool(expression.metadata().contains(WATERMARK_KEY))


def _keep_ms(session: SparkSession, side: Logical, other: Logical, condition: Any) -> int | None:
    """How far the watermark must have passed the event time of a side's row, so that no row of the other side can match it."""
    if condition is None or not any(each.metadata().contains(WATERMARK_KEY) for each in items(side.node.output())):
        return None
    jvm = jvm_of(session)
    helper = jvm.org.apache.spark.sql.catalyst.analysis.StreamingJoinHelper
    reached = helper.getStateValueWatermark(
        side.node.outputSet(), other.node.outputSet(), jvm.scala.Some(condition), jvm.scala.Some(_PROBE_MS)
    )
    return None if reached.isEmpty() else _PROBE_MS - int(reached.get())
