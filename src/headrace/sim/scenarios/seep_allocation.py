"""SEEP 6.1 and 5.2: how many machines. The threshold (Fig. 9), a human expert beside it (Fig. 10), and the size of the pool."""

from __future__ import annotations

import heapq
import itertools

import numpy as np

from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.scenarios import linear_road
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

LATE_S = 1.0
NEAR = 1.1
"""An allocation is as good as another one if its 95th percentile is within a tenth of it."""


def thresholds(options: Options, seed: int) -> Result:
    """Fig. 9. The best trade is taken as the least product of machines and 95th percentile: a tenth more of either counts the same."""
    deltas = [float(text) for text in str(options["thresholds"]).split("/")]
    traces = [_dynamic(options, seed, delta) for delta in deltas]
    machines = [float(linear_road.machines_of(trace)[-1]) for trace in traces]
    medians, p95s, p99s = ([trace.latencies.percentile(q) for trace in traces] for q in (50, 95, 99))
    changes = [sum(event.what == "scaled out" for event in trace.events) for trace in traces]
    trade = [count * p95_s for count, p95_s in zip(machines, p95s, strict=True)]
    best = deltas[int(np.argmin(trade))]
    fewer = all(a >= b for a, b in itertools.pairwise(machines))
    middle = min((p95_s for delta, p95_s in zip(deltas, p95s, strict=True) if 0.3 < delta < 0.8), default=float("nan"))
    claims = (
        Claim("machines as the threshold grows", "fewer and fewer", " ".join(f"{count:.0f}" for count in machines), fewer),
        Claim(
            "95% at the lowest threshold", "above that in the middle", f"{p95s[0]:.3f} s, {middle:.3f} s in the middle", p95s[0] > middle
        ),
        Claim(
            "95% at the highest threshold", "above that in the middle", f"{p95s[-1]:.3f} s, {middle:.3f} s in the middle", p95s[-1] > middle
        ),
        Claim("best trade of machines and 95%", "threshold of 0.5 to 0.7", f"{best:g}", 0.5 <= best <= 0.7),
    )
    rows = tuple(
        (f"{delta:g}", f"{count:.0f}", f"{changed}", f"{p50:.3f}", f"{p95:.3f}", f"{p99:.3f}", f"{product:.1f}")
        for delta, count, changed, p50, p95, p99, product in zip(deltas, machines, changes, medians, p95s, p99s, trade, strict=True)
    )
    percent = [100 * delta for delta in deltas]
    latency = (Series("99%", percent, p99s), Series("95%", percent, p95s), Series("median", percent, medians))
    plots = (
        Plot("Fig. 9: machines", "machines", (Series("machines", percent, machines),), x_label="threshold (%)"),
        Plot("Fig. 9: latency", "s", latency, x_label="threshold (%)"),
    )
    columns = ("threshold", "machines", "scale outs", "median (s)", "95% (s)", "99% (s)", "machines x 95%")
    figures = {f"machines.{delta:g}": count for delta, count in zip(deltas, machines, strict=True)}
    figures |= {f"p95.{delta:g}": p95 for delta, p95 in zip(deltas, p95s, strict=True)} | {"best": best}
    return _result(options, traces, claims, plots, columns, rows, figures)


def manual(options: Options, seed: int) -> Result:
    """Fig. 10. The expert knows the costs: with n machines each operator gets them so that the busiest instance is least busy."""
    first, last, step = (int(number(options, key)) for key in ("machines_min", "machines_max", "machines_step"))
    counts = list(range(first, last + 1, step))
    duration_s, expressways, tick_s = number(options, "duration_s"), int(number(options, "expressways")), number(options, "tick_s")
    fixed = [Simulator(linear_road.plan(expressways, duration_s, tick_s, expert(count)), seed=seed).run() for count in counts]
    trace = _dynamic(options, seed, number(options, "threshold"))
    machines = float(linear_road.machines_of(trace)[-1])
    p95s = [each.latencies.percentile(95) for each in fixed]
    best = next(count for count, p95_s in zip(counts, p95s, strict=True) if p95_s <= NEAR * min(p95s))
    p50_s, p95_s = (trace.latencies.percentile(q) for q in (50, 95))
    more = machines / best - 1
    claims = (
        Claim("best manual allocation", "20 machines", f"{best} machines: fewest with a 95% within a tenth of the least", None),
        Claim("dynamic scale out ends with", "25 machines, 25% more", f"{machines:.0f} machines, {more:.0%} more", more <= 0.25),
        Claim("fewer machines than the best", "95% grows", f"{p95s[0]:.2f} s with {counts[0]}", bool(p95s[0] > NEAR * min(p95s))),
        Claim("dynamic, median / 95%", "0.101 / 0.714 s", f"{p50_s:.3f} / {p95_s:.3f} s", None),
    )
    columns = ("machines", "busiest at the end", "median (s)", "95% (s)")
    rows = tuple(
        (str(count), f"{_busiest(expressways, count):.0%}", f"{each.latencies.percentile(50):.3f}", f"{each.latencies.percentile(95):.3f}")
        for count, each in zip(counts, fixed, strict=True)
    )
    places = [float(count) for count in counts]
    series = (
        Series("manual, 95%", places, p95s),
        Series("dynamic, 95%", [machines], [p95_s]),
        Series("manual, median", places, [each.latencies.percentile(50) for each in fixed]),
        Series("dynamic, median", [machines], [p50_s]),
    )
    plots = (Plot("Fig. 10: latency by machines", "s", series, x_label="machines"),)
    figures = {"best": float(best), "machines": machines, "more": more, "p95_s": p95_s, "first_p95_s": p95s[0], "least_p95_s": min(p95s)}
    return _result(options, [*fixed, trace], claims, plots, columns, rows, figures)


def expert(machines: int) -> dict[OperatorId, int]:
    """One machine for each operator, each further one to the operator whose instances are busiest.

    >>> expert(9)
    {'forwarder': 2, 'toll calculator': 4, 'toll assessment': 1, 'collector': 1, 'balance account': 1}
    """
    given = dict.fromkeys(linear_road.SCALED, 1)
    heap = [(-linear_road.PARTS[name], place, name) for place, name in enumerate(linear_road.SCALED)]
    heapq.heapify(heap)
    for _ in range(machines - len(given)):
        _, place, name = heap[0]
        given[name] += 1
        heapq.heapreplace(heap, (-linear_road.PARTS[name] / given[name], place, name))
    return given


def _busiest(expressways: int, machines: int) -> float:
    work = expressways * linear_road.LAST * linear_road.COST_US * 1e-6
    return max(work * linear_road.PARTS[name] / count for name, count in expert(machines).items())


def pool_sizes(options: Options, seed: int) -> Result:
    """5.2: a pool that is too small is empty when it is needed, one that is too large costs."""
    sizes = [int(text) for text in str(options["pools"]).split("/")]
    traces = [_dynamic(options, seed, number(options, "threshold"), size) for size in sizes]
    late = [late_s(trace) for trace in traces]
    idle = [float(trace["ready"].mean()) for trace in traces]
    worst = [float(np.nanmax(trace["latency_p99_s"])) for trace in traces]
    enough = next((size for size, seconds in zip(sizes, late, strict=True) if seconds <= late[-1] + 5), sizes[-1])
    claims = (
        Claim(
            "smallest pool",
            "empty when several are requested",
            f"{late[0]:.0f} s late, {late[-1]:.0f} s with the largest",
            late[0] > late[-1],
        ),
        Claim("largest pool", "unnecessary cost", f"{idle[-1]:.1f} machines idle on average", idle[-1] > idle[0]),
        Claim("smallest pool that is as good as the largest", "", f"{enough}", None),
    )
    columns = ("pool", "late (s)", "worst 99% (s)", "idle machines", "machines at the end")
    rows = tuple(
        (str(size), f"{seconds:.0f}", f"{most:.1f}", f"{ready:.1f}", f"{linear_road.machines_of(trace)[-1]:.0f}")
        for size, seconds, most, ready, trace in zip(sizes, late, worst, idle, traces, strict=True)
    )
    places = [float(size) for size in sizes]
    plots = (
        Plot("Time with rows more than 1 s late", "s", (Series("late", places, late),), x_label="size of the pool"),
        Plot("Machines that wait", "machines", (Series("idle", places, idle),), x_label="size of the pool"),
    )
    figures = {f"late.{size}": seconds for size, seconds in zip(sizes, late, strict=True)}
    figures |= {f"idle.{size}": ready for size, ready in zip(sizes, idle, strict=True)}
    return _result(options, traces, claims, plots, columns, rows, figures)


def late_s(trace: Trace) -> float:
    """For how long one row of twenty came out more than a second after it came in."""
    return float((np.nan_to_num(trace["latency_p95_s"], nan=np.inf) > LATE_S).sum() * (trace["at_s"][1] - trace["at_s"][0]))


def _dynamic(options: Options, seed: int, threshold: float, pool: int | None = None) -> Trace:
    size = int(number(options, "pool")) if pool is None else pool
    expressways, duration_s = int(number(options, "expressways")), number(options, "duration_s")
    return linear_road.dynamic(expressways, duration_s, number(options, "tick_s"), threshold, size, seed)


def _result(
    options: Options,
    traces: list[Trace],
    claims: tuple[Claim, ...],
    plots: tuple[Plot, ...],
    columns: tuple[str, ...],
    rows: tuple[tuple[str, ...], ...],
    figures: dict[str, float],
) -> Result:
    most = max(int(linear_road.machines_of(trace).max()) for trace in traces)
    simulated_s = number(options, "duration_s") * len(traces)
    return Result(claims, plots, columns, rows, violations_of(*traces), simulated_s, most, figures)


SCENARIOS = (
    Scenario(
        "seep-fig9",
        "SEEP Fig. 9",
        "threshold of the detector: fewer machines as it grows, best trade with latency at 50 to 70%",
        {"expressways": 64, "duration_s": 600.0, "thresholds": "0.1/0.2/0.3/0.4/0.5/0.6/0.7/0.8/0.9", "pool": 4, "tick_s": 0.1},
        thresholds,
    ),
    Scenario(
        "seep-fig10",
        "SEEP Fig. 10",
        "dynamic scale out takes at most 25% more machines than the best manual allocation",
        {
            "expressways": 115,
            "duration_s": 600.0,
            "threshold": 0.7,
            "machines_min": 8,
            "machines_max": 26,
            "machines_step": 2,
            "pool": 4,
            "tick_s": 0.1,
        },
        manual,
    ),
    Scenario(
        "seep-pool",
        "SEEP 5.2",
        "a pool of ready machines that is too small lets overloads last, one too large costs",
        {"expressways": 350, "duration_s": 1000.0, "threshold": 0.7, "pools": "0/1/2/4/8/16", "pool": 0, "tick_s": 0.25},
        pool_sizes,
    ),
)
