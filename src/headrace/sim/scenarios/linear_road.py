"""Linear Road as SEEP ran it (6.1, Fig. 5), for the scenarios that use it.

    feeder ──> forwarder ──> toll calculator ──> collector ───────────────> sink
                   └──────────────┴──> toll assessment ──> balance account ──┘

What the paper does not print, and what is taken instead:
- Costs. All operators together take ``cost_us`` of CPU per row, in such parts that the toll calculator is split most and the forwarder
  second, as the paper says. The one number is set so that 350 expressways end with about as many machines as SEEP's 50; how many
  there are at other loads, thresholds and times follows.
- ``hop_s``, so that a row that never waits takes 100 ms over four operators: SEEP's median at 115 expressways is 101 ms.
- How uneven rows arrive (0.2, see `Settings.jitter`) and how much machines of one kind differ (a tenth).
- For how long operators upstream stop at a scale out: ``SWITCH_S``, so that the percentiles at 350 expressways are of the size of Fig. 7's.
- State per vehicle, and the start of a machine (minutes, says 5.2; 90 s here).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace.control import bottleneck
from headrace.control.observation import Floats
from headrace.ids import OperatorId
from headrace.sim import workload
from headrace.sim.model import MachineModel, Operator, Plan, Query, Settings, State
from headrace.sim.policies import constant_pool, seep
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

FIRST, LAST = 12_000 / 350, 600_000 / 350
"""Rows a second and expressway at the beginning and at the end, as in Fig. 6."""
SOURCE_MAX = 600_000.0
"""Above, source and sink were SEEP's bottleneck."""
COST_US = 40.0
PARTS = {"forwarder": 0.25, "toll calculator": 0.5, "toll assessment": 0.1, "collector": 0.1, "balance account": 0.05}
START_S = 90.0
SWITCH_S = 1.0

FORWARDER, CALCULATOR, ASSESSMENT, COLLECTOR, ACCOUNT, SINK = (OperatorId(name) for name in (*PARTS, "sink"))
SCALED = (FORWARDER, CALCULATOR, ASSESSMENT, COLLECTOR, ACCOUNT)
INTO_ASSESSMENT = 0.3
"""Of the toll calculator's rows: vehicles that enter another segment are charged."""


def query(expressways: int, duration_s: float, cost_us: float = COST_US) -> Query:
    rate = workload.linear_road(expressways, duration_s, FIRST, LAST)
    vehicles = State(bytes_per_row=40.0, bytes_max=expressways * 200_000.0, checkpoint_cpu_s_per_byte=2e-9)
    accounts = State(bytes_per_row=40.0, bytes_max=expressways * 100_000.0, checkpoint_cpu_s_per_byte=2e-9)

    def cost_s(name: str, rows: float) -> float:
        """Of a row that arrives there, when ``rows`` of them come of one row of the input."""
        return cost_us * 1e-6 * PARTS[name] / rows

    charged = 0.01 + 0.99 * INTO_ASSESSMENT
    operators = (
        Operator(FORWARDER, {"feeder": 1.0}, cost_s("forwarder", 1.0)),
        Operator(CALCULATOR, {FORWARDER: 0.99}, cost_s("toll calculator", 0.99), state=vehicles),
        Operator(ASSESSMENT, {FORWARDER: 0.01, CALCULATOR: INTO_ASSESSMENT}, cost_s("toll assessment", charged), state=accounts),
        Operator(COLLECTOR, {CALCULATOR: 1.0 - INTO_ASSESSMENT}, cost_s("collector", 0.99 * (1 - INTO_ASSESSMENT))),
        Operator(ACCOUNT, {ASSESSMENT: 1.0}, cost_s("balance account", charged), state=accounts),
        # Source and sink ran on large machines of their own and could not be split. Their limit is the source's rate; the sink has room.
        Operator(SINK, {COLLECTOR: 1.0, ACCOUNT: 1.0}, 0.7 / SOURCE_MAX, elastic=False, row_bytes=10.0),
    )
    return Query({"feeder": lambda at_s: min(rate(at_s), SOURCE_MAX)}, operators)


def plan(
    expressways: int,
    duration_s: float,
    tick_s: float,
    instances: Mapping[OperatorId, int] | None = None,
    spare: int = 0,
    cost_us: float = COST_US,
    start_s: float = START_S,
) -> Plan:
    settings = Settings(tick_s=tick_s, hop_s=0.025, jitter=0.2, deploy_s=1.0, switch_s=SWITCH_S)
    machines = MachineModel(start_s=start_s, speed_deviation=0.1)
    return Plan(query(expressways, duration_s, cost_us), duration_s, instances or {}, machines=machines, settings=settings, spare=spare)


def machines_of(trace: Trace) -> Floats:
    """Machines of operators that can be split, over time; the sink's is left out."""
    machines: Floats = np.sum([trace[f"instances.{name}"] for name in SCALED], axis=0, dtype=np.float64)
    return machines


def dynamic(expressways: int, duration_s: float, tick_s: float, threshold: float, pool: int, seed: int) -> Trace:
    """One machine per operator at first, the bottleneck detector, and a pool of constant size."""
    made = plan(expressways, duration_s, tick_s, spare=pool)
    policy = seep(bottleneck.BottleneckConfig(threshold=threshold))
    return Simulator(made, [policy], constant_pool(pool, made.machines.start_s), seed).run()
