"""No policy oscillates under a steady load, whatever the load and the settings: each settles and stays there.

A policy may reverse a change once: an instance that uses all of its CPU hides how much more it needs, until it is scaled out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control import bottleneck, elastic_manager, load_balancer, pool, rates, tiers
from headrace.control.decisions import Decision, MoveSlots, Nothing, ReleaseExecutors, RequestExecutors, Rescale
from headrace.control.network import Node
from headrace.control.observation import Floats, Observation, OperatorLoad
from headrace.control.replicas.model import Host, Hosts, KeyRange, ReplicaConfig, changes
from headrace.control.replicas.together import place_together
from headrace.control.ring import messages
from headrace.control.ring.view import even_ring
from headrace.ids import SLOTS, InputId, OperatorId, SourceId
from tests.examples import examples
from tests.unit.control.model import Loop, Model, slot_costs
from tests.unit.control.ring_model import Ring, assert_settled

Policy = Callable[[Observation], tuple[Decision, ...]]

SHARE = st.floats(0.05, 0.95)


@st.composite
def balancers(draw: st.DrawFn) -> load_balancer.LoadBalancerConfig:
    return load_balancer.LoadBalancerConfig(imbalance_max=draw(st.floats(0, 0.4)), gain_min=draw(st.floats(0.01, 0.5)))


@st.composite
def managers(draw: st.DrawFn) -> elastic_manager.ElasticManagerConfig:
    lower, target, upper = sorted(draw(st.tuples(SHARE, SHARE, SHARE)))
    least, most = sorted(draw(st.tuples(st.integers(1, 60), st.integers(1, 60))))
    way = draw(st.sampled_from(elastic_manager.PROVISIONING))
    return elastic_manager.ElasticManagerConfig(lower, upper, target, way, least, most, draw(balancers()))


@st.composite
def detectors(draw: st.DrawFn) -> bottleneck.BottleneckConfig:
    return bottleneck.BottleneckConfig(
        period_s=draw(st.floats(0.1, 20)),
        reports=draw(st.integers(1, 4)),
        threshold=draw(st.floats(0.1, 0.95)),
        hot_slot_share=draw(st.floats(0.5, 1)),
        instances_max=draw(st.integers(1, 200)),
    )


@st.composite
def tierings(draw: st.DrawFn) -> tiers.TiersConfig:
    local, neighbourhood, whole = sorted(draw(st.tuples(*[st.floats(0.5, 30)] * 3)))
    return tiers.TiersConfig(
        local,
        neighbourhood,
        whole,
        settle_s=draw(st.floats(0, 10)),
        patience=draw(st.integers(1, 5)),
        overload=draw(st.floats(0.5, 1)),
        shed=draw(st.booleans()),
        balancer=draw(balancers()),
        manager=draw(managers()),
    )


@st.composite
def rings(draw: st.DrawFn) -> messages.RingConfig:
    low, merged, high = sorted(draw(st.tuples(st.floats(0.1, 0.75), st.floats(0.1, 0.75), st.floats(0.3, 0.85))))
    gain = draw(st.floats(0.01, 0.1))
    return messages.RingConfig(cpu_low=low, cpu_merged=min(merged, high), cpu_high=max(high, merged + gain), gain_min=gain, rest_s=8.0)


def rests(model: Model, policy: Policy, steps_max: int, quiet: int = 12) -> list[Decision]:
    """The decisions until the policy settled: until this many observations in a row brought no change."""
    calm = 0
    for _ in range(steps_max):
        calm = 0 if model.perform(policy(model.observe())) else calm + 1
        if calm == quiet:
            return model.changes
    raise AssertionError(f"no rest after {steps_max} observations: {[each.why for each in model.changes[-6:]]}")


def turns(sizes: Sequence[int]) -> int:
    """How often the number of instances changed direction."""
    steps = [b - a for a, b in itertools.pairwise(sizes) if a != b]
    return sum(a * b < 0 for a, b in itertools.pairwise(steps))


def sizes_of(made: list[Decision], first: int) -> list[int]:
    return [first, *(each.instances for each in made if isinstance(each, Rescale))]


@settings(max_examples=examples(80), deadline=None)
@given(slot_costs(), st.integers(1, 30), detectors())
def test_the_bottleneck_detector(cost: Floats, instances: int, config: bottleneck.BottleneckConfig) -> None:
    memory = bottleneck.BottleneckMemory()

    def policy(observation: Observation) -> tuple[Decision, ...]:
        nonlocal memory
        made, memory = bottleneck.decide(observation, config, memory)
        return made

    # Every split adds an instance, and there are at most so many.
    made = rests(Model(cost, instances), policy, 20 * config.instances_max + 100, quiet=20 * config.reports)
    sizes = sizes_of(made, instances)
    assert all(a < b for a, b in itertools.pairwise(sizes)), "a split is one, and nothing is put together again"


@settings(max_examples=examples(100), deadline=None)
@given(slot_costs(), st.integers(1, 40), managers())
def test_the_elastic_manager(cost: Floats, instances: int, config: elastic_manager.ElasticManagerConfig) -> None:
    model = Model(cost, instances)
    made = rests(model, lambda seen: elastic_manager.decide(seen, config), 300)
    assert turns(sizes_of(made, instances)) <= model.hidden


@settings(max_examples=examples(100), deadline=None)
@given(slot_costs(), st.integers(1, 40), balancers())
def test_the_load_balancer(cost: Floats, instances: int, config: load_balancer.LoadBalancerConfig) -> None:
    model = Model(cost, instances)
    hidden = model.loads().max() > 1
    deviations = []

    def policy(observation: Observation) -> tuple[Decision, ...]:
        deviations.append(float(model.loads().std()))
        return load_balancer.decide(observation, config)

    made = rests(model, policy, 200)
    assert all(isinstance(each, MoveSlots) for each in made)
    if not hidden:
        assert deviations == sorted(deviations, reverse=True), "no plan makes it worse"


@settings(max_examples=examples(40), deadline=None)
@given(slot_costs(total_max=8.0), st.integers(1, 12), tierings(), st.sampled_from(["x", "xy", "xyz"]))
def test_the_three_tiers(cost: Floats, instances: int, config: tiers.TiersConfig, zones: str) -> None:
    memory = tiers.TiersMemory()
    loop = Loop(cost, instances)
    loop.zones = zones

    def policy(observation: Observation) -> tuple[Decision, ...]:
        nonlocal memory
        made, memory = tiers.decide(observation, config, memory)
        return made

    quiet = int(3 * config.global_s + config.settle_s) + 10
    made = rests(loop, policy, 20 * quiet + 600, quiet)
    assert turns(sizes_of(made, instances)) <= loop.hidden


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 900), st.floats(0, 3), st.integers(1, 50)), min_size=1, max_size=8),
    st.floats(0, 5000),
    SHARE,
    st.floats(0, 1),
)
def test_rates(chain: list[tuple[float, float, int]], source: float, target: float, slack: float) -> None:
    """Each operator can do so many rows a second, puts out so many per row, and has so many instances."""
    config, sizes = rates.RatesConfig(target, slack), [size for _, _, size in chain]
    for turn in range(4):
        wanted, loads = source, []
        for at, (rate, selectivity, _) in enumerate(chain):
            done = min(wanted, rate * sizes[at])
            each = np.full(sizes[at], done / sizes[at])
            loads.append(
                OperatorLoad(_name(at), each / rate, np.arange(SLOTS) % sizes[at], rows_in_per_s=each, rows_out_per_s=each * selectivity)
            )
            wanted = done * selectivity
        before: list[InputId] = [SourceId("source"), *map(_name, range(len(chain)))]
        inputs = {_name(at): (before[at],) for at in range(len(chain))}
        made = rates.decide(Observation(0.0, tuple(loads), inputs, {SourceId("source"): source}), config)
        # The rate of one who got no row yet is not known, and it gets some only when all before it have enough.
        after = [each.instances if isinstance(each, Rescale) else size for each, size in zip(made, sizes, strict=True)]
        assert turn < 2 or after == sizes
        sizes = after


def _name(at: int) -> OperatorId:
    return OperatorId(f"o{at}")


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 6), max_size=30), st.integers(0, 4), st.integers(4, 20), st.floats(0, 20), st.floats(20, 90))
def test_the_pool(needs: list[int], for_failures: int, ready_max: int, start_s: float, window_s: float) -> None:
    config = pool.PoolConfig(for_failures, ready_max, start_s, window_s)
    memory, working, ready, starting, acts = pool.PoolMemory(), 1, 0, [], []
    for second in range(len(needs) + 240):
        starting, arrived = [at for at in starting if at > second], sum(at <= second for at in starting)
        taken = min(needs[second], ready + arrived) if second < len(needs) else 0
        ready, working = ready + arrived - taken, working + taken
        (made,), memory = pool.decide(pool.PoolObservation(second, working, ready, len(starting), taken), config, memory)
        if isinstance(made, RequestExecutors):
            starting += [second + start_s] * (made.total - working - ready - len(starting))
        elif isinstance(made, ReleaseExecutors):
            ready -= made.count
        acts.append(made)
    calm = acts[len(needs) + 120 :]
    assert all(isinstance(each, Nothing) for each in calm)
    assert ready == for_failures


@settings(max_examples=examples(12), deadline=None)
@given(slot_costs(total_max=5.0), st.integers(1, 8), rings(), st.integers(0, 2**31))
def test_the_ring(cost: Floats, nodes: int, config: messages.RingConfig, seed: int) -> None:
    ring = Ring(even_ring("xyz"[i % 3] for i in range(nodes)), cost, config, seed)
    ring.run(360, every_s=2.0)
    before = [(node, ring.nodes[node].me) for node in ring.members()]
    ring.run(60, every_s=2.0)
    assert [(node, ring.nodes[node].me) for node in ring.members()] == before
    assert_settled(ring)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 2), st.floats(0.2, 1), st.floats(0, 5), st.floats(1, 1000))
def test_replica_placement(seed: int, q: int, full: float, load_weight: float, horizon: float) -> None:
    """Hosts are as loaded as the primaries on them make them."""
    rng = np.random.default_rng(seed)
    config = ReplicaConfig(q, load_weight, horizon, utilisation_max=full)
    nodes = [Node(f"n{at}", zone=f"z{at % 4}") for at in range(6)]
    ranges = [KeyRange(f"r{at}", f"n{rng.integers(6)}", frozenset(), 10, 1, float(rng.uniform(0, 0.4))) for at in range(6)]
    for turn in range(6):
        used = {node.name: sum(each.load for each in ranges if each.primary == node.name) for node in nodes}
        hosts = Hosts.by_zone([Host(node, used[node.name]) for node in nodes])
        after = place_together(ranges, hosts, config)
        moves = changes(ranges, hosts, after)
        assert turn < 5 or not moves
        if not moves:
            return
        ranges = [replace(each, primary=after.primaries[each.name], replicas=after.replicas[each.name]) for each in ranges]
