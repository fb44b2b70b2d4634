"""Borealis Fig. 3: two chains of two operators on two nodes. Their streams burst alternately. Connected plan against cut plan.

connected     node 1: a1 -> a2     node 2: b1 -> b2          loads 2cr and 4cr while b bursts, 4cr and 2cr while a bursts
cut           node 1: a1, b1       node 2: a2, b2            loads 3cr and 3cr in every burst

c is the cost of a tuple, and r the rate of a stream outside of bursts.
"""

from __future__ import annotations

from headrace.control import correlation
from headrace.control.network import Deployment, NetworkOperator, NetworkQuery, Node, NodeId, Placement, StreamId
from headrace.ids import OperatorId
from headrace.report.plots import Plot, Series
from headrace.sim import model
from headrace.sim.placed import Sources, floats, history, latencies_s
from headrace.sim.scenario import ROWS_AND_OWNERS_HELD, Claim, Options, Result, Scenario, number
from headrace.sim.workload import Rate

COST_S = 1e-3
NODES = (Node(NodeId("node 1")), Node(NodeId("node 2")))
CONNECTED: Placement = {
    OperatorId("a1"): NODES[0].name,
    OperatorId("a2"): NODES[0].name,
    OperatorId("b1"): NODES[1].name,
    OperatorId("b2"): NODES[1].name,
}


def chains() -> NetworkQuery:
    """Two streams, a and b, each with a chain of two operators."""
    operators = [
        NetworkOperator(OperatorId(f"{name}{at}"), (StreamId(name if at == 1 else f"{name}1"),), COST_S) for name in "ab" for at in (1, 2)
    ]
    return NetworkQuery((StreamId("a"), StreamId("b")), tuple(operators))


def in_turn(burst_s: float, first: bool) -> Rate:
    """A rate of 2 in every other period of ``burst_s``, and of 1 otherwise. The first stream bursts in the first period."""
    return lambda at_s: 2.0 if (int(at_s / burst_s) % 2 == 0) == first else 1.0


def run(options: Options, seed: int) -> Result:
    burst_s, duration_s = number(options, "burst_s"), number(options, "duration_s")
    cpus = floats(options["loads"])
    query = chains()
    sources = Sources({StreamId("a"): in_turn(burst_s, True), StreamId("b"): in_turn(burst_s, False)}, seen_s=4 * burst_s)
    cut = correlation.place(history(query, sources), NODES)
    plans = {"connected": CONNECTED, "cut": cut}
    bursts = {name: Deployment(query, NODES, plan).loads / COST_S for name, plan in plans.items()}
    seen = {name: " and ".join(f"{load:g}cr" for load in loads @ [1.0, 2.0]) for name, loads in bursts.items()}
    found = latencies_s(query, NODES, plans, sources, duration_s, cpus, model.SimulationSettings(tick_s=0.05, hop_s=0.005))
    ours, other = found["cut"], found["connected"]
    claims = (
        Claim("loads of the connected plan in a burst", "2cr and 4cr", seen["connected"], seen["connected"] == "2cr and 4cr"),
        Claim("loads of the plan by correlation-based placement", "3cr and 3cr (the cut plan)", seen["cut"], seen["cut"] == "3cr and 3cr"),
        Claim(
            f"latency at {cpus[-1]:.0%} load",
            "the cut plan's is smaller",
            f"{ours[-1] * 1000:.0f} ms, connected {other[-1] * 1000:.0f} ms",
            ours[-1] < other[-1],
        ),
    )
    return Result(
        claims,
        (_plot(cpus, found),),
        ("load", "connected, ms", "cut, ms"),
        tuple((f"{cpu:.0%}", f"{1000 * far:.0f}", f"{1000 * near:.0f}") for cpu, far, near in zip(cpus, other, ours, strict=True)),
        simulated_s=2 * len(cpus) * duration_s,
        nodes=2,
        figures={f"{name} {cpu:g}": value for name, values in found.items() for cpu, value in zip(cpus, values, strict=True)},
        held=ROWS_AND_OWNERS_HELD,
    )


def _plot(cpus: list[float], found: dict[str, list[float]]) -> Plot:
    lines = tuple(Series(name, [100 * cpu for cpu in cpus], values) for name, values in found.items())
    return Plot("Latency of the connected and of the cut plan", "s", lines, x_label="average load (%)")


SCENARIOS = (
    Scenario(
        "borealis-fig3",
        "Borealis Fig. 3",
        "cutting chains keeps both nodes even in every burst, and latency low",
        {"loads": "0.3,0.5,0.6,0.7,0.8,0.9", "burst_s": 10.0, "duration_s": 200.0},
        run,
    ),
)
