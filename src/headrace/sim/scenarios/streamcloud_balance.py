"""StreamCloud Fig. 20: a shifting distribution of keys, with and without the load balancer.

15 instances, 150,000 rows a second, 10,000 phone numbers. First all numbers have the same rate. Then they follow a normal distribution
whose mean moves (20a), or whose deviation shrinks (20b). Numbers are hashed to slots, so similar numbers are in different slots.

The paper does not give these values: the utilisation of instances (0.6, its target), the deviation of 20a (100, with which 20b starts),
the length of periods, and the threshold of imbalance (0.1; see `headrace.control.load_balancer`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.control import load_balancer
from headrace.control.observation import Floats, Observation, Owners
from headrace.ids import SLOTS, OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import model, policies, workload
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

COUNT = OperatorId("count")
NUMBERS = 10_000
MEANS = (2_000.0, 4_000.0, 6_000.0, 8_000.0)
DEVIATIONS = (100.0, 75.0, 50.0, 25.0)

Shape = tuple[float, float] | None
"""Mean and deviation of the distribution in a period; None if all numbers have the same rate."""


def slot_shares(shape: Shape, slot_of_number: Owners) -> Floats:
    """The share of all rows that falls into each slot.

    >>> shares = slot_shares((5_000.0, 25.0), np.arange(NUMBERS) % SLOTS)
    >>> round(float(shares.sum()), 6), int((shares > 1e-6).sum()) < 300
    (1.0, True)
    """
    numbers = np.arange(NUMBERS)
    calls = np.ones(NUMBERS) if shape is None else np.exp(-0.5 * ((numbers - shape[0]) / shape[1]) ** 2)
    shares = np.bincount(slot_of_number, weights=calls, minlength=SLOTS)
    return np.asarray(shares / shares.sum())


def keys_of(shapes: tuple[Shape, ...], period_s: float, seed: int) -> workload.Keys:
    """A distribution of keys that has each of these shapes for one period."""
    slot_of_number = np.random.default_rng(seed).integers(0, SLOTS, NUMBERS)
    shares = [slot_shares(shape, slot_of_number) for shape in shapes]
    return lambda at_s: shares[min(int(at_s / period_s), len(shares) - 1)]


SPREAD_MAX = 0.03
"""Mean CPU counts as constant if it varies by less than this."""


class BalanceWatch:
    """A listener that records the mean and the deviation of CPU over the instances, at every report."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.mean: list[float] = []
        self.deviation: list[float] = []

    def __call__(self, sim: Simulator, observation: Observation) -> None:
        cpu = sim.loads[COUNT].cpu
        self.at_s.append(sim.clock.now_s)
        self.mean.append(float(cpu.mean()))
        self.deviation.append(float(cpu.std()))

    def per_period(self, of: list[float], period_s: float, reduce: Callable[[Floats], float], skip_s: float = 0.0) -> list[float]:
        """One value for each period, by ``reduce``. The first ``skip_s`` of each period are left out."""
        at, values = np.array(self.at_s) - 1e-9, np.array(of)
        inside = at % period_s >= skip_s
        return [float(reduce(values[(at // period_s == period) & inside])) for period in range(int(at[-1] // period_s) + 1)]


def simulate(shapes: tuple[Shape, ...], options: Options, balanced: bool, seed: int) -> tuple[Trace, BalanceWatch]:
    """Run all periods, with the load balancer if ``balanced``."""
    period_s, instances, rows_per_s = number(options, "period_s"), int(options["instances"]), number(options, "rows_per_s")
    count = model.SimulatedOperator(
        COUNT,
        {"calls": 1.0},
        cost_s=number(options, "busy") * instances / rows_per_s,
        state=model.SimulatedState(bytes_per_row=100, bytes_max=NUMBERS * 1_000.0),
        keys=keys_of(shapes, period_s, seed),
        keys_change=True,
    )
    plan = model.SimulationPlan(
        model.SimulatedQuery({"calls": workload.constant(rows_per_s)}, (count,)),
        duration_s=period_s * len(shapes),
        instances={COUNT: instances},
        settings=model.SimulationSettings(report_s=number(options, "report_s"), handover="pause"),
    )
    config = load_balancer.LoadBalancerConfig(imbalance_max=number(options, "imbalance_max"))
    watch = BalanceWatch()
    trace = Simulator(plan, [policies.balancer(config)] if balanced else [], seed=seed, listeners=[watch]).run()
    return trace, watch


def run(options: Options, seed: int) -> Result:
    moving = (None, *((mean, number(options, "deviation")) for mean in MEANS))
    narrowing = (None, *((5_000.0, deviation) for deviation in DEVIATIONS))
    claims: list[Claim] = []
    plots: list[Plot] = []
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    traces: list[Trace] = []
    for part, shapes in (("a", moving), ("b", narrowing)):
        (on_trace, on), (off_trace, off) = (simulate(shapes, options, balanced, seed) for balanced in (True, False))
        traces += [on_trace, off_trace]
        seen = _figures(part, on, off, options)
        figures |= seen
        claims += _claims(part, seen, number(options, "imbalance_max"))
        plots.append(_plot(part, on, off))
        rows += _rows(part, shapes, on, off, options)
    columns = ("figure", "keys", "deviation off", "peak on", "after balancing", "mean CPU on", "off")
    note = "deviations of CPU over the instances; peaks are those within a report of the change of keys"
    return Result(
        tuple(claims),
        tuple(plots),
        columns,
        tuple(rows),
        violations_of(*traces),
        simulated_s=2 * number(options, "period_s") * (len(moving) + len(narrowing)),
        nodes=int(options["instances"]),
        figures=figures,
        note=note,
    )


def _figures(part: str, on: BalanceWatch, off: BalanceWatch, options: Options) -> dict[str, float]:
    period_s, report_s = number(options, "period_s"), number(options, "report_s")
    # After a change of keys, the first report still mixes both distributions. The balancer decides at the second; slots have moved by the
    # fourth.
    late = on.per_period(on.deviation, period_s, np.max, skip_s=4 * report_s)
    off_each = off.per_period(off.deviation, period_s, np.mean, skip_s=2 * report_s)
    peaks = on.per_period(on.deviation, period_s, np.max)
    limit = number(options, "imbalance_max")
    # If the deviation stays below the threshold, the balancer does nothing and there is no peak.
    fallen = [peak - after for peak, after in zip(peaks[1:], late[1:], strict=True) if peak > limit]
    return {
        f"{part}.on.worst": max(late[1:]),
        f"{part}.on.peak": max(on.deviation),
        f"{part}.on.peaks": float(len(fallen)),
        f"{part}.on.fallen": min(fallen, default=0.0),
        f"{part}.off.margin": min(without - after for without, after in zip(off_each[1:], late[1:], strict=True)),
        f"{part}.off.least": min(off_each[1:]),
        f"{part}.off.first": off_each[1],
        f"{part}.off.last": off_each[-1],
        f"{part}.mean.spread": float(np.ptp(on.mean[4:])),
        f"{part}.mean.on": float(np.mean(on.mean)),
        f"{part}.mean.off": float(np.mean(off.mean)),
    }


def _claims(part: str, seen: dict[str, float], limit: float) -> list[Claim]:
    on, off, last = seen[f"{part}.on.worst"], seen[f"{part}.off.least"], seen[f"{part}.off.last"]
    claims = [
        Claim(f"20{part}: deviation with balancing", f"kept below the threshold ({limit:g})", f"at most {on:.3f}", on <= limit),
        Claim(
            f"20{part}: deviation without",
            "larger in every period",
            f"at least {off:.3f}, and {seen[f'{part}.off.margin']:.3f} more than with in the same period",
            seen[f"{part}.off.margin"] > 0,
        ),
        Claim(
            f"20{part}: a peak after each change, then less",
            "yes",
            f"{seen[f'{part}.on.peaks']:.0f} peaks of up to {seen[f'{part}.on.peak']:.3f}; each falls by at least "
            f"{seen[f'{part}.on.fallen']:.3f}",
            seen[f"{part}.on.fallen"] > 0,
        ),
        Claim(
            f"20{part}: mean CPU",
            "constant, the same with and without",
            f"{seen[f'{part}.mean.on']:.3f} with, {seen[f'{part}.mean.off']:.3f} without; it varies by {seen[f'{part}.mean.spread']:.3f}",
            abs(seen[f"{part}.mean.on"] - seen[f"{part}.mean.off"]) < 0.03 and seen[f"{part}.mean.spread"] < SPREAD_MAX,
        ),
    ]
    if part == "b":
        first = seen["b.off.first"]
        claims.append(Claim("20b: without, imbalance grows as the deviation shrinks", "yes", f"{first:.3f} to {last:.3f}", last > first))
    return claims


def _plot(part: str, on: BalanceWatch, off: BalanceWatch) -> Plot:
    what = {"a": "mean of the keys moves", "b": "deviation of the keys shrinks"}[part]
    series = (
        Series("deviation, balanced", on.at_s, on.deviation),
        Series("deviation, not balanced", off.at_s, off.deviation),
        Series("mean, balanced", on.at_s, on.mean),
        Series("mean, not balanced", off.at_s, off.mean),
    )
    return Plot(f"StreamCloud Fig. 20{part}: {what}", "CPU", series)


def _rows(part: str, shapes: tuple[Shape, ...], on: BalanceWatch, off: BalanceWatch, options: Options) -> list[tuple[str, ...]]:
    period_s, report_s = number(options, "period_s"), number(options, "report_s")
    columns = (
        off.per_period(off.deviation, period_s, np.mean, skip_s=2 * report_s),
        on.per_period(on.deviation, period_s, np.max),
        on.per_period(on.deviation, period_s, np.max, skip_s=4 * report_s),
        on.per_period(on.mean, period_s, np.mean),
        off.per_period(off.mean, period_s, np.mean),
    )
    names = ["all alike" if shape is None else f"mean {shape[0]:g}, deviation {shape[1]:g}" for shape in shapes]
    return [(f"20{part}", name, *(f"{value:.3f}" for value in values)) for name, *values in zip(names, *columns, strict=True)]


OPTIONS: Options = {
    "period_s": 120.0,
    "report_s": 5.0,
    "instances": 15,
    "rows_per_s": 150_000.0,
    "busy": 0.6,
    "deviation": 100.0,
    "imbalance_max": 0.1,
}

SCENARIOS = (
    Scenario(
        "streamcloud-fig20",
        "StreamCloud Fig. 20",
        "load balancing keeps the deviation of CPU below its threshold while keys shift",
        OPTIONS,
        run,
    ),
)
