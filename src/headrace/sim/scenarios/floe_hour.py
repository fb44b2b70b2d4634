"""Floe's ring with a thousand nodes for an hour. The paper does not go so far (VIII: "the goal is not to study hundreds of nodes").

Every few minutes some machines die at once, no two of them neighbours; ready machines are in the pool. The ring must detect the failures,
take over the slots, relieve the takers, and never lose a slot. Most reports lead to no message and cost little
(`headrace.control.ring.protocol`).
"""

from __future__ import annotations

import numpy as np

from headrace.control.ring.messages import RingConfig
from headrace.report.plots import Plot, Series
from headrace.sim import model, workload
from headrace.sim.scenario import Claim, Options, Result, Scenario, number, violations_of
from headrace.sim.scenarios.floe_balance import WORDS_PER_S, simulate
from headrace.sim.scenarios.floe_failures import apart


def run(options: Options, seed: int) -> Result:
    nodes, duration_s, every_s = int(options["nodes"]), number(options, "duration_s"), number(options, "every_s")
    rng = np.random.default_rng(seed)
    # The first machines are numbered in ring order. Machines that join later have higher numbers, and no fault names them.
    moments = np.arange(every_s, duration_s - 60.0, every_s).tolist()
    faults = tuple(model.Fault(at_s, machines=apart(nodes, int(options["failing"]), rng)) for at_s in moments)
    found = simulate(
        workload.constant(nodes * WORDS_PER_S * number(options, "busy")),
        duration_s,
        nodes,
        RingConfig(nodes_min=nodes // 2),
        seed,
        report_s=2.0,
        tick_s=number(options, "tick_s"),
        spare=nodes,
        faults=faults,
    )
    ring, trace = found.ring, found.trace
    taken = [change for change in ring.changes if change.kind == "take-over"]
    failed = sum(event.value for event in trace.events if event.what == "failed")
    figures = {
        "failed": failed,
        "taken": float(len(taken)),
        "lost": float(ring.lost_slots),
        "whole": float(ring.whole()),
        "messages": float(ring.messages),
        "waiting": float(trace["rows_waiting"][-1]),
        "noticed_s": max((change.taken_s - change.asked_s for change in taken), default=0.0),
    }
    claims = (
        Claim(
            f"{failed:.0f} machines die, {int(options['failing'])} at a time",
            "no loss",
            f"{ring.lost_slots} slots lost",
            not ring.lost_slots,
        ),
        Claim("every slot has its replica in the end", "yes", "yes" if ring.whole() else "no", ring.whole()),
        Claim(
            "rows that wait in the end", "none for long", f"{figures['waiting']:,.0f} of {trace['rows_in_per_s'][-1]:,.0f} a second", None
        ),
        Claim("messages of all nodes", "-", f"{ring.messages:,} beside {nodes * duration_s / 2:,.0f} reports", None),
    )
    at_s = trace["at_s"].tolist()
    plots = (
        Plot("Floe: nodes of a large ring", "nodes", (Series("working", at_s, trace["working"].tolist()),)),
        Plot("Floe: words that wait", "words", (Series("waiting", at_s, trace["rows_waiting"].tolist()),)),
    )
    nodes_max = int(trace["working"].max())
    return Result(claims, plots, violations=violations_of(trace), simulated_s=duration_s, nodes=nodes_max, figures=figures)


OPTIONS: Options = {
    "nodes": 1000,
    "duration_s": 3600.0,
    "every_s": 600.0,
    "failing": 10,
    "busy": 0.6,
    "tick_s": 0.2,
}

SCENARIOS = (Scenario("floe-hour", "Floe VI, VII", "a thousand nodes, an hour, failures now and then: no slot is lost", OPTIONS, run),)
