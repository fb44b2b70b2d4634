"""Linear Road as SEEP ran it (6.1, Fig. 5), for the scenarios that use it.

    feeder ──> forwarder ──> toll calculator ──> collector ───────────────> sink
                   └──────────────┴──> toll assessment ──> balance account ──┘

Parameters that the paper does not print, and the values chosen here:
- Costs: all operators together take ``cost_us`` of CPU per row. ``PARTS`` divides it so that the toll calculator is split most and the
  forwarder second, as in the paper. ``cost_us`` is set so that 350 expressways need about 50 machines, like SEEP. The numbers of machines
  at other loads and thresholds are results.
- ``hop_s``: a row that never waits takes 100 ms over four operators. SEEP's median at 115 expressways is 101 ms.
- How unevenly rows arrive (0.2, see `SimulationSettings.jitter`) and how much the speeds of machines differ (a tenth).
- ``SWITCH_S``: how long upstream operators stop at a scale out. It is set so that percentiles at 350 expressways are similar to Fig. 7's.
- State per vehicle, and the start-up time of a machine (90 s; SEEP 5.2 says minutes).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.control import bottleneck
from headrace.control.observation import Floats
from headrace.ids import OperatorId
from headrace.sim import workload
from headrace.sim.model import MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.policies import constant_pool, seep
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

FIRST, LAST = 12_000 / 350, 600_000 / 350
"""Rows per second and expressway at the beginning and at the end, as in Fig. 6."""
SOURCE_MAX = 600_000.0
"""The highest rate in rows per second. Above it, source and sink were SEEP's bottleneck."""
COST_US = 40.0
PARTS = {"forwarder": 0.25, "toll calculator": 0.5, "toll assessment": 0.1, "collector": 0.1, "balance account": 0.05}
START_S = 90.0
SWITCH_S = 1.0

FORWARDER, CALCULATOR, ASSESSMENT, COLLECTOR, ACCOUNT, SINK = (OperatorId(name) for name in (*PARTS, "sink"))
SCALED = (FORWARDER, CALCULATOR, ASSESSMENT, COLLECTOR, ACCOUNT)
INTO_ASSESSMENT = 0.3
"""The share of the toll calculator's rows that go to toll assessment: vehicles that enter a new segment are charged."""


def query(expressways: int, duration_s: float, cost_us: float = COST_US) -> SimulatedQuery:
    """The query of Fig. 5, with Linear Road's growing input."""
    rate = workload.linear_road(expressways, duration_s, FIRST, LAST)
    vehicles = SimulatedState(bytes_per_row=40.0, bytes_max=expressways * 200_000.0, checkpoint_cpu_s_per_byte=2e-9)
    accounts = SimulatedState(bytes_per_row=40.0, bytes_max=expressways * 100_000.0, checkpoint_cpu_s_per_byte=2e-9)

    def cost_s(name: str, rows: float) -> float:
        """The cost of a row at an operator that gets ``rows`` rows per input row."""
        return cost_us * 1e-6 * PARTS[name] / rows

    charged = 0.01 + 0.99 * INTO_ASSESSMENT
    operators = (
        SimulatedOperator(FORWARDER, {"feeder": 1.0}, cost_s("forwarder", 1.0)),
        SimulatedOperator(CALCULATOR, {FORWARDER: 0.99}, cost_s("toll calculator", 0.99), state=vehicles),
        SimulatedOperator(ASSESSMENT, {FORWARDER: 0.01, CALCULATOR: INTO_ASSESSMENT}, cost_s("toll assessment", charged), state=accounts),
        SimulatedOperator(COLLECTOR, {CALCULATOR: 1.0 - INTO_ASSESSMENT}, cost_s("collector", 0.99 * (1 - INTO_ASSESSMENT))),
        SimulatedOperator(ACCOUNT, {ASSESSMENT: 1.0}, cost_s("balance account", charged), state=accounts),
        # Source and sink ran on large machines of their own and could not be split. SOURCE_MAX limits the source; the sink is never full.
        SimulatedOperator(SINK, {COLLECTOR: 1.0, ACCOUNT: 1.0}, 0.7 / SOURCE_MAX, elastic=False, row_bytes=10.0),
    )
    return SimulatedQuery({"feeder": lambda at_s: min(rate(at_s), SOURCE_MAX)}, operators)


def plan(
    expressways: int,
    duration_s: float,
    tick_s: float,
    instances: Mapping[OperatorId, int] | None = None,
    spare: int = 0,
    cost_us: float = COST_US,
    start_s: float = START_S,
) -> SimulationPlan:
    """A simulation of the query, with one instance per operator unless ``instances`` says otherwise."""
    settings = SimulationSettings(tick_s=tick_s, hop_s=0.025, jitter=0.2, deploy_s=1.0, switch_s=SWITCH_S)
    machines = MachineModel(start_s=start_s, speed_deviation=0.1)
    return SimulationPlan(
        query(expressways, duration_s, cost_us), duration_s, instances or {}, machines=machines, settings=settings, spare=spare
    )


def machines_of(trace: Trace) -> Floats:
    """The number of machines over time, without the sink's, which cannot be split."""
    machines: Floats = np.sum([trace[f"instances.{name}"] for name in SCALED], axis=0, dtype=np.float64)
    return machines


def dynamic(expressways: int, duration_s: float, tick_s: float, threshold: float, pool: int, seed: int) -> Trace:
    """Run the query from one machine per operator, with the bottleneck detector and a pool of constant size."""
    made = plan(expressways, duration_s, tick_s, spare=pool)
    policy = seep(bottleneck.BottleneckConfig(threshold=threshold))
    return Simulator(made, [policy], constant_pool(pool, made.machines.start_s), seed).run()
