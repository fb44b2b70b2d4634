"""Lowering ``observe`` on the results of a stateful operator."""

from __future__ import annotations

from headrace.frontend.lowered import Lowered
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.steps import ObserveStep
from headrace.spark.logical import Logical, by_name


@lowers("CollectMetrics")
def lower_observation(node: Logical, lowering: Lowering) -> Lowered:
    """The rows stay what they are; the measures are taken of the results of each batch."""
    child = node.children[0]
    below = lowering.lower(child).uniquely_named()
    names = {each.id: name for each, name in zip(child.columns, below.rows.columns, strict=True)}
    name, aliases = node.observation
    measures = tuple(by_name(each, names).alias(alias) for each, alias in zip(node.expressions, aliases, strict=True))
    return Lowered(node, below.rows.after(ObserveStep(name, measures, lowering.where), below.rows.frame), lowering.where)
