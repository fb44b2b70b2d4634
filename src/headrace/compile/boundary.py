"""Where Structured Streaming's own plan ends and a batch's plan begins.

Spark hands a batch over row by row. Steps that make many rows of one (``explode``) are better done behind that point: there Spark compiles
them into one loop with what follows, combining above all, and none of the many rows is ever written. Where several operators read a batch,
it is kept for them, and then the few rows are kept instead of the many; each reader does the steps itself, and what it filters out it may
filter out before. So only steps that cost little move then.
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
"""Expressions that may be worked out once for every reader."""


@dataclass(frozen=True)
class Boundary:
    """A streaming DataFrame in two parts."""

    below: DataFrame
    """What stays in the streaming plan: all up to the first step that multiplies rows, and of that only the columns that are used."""
    _whole: Any

    def above(self, batch: DataFrame) -> DataFrame:
        """The rest, on rows of ``below``."""
        plan = plans.substitute(self.below.sparkSession, self._whole, [(self.below, batch)])
        return plans.frame_of(batch.sparkSession, plan)


def boundary(frame: DataFrame, shared: bool = False) -> Boundary | None:
    """Below the lowest step that multiplies rows, as far as steps may move; None if there is none. ``shared``: several read the rows."""
    session = frame.sparkSession
    # The time of a batch, queries of their own: their meaning is the streaming plan's.
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
