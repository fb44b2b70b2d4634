"""SEEP 6.1: dynamic scale out, in a closed loop (Fig. 6 and 7) and in an open one (Fig. 8)."""

from __future__ import annotations

import numpy as np

from headrace.control.observation import Floats
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import workload
from headrace.sim.model import MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.policies import constant_pool, seep
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, positive, violations_of
from headrace.sim.scenarios import linear_road
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

MAP, REDUCE = OperatorId("map"), OperatorId("reduce")


def closed_loop(options: Options, seed: int) -> Result:
    """Fig. 6 and 7: Linear Road with a growing input. Rows wait, and none is discarded."""
    expressways, duration_s = int(number(options, "expressways")), number(options, "duration_s")
    positive(options, "expressways", "duration_s", "tick_s")
    threshold, pool = number(options, "threshold"), int(number(options, "pool"))
    trace = linear_road.dynamic(expressways, duration_s, number(options, "tick_s"), threshold, pool, seed)
    machines = linear_road.machines_of(trace)
    instances = {name: int(trace[f"instances.{name}"][-1]) for name in linear_road.SCALED}
    most, second = sorted(instances, key=lambda name: -instances[name])[:2]
    kept_up = trace["rows_out_per_s"][-30:].mean() / trace["rows_in_per_s"][-30:].mean()
    p50, p95, p99 = (trace.latencies.percentile(q) for q in (50, 95, 99))
    peak_s = float(np.nanmax(trace["latency_p99_s"]))
    usual = expressways == 350
    claims = (
        Claim("machines at the end", "50" if usual else "", f"{machines[-1]:.0f} (the cost of a row was chosen for this)", None),
        Claim("rows out by rows in, last 30 s", "throughput follows the input", f"{kept_up:.3f}", bool(kept_up > 0.98)),
        Claim("split most, then", "toll calculator, forwarder", f"{most}, {second}", (most, second) == linear_road.SCALED[1::-1]),
        Claim("latency, median / 95% / 99%", "0.153 / 0.700 / 1.459 s", f"{p50:.3f} / {p95:.3f} / {p99:.3f} s", None),
        Claim("99% within Linear Road's 5 s", "yes", f"{p99:.2f} s", p99 < 5),
        Claim("peaks after scale out", "up to 4 s", f"up to {peak_s:.1f} s", peak_s < 5),
    )
    at_s = trace["at_s"].tolist()
    plots = (
        Plot("Fig. 6: rates", "rows/s", _rates(trace)),
        Plot(
            "Fig. 6: machines",
            "machines",
            (Series("with an operator", at_s, machines.tolist()), Series("ready", at_s, trace["ready"].tolist())),
        ),
        Plot("Fig. 7: latency", "s", _two(at_s, trace, {"99%": "latency_p99_s", "95%": "latency_p95_s", "median": "latency_p50_s"})),
        Plot("Instances", "instances", tuple(Series(str(name), at_s, trace[f"instances.{name}"].tolist()) for name in instances)),
    )
    figures = {"machines": float(machines[-1]), "kept_up": float(kept_up), "p50_s": p50, "p95_s": p95, "p99_s": p99, "peak_s": peak_s}
    figures |= {f"instances.{name}": float(count) for name, count in instances.items()}
    return Result(claims, plots, violations=violations_of(trace), simulated_s=duration_s, nodes=int(machines.max()), figures=figures)


def _rates(trace: Trace, width: int = 10) -> tuple[Series, ...]:
    """Output and input rates over time, each point the mean of ``width`` samples."""
    count = len(trace["at_s"]) // width * width
    at_s, out, into = (trace[key][:count].reshape(-1, width).mean(axis=1).tolist() for key in ("at_s", "rows_out_per_s", "rows_in_per_s"))
    return Series("output", at_s, out), Series("input", at_s, into)


def _two(at_s: list[float], trace: Trace, named: dict[str, str]) -> tuple[Series, ...]:
    return tuple(Series(name, at_s, _gaps(trace[key])) for name, key in named.items())


def _gaps(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def open_loop(options: Options, seed: int) -> Result:
    """Fig. 8: the top-k query gets 550,000 rows a second from the start, with one machine each for map and reduce.

    Rows that do not fit into a queue are discarded.
    """
    rate, duration_s = number(options, "rows_per_s"), number(options, "duration_s")
    positive(options, "rows_per_s", "duration_s", "tick_s")
    start_s, pool = number(options, "start_s"), int(number(options, "pool"))
    limit = number(options, "queue_rows")
    counts = SimulatedState(bytes_per_row=1.0, bytes_max=1e6, checkpoint_cpu_s_per_byte=2e-9)
    operators = (
        SimulatedOperator(MAP, {"pages": 1.0}, 30e-6, queue_rows_max=limit),
        SimulatedOperator(REDUCE, {MAP: 1.0}, 15e-6, state=counts, queue_rows_max=limit),
    )
    settings = SimulationSettings(tick_s=number(options, "tick_s"), jitter=0.2, hop_s=0.025, switch_s=linear_road.SWITCH_S)
    made = SimulationPlan(
        SimulatedQuery({"pages": workload.constant(rate)}, operators),
        duration_s,
        machines=MachineModel(start_s=start_s, speed_deviation=0.1),
        settings=settings,
        spare=pool,
    )
    trace = Simulator(made, [seep()], constant_pool(pool, start_s), seed).run()
    at_s, out = trace["at_s"], trace["rows_out_per_s"]
    # The last moment at which more than 1% of the rows are discarded.
    discarding = np.flatnonzero(np.diff(trace["rows_discarded"], prepend=0.0) > 0.01 * rate * settings.sample_s)
    sustained_s = float(at_s[discarding[-1]]) if len(discarding) else 0.0
    machines = trace[f"instances.{MAP}"] + trace[f"instances.{REDUCE}"]
    early, late = _grown(at_s, machines, 0, 100), _grown(at_s, machines, 100, max(200.0, min(sustained_s, duration_s)))
    added_map, added_reduce = (_grown(at_s, trace[f"instances.{name}"], 0, 100) for name in (MAP, REDUCE))
    dropped = np.diff(trace["rows_discarded"])[-20:].sum() / (20 * rate)
    claims = (
        Claim(
            "input sustained at the end",
            "yes, 550,000 rows/s",
            f"{out[-20:].mean():,.0f} rows/s, {dropped:.1%} discarded",
            bool(dropped < 0.01),
        ),
        Claim("sustained from", "", f"{sustained_s:.0f} s on", None),
        Claim("machines added per 100 s, until and after t=100", "more until t=100", f"{early:.0f}, then {late:.0f}", early > late),
        Claim("added until t=100", "more map than reduce", f"{added_map:.0f} map, {added_reduce:.0f} reduce", added_map > added_reduce),
        Claim("machines at the end", "", f"{machines[-1]:.0f}", None),
    )
    seconds = at_s.tolist()
    plots = (
        Plot("Fig. 8: rates", "rows/s", _rates(trace)),
        Plot(
            "Fig. 8: machines", "machines", tuple(Series(str(name), seconds, trace[f"instances.{name}"].tolist()) for name in (MAP, REDUCE))
        ),
        Plot("Latency", "s", _two(seconds, trace, {"95%": "latency_p95_s", "median": "latency_p50_s"})),
    )
    figures = {"sustained_s": sustained_s, "early": early, "late": late, "dropped": float(dropped)}
    figures |= {"map": added_map, "reduce": added_reduce}
    return Result(claims, plots, violations=violations_of(trace), simulated_s=duration_s, nodes=int(machines.max()), figures=figures)


def _grown(at_s: Floats, machines: Floats, first_s: float, last_s: float) -> float:
    """Machines added per 100 s between two moments."""
    count = np.interp([first_s, last_s], at_s, machines)
    return float((count[1] - count[0]) / (last_s - first_s) * 100)


SCENARIOS = (
    Scenario(
        "seep-fig6",
        "SEEP Fig. 6, 7",
        "Linear Road with L=350: machines follow the input to about 50, throughput keeps up, latency below 5 s",
        {"expressways": 350, "duration_s": 2000.0, "threshold": 0.7, "pool": 4, "tick_s": 0.1},
        closed_loop,
    ),
    Scenario(
        "seep-fig8",
        "SEEP Fig. 8",
        "open loop: scales out until 550,000 rows/s are sustained, map earlier and faster than reduce",
        {"rows_per_s": 550_000.0, "duration_s": 400.0, "pool": 40, "start_s": 90.0, "queue_rows": 50_000.0, "tick_s": 0.1},
        open_loop,
    ),
)
