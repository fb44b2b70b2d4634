"""Lowering ``withWatermark`` on the results of a stateful operator."""

from __future__ import annotations

from headrace.frontend.lowered import Lowered
from headrace.frontend.registry import Lowering, lowers
from headrace.graph.steps import WatermarkStep
from headrace.spark.logical import Logical


@lowers("EventTimeWatermark")
def lower_watermark(node: Logical, lowering: Lowering) -> Lowered:
    """Spark allows it only if the rows have no watermark yet."""
    below = lowering.lower(node.children[0]).uniquely_named()
    at = node.event_time_place
    step = WatermarkStep(below.rows.columns[at], node.columns[at].delay_ms or 0, lowering.where)
    return Lowered(node, below.rows.after(step, step.marked(below.rows.frame)), lowering.where)
