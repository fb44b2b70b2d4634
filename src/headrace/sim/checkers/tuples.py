"""No row is lost: at every operator, what arrived was processed, waits, or was discarded on purpose; and what one puts out, others get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import OperatorId

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator

TOLERANCE = 1e-6
"""Of all rows: sums of many floating point numbers."""


def tuples(sim: Simulator) -> None:
    for name, stage in sim.stages.items():
        waiting = float(stage.queues.waiting.sum())
        there = stage.rows_done + waiting + stage.rows_discarded
        if abs(stage.rows_arrived - there) > TOLERANCE * max(stage.rows_arrived, 1.0):
            there_is = f"{stage.rows_done:.1f} were processed, {waiting:.1f} wait, {stage.rows_discarded:.1f} were discarded"
            sim.violate("tuples", f"{name}: of {stage.rows_arrived:.1f} rows {there_is}")
        sent = sum(_sent(sim, source) * part for source, part in stage.operator.inputs.items())
        if abs(sent - stage.rows_arrived) > TOLERANCE * max(sent, 1.0):
            sim.violate("tuples", f"{name}: {sent:.1f} rows were sent, {stage.rows_arrived:.1f} arrived")


def _sent(sim: Simulator, name: str) -> float:
    return sim.rows_offered[name] if name in sim.rows_offered else sim.stages[OperatorId(name)].rows_out
