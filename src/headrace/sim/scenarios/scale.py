"""The speed of the simulator: an hour of a thousand machines, with bursts of the workload and failures of machines."""

from __future__ import annotations

import time

from headrace.control import bottleneck
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import workload
from headrace.sim.model import Fault, MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.policies import pool_of, seep
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, positive, violations_of
from headrace.sim.simulator import Simulator

MAP, SUM = OperatorId("map"), OperatorId("sum")


def run(options: Options, seed: int) -> Result:
    positive(options, "nodes", "duration_s", "tick_s")
    nodes, duration_s = int(number(options, "nodes")), number(options, "duration_s")
    state = SimulatedState(bytes_per_row=10, bytes_max=1e9, checkpoint_cpu_s_per_byte=1e-9)
    operators = (SimulatedOperator(MAP, {"in": 1.0}, 1e-4), SimulatedOperator(SUM, {MAP: 1.0}, 2e-4, state=state))
    # Machines are 50% busy outside of bursts, and 75% in a burst.
    rate = workload.bursts(workload.constant(nodes * 0.5 / 3e-4), seed, factor=1.5, every_s=300, length_s=60)
    plan = SimulationPlan(
        SimulatedQuery({"in": rate}, operators),
        duration_s,
        {MAP: nodes // 3, SUM: nodes - nodes // 3},
        machines=MachineModel(start_s=60),
        settings=SimulationSettings(tick_s=number(options, "tick_s"), jitter=0.2),
        faults=(Fault(duration_s * 0.1, count=1), Fault(duration_s * 0.2, count=5), Fault(duration_s * 0.3, zone=1)),
        spare=4,
    )
    begun = time.process_time()
    limit = bottleneck.BottleneckConfig(instances_max=max(1, nodes))
    trace = Simulator(plan, [seep(limit)], pool_of(), seed).run()
    took_s = time.process_time() - begun
    per_hour_s = took_s * (3600 / duration_s) * (1000 / nodes)
    recovered, failed = len(trace.values("recovered")), int(sum(trace.values("failed")))
    claims = (
        Claim("CPU for an hour of 1,000 machines", "within 60 s", f"{per_hour_s:.1f} s, scaled from this run", per_hour_s < 60),
        Claim("failed instances recovered", "all", f"{recovered} of {failed}", recovered == failed),
    )
    at_s = trace["at_s"].tolist()
    plot = Plot("Machines", "machines", tuple(Series(name, at_s, trace[name].tolist()) for name in ("working", "ready", "starting")))
    figures = {"per_hour_s": per_hour_s, "recovered": recovered, "failed": failed}
    most = int(trace["working"].max())
    return Result(claims, (plot,), violations=violations_of(trace), simulated_s=duration_s, nodes=most, figures=figures)


SCENARIOS = (
    Scenario(
        "thousand-nodes",
        "Headrace",
        "a simulated hour of 1,000 machines takes less than a minute of one core",
        {"nodes": 1000, "duration_s": 3600.0, "tick_s": 0.25},
        run,
    ),
)
