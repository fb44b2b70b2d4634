"""Steps of a streaming plan: which of them mean the same in the plan of a batch, and where a plan can be divided.

A step may move to the batch if it works on single rows and is deterministic. The time of the batch and subqueries mean what the streaming
plan says, so a step that uses them stays.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.spark.expressions import column
from headrace.spark.gateway import class_name, items
from headrace.spark.plan_text import is_without_code
from headrace.spark.plans import Plan, analyzed, frame_of, project, with_equal_watermark_ids
from headrace.spark.trees import MOMENTARY, conjuncts, contains_any, patterns, rewrite, walk

_MULTIPLIES = "Generate"
"""The step that turns one row into many."""
_WITHOUT_EMPTY = ("Explode", "PosExplode", "Inline")
"""Generators that give no row for an empty value."""
ROW_STEPS = {"Project", "Filter", _MULTIPLIES, "SubqueryAlias"}
"""Steps with one input that work on single rows."""
BATCH_STEPS = ROW_STEPS | {"Join"}
"""Steps that may move to the batch: also a join, if its other side is static."""
CHEAP = {"Alias", "AttributeReference", "Literal", "Cast", "Add", "Subtract", "Multiply", "Remainder", "Pmod", "UnaryMinus"}
CHEAP |= {"EqualTo", "EqualNullSafe", "LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "And", "Or", "Not", "In"}
CHEAP |= {"IsNull", "IsNotNull", "Coalesce", "If", "CaseWhen", "Explode", "PosExplode", "Sequence", "CreateArray", "GetStructField"}
"""Expressions that are cheap enough to be computed again by every reader."""
USER_NAMES = {"Project": "select", "Filter": "filter", "Union": "union", "Join": "join", "Generate": "explode"}
"""The user's names for Spark's stateless operators. Other nodes (watermarks, aliases) cost nothing and have no name."""


def step_names(frame: DataFrame) -> list[str]:
    """The user's names for the steps of a DataFrame, the last step first."""
    names = (USER_NAMES.get(class_name(node)) for node in walk(analyzed(frame)))
    return [name for name in names if name]


def divided(frame: DataFrame, only_cheap: bool) -> tuple[DataFrame, Plan] | None:
    """Divide a DataFrame below the first step that multiplies rows: the steps below, and the whole plan on top of these.

    The DataFrame of the steps below has only the columns that are used later. ``only_cheap``: the other steps must be cheap. None if no
    step that multiplies rows may move.
    """
    session = frame.sparkSession
    stay = patterns(session, MOMENTARY)
    above, found = [], 0
    node = root = analyzed(frame)
    while class_name(node) in ROW_STEPS and _may_move(node, stay) and (not only_cheap or _is_cheap(node)):
        above.append(node)
        found = len(above) if class_name(node) == _MULTIPLIES else found
        node = node.child()
    if not found:
        return None
    lowest = _filtered(session, above[found - 1].child(), above[:found])
    used = {each.exprId().id() for step in above[:found] for each in items(step.references().toSeq())}
    columns = [each for each in items(lowest.output()) if each.exprId().id() in used]
    below = frame_of(session, project(session, columns, lowest))
    old = above[found - 1].child()
    whole = rewrite(session, root, lambda each: analyzed(below) if each.equals(old) else None)
    return below, Plan(session, whole)


def _filtered(session: SparkSession, lowest: Any, above: list[Any]) -> Any:
    """The plan with the filters that Spark's optimiser would move down to it from the steps above. Rows that it drops before they reach
    ``withWatermark`` do not move the watermark.

    As in Spark, ``explode`` of a column implies a filter for values that are not empty.
    """
    known = {each.exprId().id() for each in items(lowest.output())}
    wanted: list[tuple[Any, Column]] = []
    for step in above:
        if class_name(step) == "Filter":
            wanted += [(each, column(session, each)) for each in conjuncts(step.condition())]
        elif class_name(step) == _MULTIPLIES and not step.outer() and class_name(step.generator()) in _WITHOUT_EMPTY:
            value = step.generator().children().apply(0)
            if class_name(value) == "AttributeReference":
                wanted.append((value, (F.size(column(session, value)) > 0) & column(session, value).isNotNull()))
    for expression, condition in wanted:
        ids = {part.exprId().id() for part in walk(expression) if class_name(part) == "AttributeReference"}
        if ids and ids <= known:
            lowest = analyzed(frame_of(session, lowest).filter(condition))
    return lowest


def chain(frame: DataFrame) -> list[Plan]:
    """The plans from a DataFrame's own down to the first one whose last step must stay in the streaming plan, that one included."""
    session = frame.sparkSession
    stay = patterns(session, MOMENTARY)
    node = analyzed(frame)
    found = [node]
    while (child := _below(node, stay)) is not None:
        found.append(child)
        node = child
    return [Plan(session, each) for each in found]


def same_rows(one: Plan, other: Plan) -> bool:
    """True if two plans give the same rows of the same source in the same columns.

    Spark decides, after the ids of watermark nodes are made equal. Comparing texts would not do: they are the same for ``explode`` and
    ``explode_outer``, and for two columns with one name.
    """
    if one.node.equals(other.node):
        return True
    mine, theirs = ([node for node in walk(plan.node) if not node.children().size()] for plan in (one, other))
    if len(mine) != len(theirs) or not all(a.equals(b) for a, b in zip(mine, theirs, strict=True)):
        return False
    if not is_without_code(one) or not is_without_code(other) or one.node.schema().json() != other.node.schema().json():
        return False
    left, right = (with_equal_watermark_ids(plan.session, plan.node) for plan in (one, other))
    return bool(left.sameResult(right))


def _below(node: Any, stay: list[Any]) -> Any | None:
    """The input of a step that may move to the batch; None if the step must stay."""
    if class_name(node) not in BATCH_STEPS or not _may_move(node, stay):
        return None
    children = list(items(node.children()))
    streaming = [child for child in children if child.isStreaming()]
    static = [child for child in children if not child.isStreaming()]
    if len(streaming) != 1 or not all(_is_fixed(each, stay) for each in static):
        return None
    return streaming[0]


def _may_move(node: Any, stay: list[Any]) -> bool:
    return all(_is_fixed(each, stay) for each in items(node.expressions()))


def _is_fixed(tree: Any, stay: list[Any]) -> bool:
    """True if an expression or a plan gives the same in the streaming plan and in the batch."""
    return bool(tree.deterministic()) and not contains_any(tree, stay)


def _is_cheap(node: Any) -> bool:
    expressions = (each for whole in items(node.expressions()) for each in walk(whole))
    return all(class_name(each) in CHEAP for each in expressions)
