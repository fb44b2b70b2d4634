"""Small simulations for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.ids import OperatorId
from headrace.sim import workload
from headrace.sim.model import Fault, MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.workload import Rate

MAP, SUM = OperatorId("map"), OperatorId("sum")


def plan(
    rate: Rate | float = 1000.0,
    duration_s: float = 60.0,
    instances: tuple[int, int] = (1, 1),
    faults: Sequence[Fault] = (),
    spare: int = 4,
    machines: MachineModel | None = None,
    state: SimulatedState | None = None,
    sum_keys: dict[str, Any] | None = None,
    tick_s: float = 0.2,
    **settings: Any,
) -> SimulationPlan:
    """A map of 0.1 ms and a sum of 0.2 ms a row: one instance of each manages 10,000 and 5,000 rows a second."""
    state = state or SimulatedState(bytes_per_row=10, bytes_max=1e6)
    operators = (SimulatedOperator(MAP, {"in": 1.0}, 1e-4), SimulatedOperator(SUM, {MAP: 1.0}, 2e-4, state=state, **(sum_keys or {})))
    source = rate if callable(rate) else workload.constant(rate)
    return SimulationPlan(
        SimulatedQuery({"in": source}, operators),
        duration_s,
        dict(zip((MAP, SUM), instances, strict=True)),
        machines=machines or MachineModel(start_s=20),
        settings=SimulationSettings(tick_s=tick_s, **settings),
        faults=tuple(faults),
        spare=spare,
    )
