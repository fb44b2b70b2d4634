"""Floe Fig. 6: a ring of reducers balances its load (a) and scales out (b); (c) shows the cost of the checkpoint interval.

The application counts words. A node processes 2,000 words a second; the paper gives no number, and only ratios matter. Checkpoints go to
the next node every 2 s, which the paper finds best. A ready machine joins the ring within a second. Booting a machine takes extra time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.control.observation import Observation
from headrace.control.ring.messages import RingConfig
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import model, workload
from headrace.sim.checkers import CHECKERS
from headrace.sim.ring import Ring
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

COUNT = OperatorId("count")
WORDS_PER_S = 2_000.0
"""The capacity of a node."""
TOKENS = (0, 1_600, 3_100)
"""The places of three nodes on the ring. Like random tokens, they give arcs of different sizes, so Fig. 6a starts imbalanced."""


@dataclass(frozen=True, eq=False)
class RingRun:
    """The record of one simulated ring."""

    trace: Trace
    ring: Ring
    rates: Rates


class Rates:
    """A listener that records, at every report, the rows per second of each node and the rows that wait there."""

    def __init__(self) -> None:
        self.at_s: list[float] = []
        self.rows: list[dict[str, float]] = []
        self.waiting: list[dict[str, float]] = []

    def __call__(self, sim: Simulator, observation: Observation) -> None:
        load = sim.loads[COUNT]
        names = [f"n{host}" for host in load.hosts]
        self.at_s.append(sim.clock.now_s)
        self.rows.append(dict(zip(names, load.rows_in_per_s.tolist(), strict=True)))
        self.waiting.append(dict(zip(names, load.queue_rows.tolist(), strict=True)))

    def series(self, which: list[dict[str, float]], mean_s: float) -> tuple[Series, ...]:
        """A line for each node. Each point is the mean over the last ``mean_s`` seconds."""
        names = sorted({name for each in which for name in each}, key=lambda name: int(name[1:]))
        at = np.array(self.at_s)
        lines = []
        for name in names:
            values = np.array([each.get(name, 0.0) for each in which])
            until = np.cumsum(np.r_[0.0, values])
            first = np.searchsorted(at, at - mean_s, side="right")
            mean = (until[1:] - until[first]) / (np.arange(len(at)) + 1 - first)
            lines.append(Series(name, self.at_s, mean.tolist()))
        return tuple(lines)


def simulate(
    rate: workload.Rate,
    duration_s: float,
    nodes: int,
    config: RingConfig,
    seed: int,
    *,
    keys: workload.Keys = workload.even,
    tokens: Sequence[int] | None = None,
    checkpoint_s: float = 2.0,
    report_s: float = 1.0,
    spare: int = 0,
    words_per_s: float = WORDS_PER_S,
    tick_s: float = 0.05,
    faults: tuple[model.Fault, ...] = (),
) -> RingRun:
    """Simulate one ring. State is 1 kB per word, for 50,000 words."""
    count = model.SimulatedOperator(
        COUNT,
        {"words": 1.0},
        cost_s=1.0 / words_per_s,
        state=model.SimulatedState(bytes_per_row=1_000, bytes_max=50e6, checkpoint_s=checkpoint_s),
        keys=keys,
        keys_change=keys is not workload.even,
    )
    plan = model.SimulationPlan(
        model.SimulatedQuery({"words": rate}, (count,)),
        duration_s=duration_s,
        instances={COUNT: nodes},
        settings=model.SimulationSettings(tick_s=tick_s, report_s=report_s, recovery="none", replicas=0, grace_s=60.0),
        faults=faults,
        spare=spare,
    )
    ring = Ring(COUNT, config, tokens)
    rates = Rates()
    sim = Simulator(plan, seed=seed, listeners=[ring, rates], checkers=(*CHECKERS, lambda: ring.check))
    ring.attach(sim)
    return RingRun(sim.run(), ring, rates)


def hot_words(words: int, share: float, at_s: float, seed: int) -> workload.Keys:
    """An even distribution until ``at_s``. Then a share of all rows belongs to a few words, all in the first node's arc."""
    hot = np.random.default_rng(seed).choice(TOKENS[1], words, replace=False)
    weights = workload.EVEN * (1 - share)
    weights[hot] += share / words
    return lambda now_s: workload.EVEN if now_s < at_s else weights


def balance(options: Options, seed: int, checkpoint_s: float = 2.0) -> RingRun:
    """Fig. 6a: three nodes, one of which becomes overloaded when a few words become frequent. There is no fourth machine."""
    shift_s, base, hot = number(options, "shift_s"), number(options, "words_per_s"), number(options, "hot_words_per_s")
    rate = workload.steps((0.0, base), (shift_s, base + hot))
    keys = hot_words(20, hot / (base + hot), shift_s, seed)
    duration_s = shift_s + number(options, "after_s")
    return simulate(
        rate, duration_s, 3, RingConfig(), seed, keys=keys, tokens=TOKENS, checkpoint_s=checkpoint_s, tick_s=number(options, "tick_s")
    )


def grow(options: Options, seed: int) -> RingRun:
    """Fig. 6b: a growing rate of words, with ready machines in the pool."""
    rate = workload.ramp(3_000.0, number(options, "words_per_s_max"), number(options, "ramp_s"))
    return simulate(rate, number(options, "ramp_s") + 60.0, 3, RingConfig(), seed, spare=40, tick_s=number(options, "tick_s"))


def run(options: Options, seed: int) -> Result:
    balanced, grown = balance(options, seed), grow(options, seed)
    shift_s, intervals = number(options, "shift_s"), _intervals(options)
    # A shorter run is enough for (c): all changes happen soon after the shift.
    short = dict(options, shift_s=30.0, after_s=90.0)
    swept = [balance(short, seed, float(interval)) for interval in intervals]
    figures = _balance_figures(balanced, shift_s) | _grow_figures(grown)
    rows: list[tuple[str, ...]] = []
    for interval, each in zip(intervals, swept, strict=True):
        replayed = sum(change.rows_replayed for change in each.ring.changes)
        took_s = max((change.ready_s - change.taken_s for change in each.ring.changes), default=0.0)
        figures |= {f"c.{interval}.rows": replayed, f"c.{interval}.s": took_s}
        rows.append((f"{interval} s", f"{replayed:,.0f}", f"{1000 * took_s:.0f} ms", f"{1000 * _worst_s(each, 30.0):.0f} ms"))
    traces = [each.trace for each in (balanced, grown, *swept)]
    return Result(
        _claims(figures, intervals),
        _plots(balanced, grown),
        ("checkpoints every", "rows replayed", "until replayed", "worst p99 latency"),
        tuple(rows),
        violations_of(*traces),
        simulated_s=float(sum(trace["at_s"][-1] for trace in traces)),
        nodes=int(max(trace["working"].max() for trace in traces)),
        figures=figures,
    )


def _intervals(options: Options) -> list[int]:
    return [int(each) for each in str(options["checkpoints_s"]).split()]


def _balance_figures(found: RingRun, shift_s: float) -> dict[str, float]:
    changes = [change for change in found.ring.changes if change.taken_s > shift_s]
    waiting, at_s = found.trace["rows_waiting"], found.trace["at_s"]
    drained = at_s[(at_s > shift_s) & (waiting > 200)]
    last = found.rates.rows[-1]
    return {
        "a.before": float(len(found.ring.changes) - len(changes)),
        "a.moves": float(len(changes)),
        "a.givers": float(len({change.giver for change in changes})),
        "a.last_move_s": max((change.ready_s for change in changes), default=shift_s) - shift_s,
        "a.drained_s": float(drained.max(initial=shift_s) - shift_s),
        "a.requested": float(found.ring.requested),
        "a.busiest": max(last.values()) / WORDS_PER_S,
        "a.settled": float(found.ring.settled()),
    }


def _grow_figures(found: RingRun) -> dict[str, float]:
    out = [change for change in found.ring.changes if change.kind == "scale out"]
    took = np.array([change.ready_s - change.asked_s for change in out])
    trace = found.trace
    return {
        "b.scaled_out": float(len(out)),
        "b.reaction.least": float(took.min(initial=np.inf)),
        "b.reaction.median": float(np.median(took)) if len(took) else float("nan"),
        "b.reaction.worst": float(took.max(initial=0.0)),
        "b.throughput": float(trace["rows_out_per_s"].sum() / trace["rows_in_per_s"].sum()),
        "b.waiting": float(trace["rows_waiting"][-10:].mean()),
    }


def _worst_s(found: RingRun, shift_s: float) -> float:
    return float(np.nanmax(found.trace["latency_p99_s"][found.trace["at_s"] > shift_s]))


def _claims(seen: dict[str, float], intervals: list[int]) -> tuple[Claim, ...]:
    took = [seen[f"c.{interval}.s"] for interval in intervals]
    return (
        Claim("6a: imbalanced but stable at first", "yes", f"{seen['a.before']:.0f} moves before the shift", seen["a.before"] == 0),
        Claim(
            "6a: the neighbour hands on what it cannot take",
            "reducer 1 to 3, 3 to 2",
            f"{seen['a.moves']:.0f} moves by {seen['a.givers']:.0f} givers, {seen['a.requested']:.0f} machines requested",
            seen["a.givers"] >= 2 and seen["a.requested"] == 0,
        ),
        Claim(
            "6a: stable again after the shift",
            "about 200 s",
            f"last move after {seen['a.last_move_s']:.0f} s, queues empty after {seen['a.drained_s']:.0f} s",
            bool(seen["a.settled"]) and seen["a.drained_s"] < 200,
        ),
        Claim(
            "6b: reaction of a scale out",
            "1.5 to 3 s",
            f"{seen['b.reaction.least']:.1f} to {seen['b.reaction.worst']:.1f} s, median {seen['b.reaction.median']:.1f} s",
            1.0 <= seen["b.reaction.median"] <= 3.5,
        ),
        Claim(
            "6b: throughput catches up with the rate",
            "yes",
            f"{seen['b.throughput']:.1%} of the input, {seen['b.waiting']:.0f} rows wait at the end",
            seen["b.throughput"] > 0.98,
        ),
        Claim(
            "6c: replay takes longer with longer checkpoint intervals",
            "yes (10 to 500 ms at moderate rates)",
            ", ".join(f"{interval} s: {1000 * each:.0f} ms" for interval, each in zip(intervals, took, strict=True)),
            took[-1] > took[0],
        ),
    )


def _plots(balanced: RingRun, grown: RingRun) -> tuple[Plot, ...]:
    trace = grown.trace
    at_s = trace["at_s"].tolist()
    return (
        Plot("Floe Fig. 6a: data rate per node, last minute's mean", "words/s", balanced.rates.series(balanced.rates.rows, 60.0)),
        Plot("Floe Fig. 6a: words that wait", "words", balanced.rates.series(balanced.rates.waiting, 1.0)),
        Plot(
            "Floe Fig. 6b: throughput while the rate grows",
            "words/s",
            (
                Series("in", at_s, trace["rows_in_per_s"].tolist()),
                Series("out", at_s, trace["rows_out_per_s"].tolist()),
                Series("nodes, x 1000", at_s, (1000 * trace["working"]).tolist()),
            ),
        ),
    )


OPTIONS: Options = {
    "words_per_s": 3_000.0,
    "hot_words_per_s": 900.0,
    "shift_s": 500.0,
    "after_s": 400.0,
    "words_per_s_max": 15_000.0,
    "ramp_s": 600.0,
    "checkpoints_s": "1 2 5 10",
    "tick_s": 0.05,
}

SCENARIOS = (
    Scenario("floe-fig6", "Floe Fig. 6", "a ring balances and scales out by talk between neighbours, within seconds", OPTIONS, run),
)
