"""Catalyst trees: walking and rewriting plans and expressions.

Spark resolves the user's columns itself; Headrace reads the resulting trees. Every logical plan, physical plan and expression is a
Catalyst ``TreeNode``, so the functions here serve all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import SparkSession

from headrace.spark.gateway import class_name, items, jvm_of, seq

CURRENT, SUBQUERY = "CURRENT_LIKE", "PLAN_EXPRESSION"
"""Patterns of expressions that read the clock or the session, and of expressions that contain a query of their own."""
MOMENTARY = (CURRENT, SUBQUERY)
"""Patterns of expressions that Spark evaluates when it optimises a plan: the current time, and subqueries."""


def walk(node: Any) -> Iterator[Any]:
    """A tree's nodes, parents first."""
    yield node
    for child in items(node.children()):
        yield from walk(child)


def rewrite(session: SparkSession, node: Any, replacement: Callable[[Any], Any | None]) -> Any:
    """The tree with nodes replaced. A node for which ``replacement`` returns None is kept."""
    new = replacement(node)
    if new is not None:
        return new
    children = list(items(node.children()))
    if not children:
        return node
    rewritten = [rewrite(session, child, replacement) for child in children]
    if all(a is b for a, b in zip(children, rewritten, strict=True)):
        return node
    return node.withNewChildren(seq(session, rewritten))


def without_shared_parts(session: SparkSession, expression: Any) -> Any:
    """The expression with the parts that Spark computes once, as in BETWEEN, written out where they are used.

    The types of references to such parts are fixed, so the parts cannot be rewritten in place.
    """

    def replacement(node: Any) -> Any | None:
        if class_name(node) == "Between":
            return without_shared_parts(session, node.children().apply(0))
        if class_name(node) != "With":
            return None
        main, *parts = [without_shared_parts(session, each) for each in items(node.children())]
        known = {str(part.id().toString()): part.child() for part in parts}

        def written_out(each: Any) -> Any | None:
            return known.get(str(each.id().toString())) if class_name(each) == "CommonExpressionRef" else None

        return rewrite(session, main, written_out)

    return rewrite(session, expression, replacement)


def conjuncts(expression: Any) -> list[Any]:
    """The conditions that an expression joins by AND."""
    if class_name(expression) == "And":
        return conjuncts(expression.left()) + conjuncts(expression.right())
    return [expression]


def patterns(session: SparkSession, names: tuple[str, ...]) -> list[Any]:
    """Spark's ``TreePattern`` values with these names, as ``contains_any`` takes them."""
    known = jvm_of(session).org.apache.spark.sql.catalyst.trees.TreePattern
    return [getattr(known, name)() for name in names]


def contains_any(node: Any, wanted: list[Any]) -> bool:
    """True if the tree contains an expression of one of the patterns."""
    return any(node.containsPattern(each) for each in wanted)


def expressions_with(session: SparkSession, plan: Any, pattern: str) -> Iterator[Any]:
    """The expressions of a plan, and their parts, that are or contain an expression of a pattern. Plans of subqueries are left out."""
    wanted = patterns(session, (pattern,))

    def parts(node: Any) -> Iterator[Any]:
        if contains_any(node, wanted):
            yield node
            for child in items(node.children()):
                yield from parts(child)

    for node in walk(plan):
        if contains_any(node, wanted):
            for each in items(node.expressions()):
                yield from parts(each)
