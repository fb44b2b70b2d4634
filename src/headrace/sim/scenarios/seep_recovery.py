"""SEEP 6.2: how long a failed word counter takes to recover (Fig. 11 to 13).

    sentences ──> splitter ──> counter (30 s window, checkpoints)          the counter's machine dies between two checkpoints

Recovery time is measured from the failure until the counter's state is complete again: the failure is detected, the counter is deployed on
a ready machine, the checkpoint is fetched, and rows are replayed.

| approach        | replays                                     | meanwhile                                                     |
| --------------- | ------------------------------------------- | ------------------------------------------------------------- |
| R+SM            | the rows since the checkpoint               | upstream sends no new rows until it has replayed (Algorithm 3) |
| upstream backup | the window                                  | upstream goes on, so new rows arrive between replayed ones     |
| source replay   | the window, through the splitter once more  | the source emits nothing new                                   |

The paper prints no costs. Here a word counter is fully loaded at ``full_rows_per_s``, 1,200 sentences a second. At the largest rate, 1,000,
it is overloaded while it replays a window. SEEP says about Fig. 14 that 1,000 a second overload the query.

The parts of a parallel recovery are deployed in parallel. SEEP says that parallel recovery gains nothing with short intervals because of
"its higher overhead with two partitioned operators", without a number. ``partition_s`` sets this overhead; at 0, parallel recovery always
gains.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.control.observation import Floats, Observation
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import workload
from headrace.sim.model import Fault, MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, numbers, positive, violations_of
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

SPLITTER, COUNTER = OperatorId("splitter"), OperatorId("counter")
WINDOW_S = 30.0
STATE_BYTES = 200_000.0
"""The size of SEEP's medium state, 10,000 words."""
R_SM, UB, SR = "checkpoint", "upstream backup", "source replay"
NAMES = {R_SM: "R+SM", UB: "upstream backup", SR: "source replay"}


def run_once(options: Options, seed: int, rows_per_s: float, approach: str = R_SM, interval_s: float = 5.0, parts: int = 1) -> Trace:
    """Simulate one failure, at a random moment between two checkpoints."""
    full = number(options, "full_rows_per_s")
    state = SimulatedState(
        bytes_per_row=100.0,
        bytes_max=STATE_BYTES,
        checkpoint_s=interval_s if approach == R_SM else math.inf,
        checkpoint_cpu_s_per_byte=1e-8,
        window_s=WINDOW_S,
    )
    # A row is a sentence in both operators. Splitting it into words takes a quarter of the time of counting them.
    operators = (
        SimulatedOperator(SPLITTER, {"sentences": 1.0}, 0.25 / full),
        SimulatedOperator(COUNTER, {SPLITTER: 1.0}, 1.0 / full, state=state),
    )
    begun_s = math.ceil(45.0 / interval_s) * interval_s
    failed_s = begun_s + float(np.random.default_rng(seed).uniform(0, interval_s))
    settings = SimulationSettings(
        tick_s=number(options, "tick_s"),
        report_s=1.0,
        recovery=approach,
        recovery_parts=parts,
        partition_s=number(options, "partition_s") if parts > 1 else 0.0,
        detect_s=number(options, "detect_s"),
        deploy_s=number(options, "deploy_s"),
    )
    plan = SimulationPlan(
        SimulatedQuery({"sentences": workload.constant(rows_per_s)}, operators),
        failed_s + number(options, "watch_s"),
        machines=MachineModel(),
        settings=settings,
        faults=(Fault(failed_s, operator=COUNTER, count=1),),
        spare=2,
    )
    return Simulator(plan, seed=seed, listeners=[_stop_when_recovered]).run()


def _stop_when_recovered(sim: Simulator, seen: Observation) -> None:
    if any(event.what == "recovered" for event in sim.recorder.events):
        sim.clock.stop()


def recovery_s(
    options: Options, seed: int, rows_per_s: float, approach: str = R_SM, interval_s: float = 5.0, parts: int = 1
) -> tuple[float, list[Trace]]:
    """The mean recovery time of several runs, and their traces. It is infinite if a run does not recover. SEEP averaged over 10 runs."""
    positive(options, "runs", "full_rows_per_s", "watch_s", "tick_s")
    traces = [run_once(options, seed + turn, rows_per_s, approach, interval_s, parts) for turn in range(int(number(options, "runs")))]
    times = [trace.values("recovered")[0] if trace.values("recovered") else math.inf for trace in traces]
    return float(np.mean(times)), traces


def approaches(options: Options, seed: int) -> Result:
    """Fig. 11: recovery time of the three approaches, by input rate."""
    rates = numbers(options, "rates")
    traces: list[Trace] = []
    times: dict[str, list[float]] = {}
    for approach in (R_SM, SR, UB):
        for rate in rates:
            mean_s, made = recovery_s(options, seed, rate, approach)
            times.setdefault(approach, []).append(mean_s)
            traces += made
    sm, sr, ub = (np.array(times[approach]) for approach in (R_SM, SR, UB))
    claims = (
        Claim(
            "R+SM against the others",
            "faster at every rate",
            f"{_span(sr / sm)} times faster than source replay",
            bool((sm < np.minimum(sr, ub)).all()),
        ),
        Claim("source replay against upstream backup", "slightly faster", f"{_span(ub / sr)} times faster", bool((sr <= ub).all())),
        Claim(
            "the difference",
            "grows with the rate",
            f"{ub[0] - sm[0]:.1f} s to {ub[-1] - sm[-1]:.1f} s",
            bool(ub[-1] - sm[-1] > ub[0] - sm[0]),
        ),
    )
    columns = ("rows/s", *(f"{NAMES[approach]} (s)" for approach in times))
    rows = tuple((f"{rate:g}", *(f"{times[approach][at]:.2f}" for approach in times)) for at, rate in enumerate(rates))
    series = tuple(Series(NAMES[approach], rates, _finite(each)) for approach, each in times.items())
    plots = (Plot("Fig. 11: time to recover", "s", series, x_label="input (rows/s)"),)
    figures = {f"{NAMES[approach]}.{rate:g}": each[at] for approach, each in times.items() for at, rate in enumerate(rates)}
    return _result(traces, claims, plots, columns, rows, figures)


def intervals(options: Options, seed: int) -> Result:
    """Fig. 12: recovery time of R+SM, by checkpoint interval and input rate."""
    rates, each_s = numbers(options, "rates"), numbers(options, "intervals_s")
    traces: list[Trace] = []
    times = np.zeros((len(rates), len(each_s)))
    for at, rate in enumerate(rates):
        for place, interval_s in enumerate(each_s):
            times[at, place], made = recovery_s(options, seed, rate, R_SM, interval_s)
            traces += made
    grows = bool((np.diff(times, axis=1) > 0).all())
    claims = (
        Claim("a longer interval", "takes longer to recover", f"{_span(times[:, -1] / times[:, 0])} times as long", grows),
        Claim("a higher rate", "takes longer, more so with long intervals", _by_rate(times), bool((np.diff(times[:, -1]) > 0).all())),
    )
    columns = ("interval (s)", *(f"{rate:g} rows/s" for rate in rates))
    rows = tuple((f"{interval_s:g}", *(f"{value:.2f}" for value in times[:, place])) for place, interval_s in enumerate(each_s))
    series = tuple(Series(f"{rate:g} rows/s", each_s, _finite(times[at].tolist())) for at, rate in enumerate(rates))
    plots = (Plot("Fig. 12: time to recover", "s", series, x_label="checkpoint interval (s)"),)
    figures = {
        f"{rate:g}.{interval_s:g}": float(times[at, place]) for at, rate in enumerate(rates) for place, interval_s in enumerate(each_s)
    }
    return _result(traces, claims, plots, columns, rows, figures)


def parallel(options: Options, seed: int) -> Result:
    """Fig. 13: serial against parallel recovery, by checkpoint interval."""
    rate, each_s = number(options, "rows_per_s"), numbers(options, "intervals_s")
    traces: list[Trace] = []
    times: dict[int, list[float]] = {}
    for parts in (1, 2):
        for interval_s in each_s:
            mean_s, made = recovery_s(options, seed, rate, R_SM, interval_s, parts)
            times.setdefault(parts, []).append(mean_s)
            traces += made
    serial, double = np.array(times[1]), np.array(times[2])
    better = [interval_s for interval_s, gained in zip(each_s, serial > double, strict=True) if gained]
    from_s = f"from an interval of {better[0]:g} s on" if better else "at no interval"
    # The overhead of a part at which parallel recovery would gain nothing at the shortest interval.
    even_s = serial[0] - double[0] + number(options, "partition_s")
    claims = (
        Claim(
            "shortest interval",
            "parallel brings nothing",
            f"serial {serial[0]:.2f} s, parallel {double[0]:.2f} s",
            bool(double[0] >= 0.98 * serial[0]),
        ),
        Claim(
            "longest interval",
            "parallel is faster",
            f"serial {serial[-1]:.2f} s, parallel {double[-1]:.2f} s",
            bool(double[-1] < serial[-1]),
        ),
        Claim("parallel is faster", "", from_s, None),
        Claim("overhead of a part at which the shortest interval gains nothing", "not printed", f"{even_s:.2f} s", None),
    )
    columns = ("interval (s)", "serial (s)", "parallel, 2 (s)")
    rows = tuple((f"{interval_s:g}", f"{serial[at]:.2f}", f"{double[at]:.2f}") for at, interval_s in enumerate(each_s))
    series = (Series("serial", each_s, _finite(times[1])), Series("parallel, 2", each_s, _finite(times[2])))
    plots = (Plot("Fig. 13: time to recover", "s", series, x_label="checkpoint interval (s)"),)
    figures = {f"{parts}.{interval_s:g}": times[parts][at] for parts in times for at, interval_s in enumerate(each_s)}
    return _result(traces, claims, plots, columns, rows, figures)


def _span(ratios: Floats) -> str:
    return f"{ratios.min():.1f} to {ratios.max():.1f}"


def _by_rate(times: Floats) -> str:
    return f"{times[-1, 0] - times[0, 0]:.1f} s more at the shortest, {times[-1, -1] - times[0, -1]:.1f} s at the longest interval"


def _finite(values: list[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _result(
    traces: list[Trace],
    claims: tuple[Claim, ...],
    plots: tuple[Plot, ...],
    columns: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    figures: dict[str, float],
) -> Result:
    simulated_s = sum(float(trace["at_s"][-1]) for trace in traces)
    most = max(int((trace["working"] + trace["ready"]).max()) for trace in traces)
    return Result(claims, plots, columns, rows, violations_of(*traces), simulated_s, most, figures)


COMMON = {"runs": 10, "full_rows_per_s": 1200.0, "detect_s": 0.5, "deploy_s": 0.5, "watch_s": 120.0, "tick_s": 0.1}

SCENARIOS = (
    Scenario(
        "seep-fig11",
        "SEEP Fig. 11",
        "recovery from a checkpoint is faster than upstream backup and source replay, most at high rates",
        {"rates": "100/500/1000", **COMMON},
        approaches,
    ),
    Scenario(
        "seep-fig12",
        "SEEP Fig. 12",
        "recovery takes longer with the checkpoint interval, and with the rate",
        {"rates": "100/500/1000", "intervals_s": "1/5/10/15/20/25/30", **COMMON},
        intervals,
    ),
    Scenario(
        "seep-fig13",
        "SEEP Fig. 13",
        "parallel recovery pays off with long checkpoint intervals, not with short ones",
        {"rows_per_s": 500.0, "intervals_s": "1/5/10/15/20/25/30", "partition_s": 0.0, **COMMON},
        parallel,
    ),
)
