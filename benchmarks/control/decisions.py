"""A decision of every policy over many instances, each in its most expensive case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.control import bottleneck, correlation, elastic_manager, load_balancer, network, pool, rates, tiers
from headrace.control.availability import backups, scheduling
from headrace.control.availability.units import HaUnit
from headrace.control.decisions import Decision, MoveSlots, Nothing, ScaleIn, ScaleOut
from headrace.control.network import Node, NodeId
from headrace.control.observation import Observation, OperatorLoad
from headrace.control.ring import protocol as ring
from headrace.control.ring.messages import Announce, Known, Received, Report, RingConfig
from headrace.control.ring.messages import RingNode as RingNode
from headrace.control.ring.view import Peer, RingView, even_ring
from headrace.control.shedding import plan
from headrace.control.shedding.groups import plan_by_tables
from headrace.ids import SLOTS, OperatorId, SourceId
from headrace.sim import networks

SUM = OperatorId("sum")


@dataclass(frozen=True)
class Case:
    call: Callable[[], object]
    """Makes the decision and returns it."""
    expensive: Callable[[object], bool]
    """True if the decision is of the expected kind."""


def load(cpu: np.ndarray, name: str = SUM) -> OperatorLoad:
    instances = len(cpu)
    rows = np.random.default_rng(3).zipf(1.6, SLOTS).clip(max=100).astype(np.float64)
    zones = tuple("xyz"[i % 3] for i in range(instances))
    each = np.full(instances, 10.0)
    return OperatorLoad(
        OperatorId(name), cpu, np.arange(SLOTS) * instances // SLOTS, rows, rows_in_per_s=each, rows_out_per_s=each, zones=zones
    )


def first_is(kind: type[Decision]) -> Callable[[object], bool]:
    return lambda made: isinstance(made, tuple) and isinstance(made[0], kind) and not isinstance(made[0], Nothing)


@dataclass(frozen=True)
class World:
    """An observation with this many instances."""

    instances: int

    def observed(self, low: float, high: float) -> Observation:
        return Observation(100.0, (load(np.random.default_rng(5).uniform(low, high, self.instances)),))

    def chain(self, each: int) -> Observation:
        """Operators with this many instances each."""
        count, source = max(self.instances // each, 1), SourceId("source")
        return Observation(
            0.0,
            tuple(load(np.full(each, 0.5), f"o{i}") for i in range(count)),
            {OperatorId(f"o{i}"): (OperatorId(f"o{i - 1}") if i else source,) for i in range(count)},
            {source: 1000.0},
        )

    @cached_property
    def ring(self) -> RingView:
        return even_ring("xyz"[i % 3] for i in range(self.instances))

    @cached_property
    def servers(self) -> tuple[Node, ...]:
        return tuple(Node(network.NodeId(f"s{at}")) for at in range(max(self.instances // 10, 4)))

    @cached_property
    def units(self) -> tuple[HaUnit, ...]:
        """Each instance is a unit of its own; the first server has the highest recovery load."""
        rng, count = np.random.default_rng(7), len(self.servers)
        primaries = rng.integers(count, size=self.instances)
        backed = (primaries + rng.integers(1, count, size=self.instances)) % count
        redo_s = rng.exponential(size=self.instances) * (1 + 9 * (primaries == 0))
        return tuple(
            HaUnit(f"u{at}", f"s{primaries[at]}", f"s{backed[at]}", float(redo_s[at]), 0.01, 0.02 * (at % 3), 9.0)
            for at in range(self.instances)
        )

    @cached_property
    def history(self) -> correlation.LoadHistory:
        return history(self.instances, streams=max(self.instances // 20, 2))

    @cached_property
    def uneven(self) -> network.Placement:
        """Every third server has twice the operators of the others."""
        weights = np.array([2.0 if at % 3 == 0 else 1.0 for at in range(len(self.servers))])
        at = np.random.default_rng(9).choice(len(self.servers), size=self.instances, p=weights / weights.sum())
        return {name: self.servers[node].name for name, node in zip(self.history.operators, at.tolist(), strict=True)}


def history(operators: int, streams: int, samples: int = 100) -> correlation.LoadHistory:
    """Operators on streams with bursts at different times."""
    rng = np.random.default_rng(0)
    bursts = 1 + 3 * (rng.random((streams, samples)) < 0.2)
    costs = rng.uniform(0.5, 1.5, operators) * 0.03
    names = tuple(OperatorId(f"o{at}") for at in range(operators))
    return correlation.LoadHistory(names, costs[:, None] * bursts[np.arange(operators) % streams])


def cases(instances: int) -> dict[str, Case]:
    """The cases by name. Everything but the decision itself is prepared here."""
    return {**_of_queries(World(instances)), **_of_rings(World(instances)), **_of_borealis(World(instances))}


def _of_queries(world: World) -> dict[str, Case]:
    busy, skewed, idle = world.observed(0.91, 1.0), world.observed(0.3, 1.0), world.observed(0.0, 0.4)
    over = bottleneck.BottleneckMemory({SUM: (1,) * world.instances}, {load.operator: load.owners for load in busy.operators}, 0.0)
    taken = pool.PoolMemory(tuple((float(i) / 20, 1) for i in range(world.instances)))
    needs = pool.PoolObservation(50.0, world.instances, 0, taken=1)
    tens, ones = world.chain(10), world.chain(1)
    looked = tiers.TiersMemory({SUM: tiers.OperatorMemory((0.0, 0.0, 0.0))})
    return {
        "bottleneck, all are split": Case(lambda: bottleneck.decide(busy, bottleneck.BottleneckConfig(), over)[0], first_is(ScaleOut)),
        "elastic manager, scale out": Case(
            lambda: elastic_manager.decide(busy, elastic_manager.ElasticManagerConfig()), first_is(ScaleOut)
        ),
        "elastic manager, scale in": Case(lambda: elastic_manager.decide(idle, elastic_manager.ElasticManagerConfig()), first_is(ScaleIn)),
        "load balancer": Case(lambda: load_balancer.decide(skewed, load_balancer.LoadBalancerConfig()), first_is(MoveSlots)),
        "rates, operators of ten instances": Case(lambda: rates.decide(tens, rates.RatesConfig()), first_is(ScaleOut)),
        "rates, operators of one instance": Case(lambda: rates.decide(ones, rates.RatesConfig()), first_is(ScaleOut)),
        "pool, all executors taken lately": Case(lambda: pool.decide(needs, pool.PoolConfig(), taken)[0], first_is(Decision)),
        "tiers, global": Case(lambda: tiers.decide(busy, tiers.TiersConfig(), looked)[0], first_is(ScaleOut)),
        "tiers, neighbourhood and global": Case(lambda: tiers.decide(skewed, tiers.TiersConfig(), looked)[0], first_is(MoveSlots)),
    }


def _of_rings(world: World) -> dict[str, Case]:
    view = world.ring
    node = RingNode(view.peers[0], view)
    newer = RingView.of(*(Peer(peer.node, peer.token, peer.zone, version=i % 2) for i, peer in enumerate(view.peers)))
    seventh = NodeId("n7")

    def told(message: Announce | Known) -> Case:
        event = Received(0.0, seventh, message)
        return Case(lambda: ring.decide(event, RingConfig(replicas=3), node), lambda made: isinstance(made, tuple))

    report = Report(0.0, 5000.0, 0.95, np.ones(SLOTS))
    return {
        "ring, a report": Case(lambda: ring.decide(report, RingConfig(replicas=3), node), lambda made: isinstance(made, tuple)),
        "ring, an announcement": told(Announce(Peer(seventh, 20, "x", 1))),
        "ring, a view that is all new": told(Known(newer)),
    }


def _of_borealis(world: World) -> dict[str, Case]:
    units, servers, placement = world.units, world.servers, world.uneven
    # Two paths; every node has one operator of each.
    planner = plan_by_tables(networks.chains([[0.01, 0.02]] * max(world.instances // 2, 1)), (200.0, 200.0))

    def rebalanced(method: str) -> Case:
        config, known = correlation.CorrelationConfig(method=method), world.history

        def call() -> object:
            # Every decision has its own history, whose means and deviations must be computed first.
            return correlation.rebalance(correlation.LoadHistory(known.operators, known.series), servers, placement, config)

        return Case(call, bool)

    return {
        "correlation, one-way": rebalanced("one-way"),
        "correlation, two-way": rebalanced("two-way"),
        "correlation, selective": rebalanced("selective"),
        "shedding": Case(lambda: plan.decide((150.0, 150.0), planner), bool),
        "checkpoint scheduling": Case(lambda: scheduling.next_task(servers[0].name, units, servers)[0], bool),
        "backup reassignment": Case(lambda: backups.reassign(units, servers), bool),
    }
