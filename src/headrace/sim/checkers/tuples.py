"""No row is lost: every row that was sent arrived, and every row that arrived was processed, waits, or was discarded on purpose."""

from __future__ import annotations

from headrace.ids import OperatorId
from headrace.sim.world import World

TOLERANCE = 1e-6
"""The largest difference that is accepted, as a share of all rows: sums of floating point numbers are not exact."""


def tuples(world: World) -> None:
    """The checker: record a violation for each operator whose counts of rows do not add up."""
    for name, stage in world.stages.items():
        waiting = float(stage.queues.waiting.sum())
        there = stage.rows_done + waiting + stage.rows_discarded
        if abs(stage.rows_arrived - there) > TOLERANCE * max(stage.rows_arrived, 1.0):
            there_is = f"{stage.rows_done:.1f} were processed, {waiting:.1f} wait, {stage.rows_discarded:.1f} were discarded"
            world.violate("tuples", f"{name}: of {stage.rows_arrived:.1f} rows {there_is}")
        sent = sum(_sent(world, source) * part for source, part in stage.operator.inputs.items())
        if abs(sent - stage.rows_arrived) > TOLERANCE * max(sent, 1.0):
            world.violate("tuples", f"{name}: {sent:.1f} rows were sent, {stage.rows_arrived:.1f} arrived")


def _sent(world: World, name: str) -> float:
    return world.rows_offered[name] if name in world.rows_offered else world.stages[OperatorId(name)].rows_out
