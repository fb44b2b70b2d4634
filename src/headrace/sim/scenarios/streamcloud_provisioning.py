"""StreamCloud Fig. 21: a load that grows linearly. Instances are added one at a time (a), or by the load (b); in (c) the load shrinks.

The lower, upper and target utilisation are 0.5, 0.9 and 0.6, as in the paper. An instance processes 7,240 rows a second: Table I has 64,506
rows a second on 11 instances at 0.81 CPU. The slope follows from the paper's sizes: 11 instances at about 500 s, 17 at about 900 s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.control import elastic_manager
from headrace.control.observation import Observation
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import model, policies, workload
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

COUNT = OperatorId("count")
LOWER, UPPER, TARGET = 0.5, 0.9, 0.6
ROWS_PER_INSTANCE = 64_506 / 11 / 0.81


@dataclass(frozen=True)
class SizeChange:
    """A change of the number of instances, with mean CPU before and after."""

    at_s: float
    before: int
    after: int
    cpu_before: float
    cpu_after: float
    """Mean CPU in the second report after the change. The first one still includes time before it."""

    @property
    def meets_target(self) -> bool:
        """True if CPU is at the target, or below it only because the number of instances is rounded up."""
        return TARGET * (self.after - 1) / self.after - 0.03 <= self.cpu_after <= TARGET + 0.02


class ProvisioningWatch:
    """A listener that records mean CPU and the number of instances, at every report."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.cpu: list[float] = []
        self.sizes: list[int] = []

    def __call__(self, sim: Simulator, observation: Observation) -> None:
        load = sim.loads[COUNT]
        self.at_s.append(sim.clock.now_s)
        self.cpu.append(float(load.cpu.mean()))
        self.sizes.append(load.instances)

    def steps(self) -> list[SizeChange]:
        """All changes of the number of instances."""
        changes = [at for at in range(1, len(self.sizes)) if self.sizes[at] != self.sizes[at - 1]]
        return [
            SizeChange(self.at_s[at], self.sizes[at - 1], self.sizes[at], self.cpu[at - 1], self.cpu[min(at + 1, len(self.cpu) - 1)])
            for at in changes
        ]


def simulate(
    rate: workload.Rate, duration_s: float, first: int, provisioning: str, options: Options, seed: int
) -> tuple[Trace, ProvisioningWatch]:
    most = int(options["instances_max"])
    count = model.SimulatedOperator(
        COUNT,
        {"calls": 1.0},
        cost_s=1.0 / ROWS_PER_INSTANCE,
        state=model.SimulatedState(bytes_per_row=100, bytes_max=10_000 * 1_000.0),
    )
    plan = model.SimulationPlan(
        model.SimulatedQuery({"calls": rate}, (count,)),
        duration_s=duration_s,
        instances={COUNT: first},
        # StreamCloud keeps a pool of running instances; deploying the subquery takes less than 10 ms (V).
        settings=model.SimulationSettings(report_s=number(options, "report_s"), handover="pause", deploy_s=0.01),
        spare=most,
    )
    config = elastic_manager.ElasticManagerConfig(LOWER, UPPER, TARGET, provisioning, instances_max=most)
    watch = ProvisioningWatch()
    trace = Simulator(plan, [policies.streamcloud(config)], seed=seed, listeners=[watch]).run()
    return trace, watch


def run(options: Options, seed: int) -> Result:
    slope, until = number(options, "rows_per_s_per_s"), int(options["instances_until"])
    first_rows, top = 0.3 * ROWS_PER_INSTANCE, int(options["instances_top"])
    runs: dict[str, tuple[Trace, ProvisioningWatch]] = {}
    durations_s = []
    for way, last_rows in (("individual", UPPER * until * ROWS_PER_INSTANCE), ("load-aware", TARGET * top * ROWS_PER_INSTANCE)):
        durations_s.append((last_rows - first_rows) / slope)
        runs[way] = simulate(workload.ramp(first_rows, last_rows, durations_s[-1]), durations_s[-1], 1, way, options, seed)
    # For (c) the load shrinks, from the paper's 27 instances.
    down = workload.ramp(TARGET * top * ROWS_PER_INSTANCE, first_rows, durations_s[-1])
    runs["decommissioning"] = simulate(down, durations_s[-1], top, "load-aware", options, seed)
    figures = _figures({name: watch for name, (_, watch) in runs.items()}, {name: trace for name, (trace, _) in runs.items()})
    traces = [trace for trace, _ in runs.values()]
    rows = [
        (name, f"{step.at_s:.0f}", str(step.before), str(step.after), f"{step.cpu_before:.3f}", f"{step.cpu_after:.3f}")
        for name, (_, watch) in runs.items()
        for step in watch.steps()
    ]
    return Result(
        _claims(figures, runs["individual"][1], runs["load-aware"][1]),
        tuple(_plot(name, trace, watch) for name, (trace, watch) in runs.items()),
        ("run", "at s", "from", "to", "CPU before", "after"),
        tuple(rows),
        violations_of(*traces),
        simulated_s=sum(durations_s) + durations_s[-1],
        nodes=int(max(trace["working"].max() for trace in traces)),
        figures=figures,
    )


def _figures(watches: dict[str, ProvisioningWatch], traces: dict[str, Trace]) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, watch in watches.items():
        steps = watch.steps()
        after = [step.cpu_after for step in steps]
        figures |= {
            f"{name}.steps": float(len(steps)),
            f"{name}.after.worst": max(after),
            f"{name}.after.least": min(after),
            f"{name}.after.mean": float(np.mean(after)),
            f"{name}.after.last": after[-1],
            f"{name}.met": float(sum(step.meets_target for step in steps)),
            f"{name}.throughput": float(traces[name]["rows_out_per_s"][5:].sum() / traces[name]["rows_in_per_s"][5:].sum()),
            f"{name}.latency_p99_s": traces[name].latencies.percentile(99),
        }
    return figures


def _claims(seen: dict[str, float], individual: ProvisioningWatch, load_aware: ProvisioningWatch) -> tuple[Claim, ...]:
    one, many, down = "individual", "load-aware", "decommissioning"
    sizes = [step.after for step in load_aware.steps()]
    # Steps of (b) until it has at least as many instances as (a) at its end.
    reached = sum(size <= individual.sizes[-1] for size in sizes) + 1
    return (
        Claim(
            "21a: steps that reach the target",
            "only from 1 to 2",
            f"{seen[f'{one}.met']:.0f} of {seen[f'{one}.steps']:.0f}",
            seen[f"{one}.met"] == 1,
        ),
        Claim(
            "21a: CPU after the last step",
            "close to the upper threshold (0.9)",
            f"{seen[f'{one}.after.last']:.2f}",
            seen[f"{one}.after.last"] > 0.8,
        ),
        Claim(
            "21b: CPU after each step",
            "the target (0.6)",
            f"{seen[f'{many}.after.least']:.2f} to {seen[f'{many}.after.worst']:.2f}, {seen[f'{many}.met']:.0f} of "
            f"{seen[f'{many}.steps']:.0f} by less than an instance below it",
            seen[f"{many}.met"] == seen[f"{many}.steps"],
        ),
        Claim(
            f"21b: steps to {individual.sizes[-1]} instances or more, against 21a",
            "fewer",
            f"{reached} against {seen[f'{one}.steps']:.0f}",
            reached < seen[f"{one}.steps"],
        ),
        Claim("21b: sizes on the way", "11, then 17 (Table I)", ", ".join(map(str, sizes)), {11, 17} <= set(sizes)),
        Claim("21b: the last size", "27", str(sizes[-1]), sizes[-1] == 27),
        Claim(
            "21a, b: throughput",
            "grows in a straight line with the input",
            f"{seen[f'{one}.throughput']:.1%} and {seen[f'{many}.throughput']:.1%} of the input",
            min(seen[f"{one}.throughput"], seen[f"{many}.throughput"]) > 0.98,
        ),
        Claim(
            "21c: CPU after each step down",
            "slightly below the target",
            f"{seen[f'{down}.after.least']:.2f} to {seen[f'{down}.after.worst']:.2f}, {seen[f'{down}.met']:.0f} of "
            f"{seen[f'{down}.steps']:.0f} by less than an instance below it",
            seen[f"{down}.met"] == seen[f"{down}.steps"],
        ),
    )


def _plot(name: str, trace: Trace, watch: ProvisioningWatch) -> Plot:
    figure = {"individual": "21a", "load-aware": "21b", "decommissioning": "21c"}[name]
    most = max(watch.sizes)
    series = (
        Series("mean CPU", watch.at_s, watch.cpu),
        Series(f"instances, by {most}", watch.at_s, [size / most for size in watch.sizes]),
        Series(
            f"rows out, by {trace['rows_in_per_s'].max():,.0f}/s",
            trace["at_s"].tolist(),
            (trace["rows_out_per_s"] / trace["rows_in_per_s"].max()).tolist(),
        ),
    )
    return Plot(f"StreamCloud Fig. {figure}: {name}", "part", series)


OPTIONS: Options = {
    "rows_per_s_per_s": 75.0,
    "instances_until": 15,
    "instances_top": 27,
    "instances_max": 40,
    "report_s": 5.0,
}

SCENARIOS = (
    Scenario(
        "streamcloud-fig21",
        "StreamCloud Fig. 21",
        "load-aware provisioning reaches the target in fewer steps than one instance at a time; decommissioning does too",
        OPTIONS,
        run,
    ),
)
