"""Replica groups, Fig. 1: a failure, an overload and a new node, all at once.

    A          m0  m1  m2  m3         m0 fails: it runs yellow, and has red's replica; violet's load grows and overloads m2
    primary    ye  re  gr  bl
                       vi
    replica    re  ye  bl  vi gr      m4 is new

The same situation is simulated without replicas too. Then the whole state of a range must move before processing can go on, as in the
systems that the paper compares itself with. State is large, 1 GB per range, because the paper is about large state.
"""

from __future__ import annotations

import math

import numpy as np

from headrace.control.observation import Floats
from headrace.control.replicas.model import HandOver, RangeId, ReplicaConfig, ShipCopy
from headrace.ids import SLOTS, OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import model, workload
from headrace.sim.replica_groups import ReplicaGroups
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace

COUNT = OperatorId("count")
COLOURS = tuple(map(RangeId, ("yellow", "red", "green", "violet", "blue")))
PRIMARIES = dict(zip(COLOURS, (0, 1, 2, 2, 3), strict=True))
REPLICAS = dict(zip(COLOURS, (1, 0, 3, 3, 2), strict=True))
CPU = dict(zip(COLOURS, (0.30, 0.35, 0.45, 0.25, 0.30), strict=True))
"""The share of a machine's CPU that each range takes, before violet grows."""
VIOLET_GROWN = 0.45
ROWS_PER_S = 10_000.0
"""The capacity of a machine."""
FAILED, NEW = 0, 4
NAMES = ("first", "second", "third", "fourth", "new one")


def slots_of(colours: int) -> list[np.ndarray]:
    """All slots, divided evenly into this many ranges."""
    return np.array_split(np.arange(SLOTS), colours)


def shares(violet: float) -> Floats:
    """The share of all rows that falls into each slot, for this CPU share of violet."""
    weights = np.zeros(SLOTS)
    for name, slots in zip(COLOURS, slots_of(len(COLOURS)), strict=True):
        weights[slots] = (violet if name == "violet" else CPU[name]) / len(slots)
    return np.asarray(weights / weights.sum())


def simulate(options: Options, replicated: bool, seed: int) -> tuple[Trace, ReplicaGroups]:
    """Simulate the failure, the overload and the new node, with replicas or without."""
    at_s = number(options, "at_s")
    before, after = sum(CPU.values()), sum(CPU.values()) - CPU[RangeId("violet")] + VIOLET_GROWN
    first, grown = shares(CPU[RangeId("violet")]), shares(VIOLET_GROWN)
    count = model.SimulatedOperator(
        COUNT,
        {"rows": 1.0},
        cost_s=1.0 / ROWS_PER_S,
        state=model.SimulatedState(checkpoint_s=number(options, "checkpoint_s")),
        keys=lambda now_s: first if now_s < at_s else grown,
        keys_change=True,
    )
    plan = model.SimulationPlan(
        model.SimulatedQuery({"rows": workload.steps((0.0, before * ROWS_PER_S), (at_s, after * ROWS_PER_S))}, (count,)),
        duration_s=at_s + number(options, "after_s"),
        instances={COUNT: 4},
        machines=model.MachineModel(network_bytes_per_s=number(options, "network_bytes_per_s"), zones=8),
        settings=model.SimulationSettings(report_s=1.0, recovery="none", replicas=0, deploy_s=0.0),
        faults=(model.Fault(at_s, machines=(FAILED,)),),
        spare=1,
    )
    groups = ReplicaGroups(
        COUNT,
        dict(zip(COLOURS, slots_of(len(COLOURS)), strict=True)),
        PRIMARIES,
        {name: frozenset({REPLICAS[name]}) if replicated else frozenset() for name in COLOURS},
        ReplicaConfig(replicas=1),
        np.full(SLOTS, number(options, "state_bytes") * len(COLOURS) / SLOTS),
        number(options, "delta_share"),
        replicated,
    )
    sim = Simulator(plan, seed=seed, listeners=[groups])
    groups.attach(sim)
    sim.clock.at(at_s, lambda: groups.join(sim))
    return sim.run(), groups


def run(options: Options, seed: int) -> Result:
    (with_trace, groups), (without_trace, bare) = (simulate(options, replicated, seed) for replicated in (True, False))
    at_s = number(options, "at_s")
    figures = {**_figures("with", with_trace, groups, at_s), **_figures("without", without_trace, bare, at_s)}
    rows = [
        (
            each.change.range,
            type(each.change).__name__ + (" (light)" if isinstance(each.change, HandOver) and each.change.light else ""),
            str(getattr(each.change, "source", "") or "-"),
            str(getattr(each.change, "target", "") or getattr(each.change, "node", "")),
            f"{each.bytes_moved / 1e6:,.0f} MB",
            f"{each.over_s - at_s:.1f} s",
        )
        for each in groups.done
    ]
    series = tuple(
        Series(name, trace["at_s"].tolist(), [None if math.isnan(each) else each for each in trace["latency_p99_s"].tolist()])
        for name, trace in (("with replicas", with_trace), ("without", without_trace))
    )
    return Result(
        _claims(figures, groups),
        (Plot("Replica groups, Fig. 1: latency (p99)", "s", series),),
        ("range", "change", "from", "to", "moved", "over after"),
        tuple(rows),
        violations_of(with_trace, without_trace),
        simulated_s=2 * float(with_trace["at_s"][-1]),
        nodes=5,
        figures=figures,
    )


def _figures(name: str, trace: Trace, groups: ReplicaGroups, at_s: float) -> dict[str, float]:
    handed = [each for each in groups.done if isinstance(each.change, HandOver)]
    after = trace["at_s"] > at_s
    behind = trace["at_s"][after & (trace["rows_waiting"] > 500)]
    return {
        f"{name}.handed_over": float(len(handed)),
        f"{name}.light": float(sum(isinstance(each.change, HandOver) and each.change.light for each in handed)),
        f"{name}.bytes_waited_for": float(sum(each.bytes_moved for each in handed)),
        f"{name}.latency_s": float(np.nanmax(trace["latency_p99_s"][after])),
        f"{name}.caught_up_s": float(behind.max(initial=at_s) - at_s),
        f"{name}.replicas": float(sum(len(hosts) for hosts in groups.replicas.values())),
        f"{name}.settled_s": max((each.over_s for each in groups.done), default=at_s) - at_s,
    }


def _claims(seen: dict[str, float], groups: ReplicaGroups) -> tuple[Claim, ...]:
    where = {name: (groups.primaries[name], sorted(groups.replicas[name])) for name in COLOURS}
    yellow, red, violet = (where[RangeId(name)] for name in ("yellow", "red", "violet"))
    shipped = {each.change.range for each in groups.done if isinstance(each.change, ShipCopy) and each.change.target == f"m{NEW}"}
    return (
        Claim("yellow, whose host failed", "restored on the second, replicated on the new one", _told(yellow), yellow == (1, [NEW])),
        Claim("violet, whose host is overloaded", "moved to the fourth", _told(violet), violet[0] == 3),
        Claim("violet's replica", "on the second", f"on the {', '.join(NAMES[each] for each in violet[1])}", violet[1] == [1]),
        Claim("red, whose replica failed", "replicated on the new one", _told(red), red == (1, [NEW])),
        Claim("what the new node gets", "yellow's and red's replicas", ", ".join(sorted(shipped)), shipped == {"yellow", "red"}),
        Claim(
            "hand-overs are light",
            "yes",
            f"{seen['with.light']:.0f} of {seen['with.handed_over']:.0f}; without replicas {seen['without.light']:.0f} of "
            f"{seen['without.handed_over']:.0f}",
            seen["with.light"] == seen["with.handed_over"] > 0,
        ),
        Claim(
            "bytes that processing waits for",
            "only increments",
            f"{seen['with.bytes_waited_for'] / 1e6:,.0f} MB against {seen['without.bytes_waited_for'] / 1e6:,.0f} MB without replicas",
            seen["with.bytes_waited_for"] < seen["without.bytes_waited_for"] / 10,
        ),
        Claim(
            "worst latency (p99)",
            "negligible effect is the aim (4.3)",
            f"{seen['with.latency_s']:.1f} s against {seen['without.latency_s']:.1f} s without replicas",
            seen["with.latency_s"] < seen["without.latency_s"] / 2,
        ),
        Claim(
            "every range has its replica again",
            "yes",
            f"{seen['with.replicas']:.0f} of {len(COLOURS)}",
            seen["with.replicas"] == len(COLOURS),
        ),
    )


def _told(where: tuple[int, list[int]]) -> str:
    """Where a range and its replica are, in the paper's words. The paper counts instances from 1, we count machines from 0."""
    return f"on the {NAMES[where[0]]}, replicated on the {', '.join(NAMES[each] for each in where[1])}"


OPTIONS: Options = {
    "at_s": 30.0,
    "after_s": 150.0,
    "state_bytes": 1e9,
    "delta_share": 0.02,
    "network_bytes_per_s": 50e6,
    "checkpoint_s": 5.0,
}

SCENARIOS = (
    Scenario(
        "replica-groups-fig1", "Replica groups, Fig. 1", "a failure, an overload and a new node at once, by light hand-overs", OPTIONS, run
    ),
)
