"""Where Structured Streaming's own plan ends and a batch's plan begins.

Spark hands a batch over row by row. Steps that turn one row into many (``explode``) are faster in the batch's plan: there Spark compiles
them into one loop with the steps that follow, such as combining, and never writes the many rows.

If several operators read a batch, it is cached for them. Moving these steps means that fewer rows are cached, but each reader repeats the
steps. So in that case only cheap steps move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from headrace.spark import gateway, plans, trees

_STEPS = {"Project", "Filter", "Generate", "SubqueryAlias"}
_CHEAP = {"Alias", "AttributeReference", "Literal", "Cast", "Add", "Subtract", "Multiply", "Remainder", "Pmod", "UnaryMinus"}
_CHEAP |= {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "And", "Or", "Not", "In"}
_CHEAP |= {"IsNull", "IsNotNull", "Coalesce", "If", "CaseWhen", "Explode", "PosExplode", "Sequence", "CreateArray", "GetStructField"}
"""Expressions that are cheap enough to be computed again by every reader."""


@dataclass(frozen=True)
class Boundary:
    """A streaming DataFrame, divided into steps of the streaming plan and steps of the batch's plan."""

    below: DataFrame
    """The streaming plan: all steps before the first one that multiplies rows, with only the columns that are used later."""
    _whole: Any

    def above(self, batch: DataFrame) -> DataFrame:
        """Apply the other steps to a batch, which has the rows of `below`."""
        plan = plans.substitute(self.below.sparkSession, self._whole, [(self.below, batch)])
        return plans.frame_of(batch.sparkSession, plan)


def boundary(frame: DataFrame, shared: bool = False) -> Boundary | None:
    """The boundary below the first step that multiplies rows; None if no such step may move. `shared`: several operators read the rows."""
    session = frame.sparkSession
    # These mean what the streaming plan says: the time of the batch, and subqueries.
    stay = trees.patterns(session, trees.MOMENTARY)
    above, found = [], 0
    node = root = plans.analyzed(frame)
    while gateway.class_name(node) in _STEPS and _may_move(node, stay) and (not shared or _is_cheap(node)):
        above.append(node)
        found = len(above) if gateway.class_name(node) == "Generate" else found
        node = node.child()
    if not found:
        return None
    lowest = above[found - 1].child()
    used = {each.exprId().id() for step in above[:found] for each in gateway.items(step.references().toSeq())}
    columns = [each for each in gateway.items(lowest.output()) if each.exprId().id() in used]
    below = plans.frame_of(session, plans.project(session, columns, lowest))
    whole = trees.rewrite(session, root, lambda each: plans.analyzed(below) if each.equals(lowest) else None)
    return Boundary(below, whole)


def _may_move(node: Any, stay: list[Any]) -> bool:
    expressions = list(gateway.items(node.expressions()))
    return all(each.deterministic() and not any(each.containsPattern(pattern) for pattern in stay) for each in expressions)


def _is_cheap(node: Any) -> bool:
    expressions = (each for whole in gateway.items(node.expressions()) for each in trees.walk(whole))
    return all(gateway.class_name(each) in _CHEAP for each in expressions)
