"""Replica placement (replica groups 3.5): cheapest places, zones kept apart, and little moved when nodes come and go."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.network import Node
from headrace.control.replicas import together, transport
from headrace.control.replicas.model import Arrangement, Drop, HandOver, Host, Hosts, KeyRange, ReplicaConfig, ShipCopy, changes, copy_costs
from headrace.control.replicas.together import place_together, rearrange
from headrace.control.replicas.transport import place_replicas
from headrace.errors import QueryError
from tests.examples import examples


def random_hosts(seed: int, count: int, zones: int, places: int = 1000) -> Hosts:
    rng = np.random.default_rng(seed)
    hosts = [Host(Node(f"n{at}", zone=f"z{at % zones}"), float(rng.uniform(0, 1)), places) for at in range(count)]
    points = rng.uniform(0, 5, (count, 2))
    return Hosts(tuple(hosts), np.linalg.norm(points[:, None] - points, axis=2).round(3) + 1 - np.eye(count))


def random_ranges(seed: int, count: int, hosts: Hosts) -> list[KeyRange]:
    rng = np.random.default_rng(seed)
    primaries = rng.choice(hosts.names, count).tolist()
    sizes = rng.uniform(1, 100, (count, 3))
    return [KeyRange(f"r{at}", primaries[at], frozenset(), *(sizes[at, :2] / [1, 10]).tolist(), sizes[at, 2] / 1000) for at in range(count)]  # type: ignore[call-arg]


def check(ranges: list[KeyRange], hosts: Hosts, after: Arrangement, q: int) -> None:
    """As many replicas as wanted, no two copies in one zone, no host too full."""
    zone = dict(zip(hosts.names, hosts.zones, strict=True))
    for each in ranges:
        copies = [after.primaries[each.name], *after.replicas[each.name]]
        assert len({zone[name] for name in copies}) == len(copies)
        assert len(copies) == 1 + q - after.missing.get(each.name, 0)
    for host in hosts.hosts:
        assert sum(host.node.name in replicas for replicas in after.replicas.values()) <= host.replicas_max


def applied(ranges: list[KeyRange], after: Arrangement) -> list[KeyRange]:
    return [replace(each, primary=after.primaries[each.name], replicas=after.replicas[each.name]) for each in ranges]


@pytest.mark.parametrize("seed", range(200))
def test_two_hundred_random_cases_are_integral_and_zone_distinct(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count, zones, q = int(rng.integers(4, 12)), int(rng.integers(3, 6)), int(rng.integers(2, 4))
    hosts = random_hosts(seed, count, zones, places=int(rng.integers(2, 8)))
    ranges = random_ranges(seed, int(rng.integers(1, 12)), hosts)
    # That the linear program came out integral is checked where it is solved.
    check(ranges, hosts, place_replicas(ranges, hosts, ReplicaConfig(replicas=q)), q)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 2), st.integers(1, 3), st.integers(3, 5), st.integers(1, 3))
def test_no_other_places_are_cheaper(seed: int, q: int, count: int, zones: int, places: int) -> None:
    hosts = random_hosts(seed, 5, zones, places)
    ranges, config = random_ranges(seed, count, hosts), ReplicaConfig(replicas=q)
    after = place_replicas(ranges, hosts, config)
    check(ranges, hosts, after, q)
    missing, cost = cheapest(ranges, hosts, config)
    assert sum(after.missing.values()) == missing
    assert after.cost == pytest.approx(cost)


@pytest.mark.parametrize("places", [1, 2, 100])
def test_one_replica_costs_the_same_by_each_way_of_placing_it(places: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each its cheapest place where nobody is in the way, else Hungarian, else the transport problem."""
    hosts = random_hosts(3, 6, 3, places)
    ranges = random_ranges(3, 8, hosts)
    found = place_replicas(ranges, hosts)
    monkeypatch.setattr(transport, "DENSE_MAX", 0)
    sparse = place_replicas(ranges, hosts)
    dense = transport._hungarian(transport._costs(ranges, hosts, ReplicaConfig()), ranges, hosts, ReplicaConfig())
    assert found.cost == pytest.approx(sparse.cost)
    assert found.cost == pytest.approx(float(transport._costs(ranges, hosts, ReplicaConfig())[dense].sum()))


def cheapest(ranges: list[KeyRange], hosts: Hosts, config: ReplicaConfig) -> tuple[int, float]:
    """By trying all: the fewest missing, then the least cost."""
    names, zones = hosts.names, hosts.zones
    options = []
    for each in ranges:
        primary = names.index(each.primary)
        costs = copy_costs(each, hosts, config, primary)
        sets = [s for size in range(config.replicas + 1) for s in itertools.combinations(range(len(names)), size)]
        apart = [s for s in sets if len({zones[primary], *(zones[at] for at in s)}) == len(s) + 1]
        options.append([(s, config.replicas - len(s), sum(costs[at] for at in s)) for s in apart])
    found = []
    for chosen in itertools.product(*options):
        used = [at for each, _, _ in chosen for at in each]
        if all(used.count(at) <= host.replicas_max for at, host in enumerate(hosts.hosts)):
            found.append((sum(lack for _, lack, _ in chosen), sum(cost for _, _, cost in chosen)))
    return min(found)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2))
def test_primaries_and_replicas_together_are_as_cheap_as_any(seed: int, q: int, count: int, failed: int) -> None:
    hosts = random_hosts(seed, 4, 4, places=1)
    ranges, config = (
        applied(some := random_ranges(seed, count, hosts), place_replicas(some, hosts)),
        ReplicaConfig(replicas=q, utilisation_max=0.05),
    )
    alive = Hosts(hosts.hosts[: 4 - failed], hosts.switches[: 4 - failed, : 4 - failed])
    after = place_together(ranges, alive, config)
    check(ranges, alive, after, q)
    assert after.cost == pytest.approx(cheapest_together(ranges, alive, config))


def cheapest_together(ranges: list[KeyRange], hosts: Hosts, config: ReplicaConfig) -> float:
    """By trying all choices of primaries and sets of replicas."""
    program = together._Program(tuple(ranges), hosts.without(ranges), config)
    first_missing = len(program.y) + len(program.x)
    options: list[list[list[int]]] = []
    for g in range(len(ranges)):
        choices = []
        for at in (at for at, (owner, _) in enumerate(program.y) if owner == g):
            mine = [len(program.y) + x for x, (which, _) in enumerate(program.x) if which == at]
            choices += [[at, *some] for size in range(config.replicas + 1) for some in itertools.combinations(mine, size)]
        options.append(choices)
    costs = []
    for chosen in itertools.product(*options):
        used = [program.x[x - len(program.y)][1] for each in chosen for x in each[1:]]
        if any(used.count(at) > host.replicas_max for at, host in enumerate(hosts.hosts)):
            continue
        solution = np.zeros(program.size)
        load = np.zeros(len(hosts.hosts))
        for g, each in enumerate(chosen):
            solution[each] = 1
            solution[first_missing + g] = config.replicas + 1 - len(each)
            load[program.y[each[0]][1]] += ranges[g].load
        bears = np.array([program.bears(host) for host in program.hosts.hosts])
        solution[-2 * len(load) : -len(load)] = np.maximum(load - bears, 0)
        costs.append(float(program.costs @ solution))
    return min(costs)


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(3, 6), st.booleans())
def test_placing_again_on_a_steady_load_changes_nothing(seed: int, q: int, zones: int, primaries: bool) -> None:
    hosts = random_hosts(seed, 7, zones)
    ranges, config = random_ranges(seed, 6, hosts), ReplicaConfig(replicas=q, utilisation_max=0.2)
    place = place_together if primaries else place_replicas
    for _ in range(8):
        after = place(ranges, hosts, config)
        moves = changes(ranges, hosts, after)
        if not moves:
            return
        ranges = applied(ranges, after)
    pytest.fail("it never came to rest")


def test_the_load_that_follows_the_primaries_does_not_drive_them_back() -> None:
    nodes = [Node(f"n{at}") for at in range(4)]
    ranges = [KeyRange(f"r{at}", "n0", frozenset({f"n{1 + at % 3}"}), 10, 1, load=0.2) for at in range(8)]
    for turn in range(5):
        used = {node.name: sum(each.load for each in ranges if each.primary == node.name) for node in nodes}
        hosts = Hosts.by_zone([Host(node, used[node.name]) for node in nodes])
        after = place_together(ranges, hosts)
        assert bool(changes(ranges, hosts, after)) == (turn == 0)
        ranges = applied(ranges, after)
    assert max(used.values()) <= 0.8 + 1e-9


def test_primaries_stay_while_their_hosts_are_well_however_cheap_another_place_is() -> None:
    hosts = Hosts.by_zone([Host(Node("a"), load=0.7), Host(Node("b")), Host(Node("c"))])
    well = [KeyRange(name, "a", frozenset({"b"}), 10, 1, load=0.3) for name in ("r", "s")]
    assert rearrange(well, hosts) == ()
    too_much = [replace(each, load=0.5) for each in well]
    assert [type(change) for change in rearrange(too_much, hosts)].count(HandOver) == 1
    hopeless = [replace(well[0], load=0.9)]
    assert rearrange(hopeless, hosts) == (), "it would be too much anywhere"


def test_the_other_load_of_a_host_counts() -> None:
    """The holder of the replica is 75% busy with other work, so that a range of 50% goes to an idle host, though its state must move."""
    hosts = Hosts.by_zone([Host(Node("busy"), load=0.75), Host(Node("idle")), Host(Node("also idle"))])
    after = place_together([KeyRange("r", "failed", frozenset({"busy"}), 10, 1, load=0.5)], hosts)
    assert after.primaries["r"] in ("idle", "also idle")


def test_a_host_that_is_too_busy_with_other_work_hands_over_to_an_idle_holder_of_the_replica() -> None:
    ranges = [KeyRange("r", "a", frozenset({"b"}), 10, 1, load=0.5)]
    hosts = Hosts.by_zone([Host(Node("a"), load=1.3), Host(Node("b")), Host(Node("c"))])
    assert rearrange(ranges, hosts)[0] == HandOver("r", "b", "a", light=True)
    assert rearrange(ranges, Hosts.by_zone([Host(Node("a"), load=0.8), Host(Node("b")), Host(Node("c"))])) == ()


def test_a_host_whose_primaries_have_too_much_state_hands_some_over() -> None:
    ranges = [KeyRange(f"r{at}", "a", frozenset({"b"}), state_bytes=40, delta_bytes=1, load=0.1) for at in range(4)]
    hosts = Hosts.by_zone([Host(Node("a"), load=0.4), Host(Node("b")), Host(Node("c"))])
    assert rearrange(ranges, hosts) == ()
    after = place_together(ranges, hosts, ReplicaConfig(state_bytes_max=100))
    assert sorted(after.primaries.values()) == ["a", "a", "b", "b"], "to the holder of their replicas"
    assert rearrange(applied(ranges, after), hosts, ReplicaConfig(state_bytes_max=100)) == ()


def even_ranges(count: int, hosts: Hosts) -> list[KeyRange]:
    ranges = [KeyRange(f"r{at:02}", hosts.names[at % len(hosts.names)], state_bytes=100, delta_bytes=0.5) for at in range(count)]
    return applied(ranges, place_replicas(ranges, hosts, ReplicaConfig(replicas=2)))


def test_when_a_node_goes_only_what_was_on_it_moves() -> None:
    all_hosts = Hosts.by_zone([Host(Node(f"n{at}"), replicas_max=30) for at in range(6)])
    ranges, config = even_ranges(30, all_hosts), ReplicaConfig(replicas=2)
    hosts = Hosts.by_zone(all_hosts.hosts[1:])
    touched = {each.name for each in ranges if "n0" in (each.primary, *each.replicas)}
    after = place_together(ranges, hosts, config)
    check(ranges, hosts, after, 2)
    moves = changes(ranges, hosts, after)
    assert {move.range for move in moves} == touched
    assert not any(isinstance(move, Drop) for move in moves)
    assert all(move.light and move.source is None for move in moves if isinstance(move, HandOver)), "a replica takes over"
    assert all(move.source in hosts.names for move in moves if isinstance(move, ShipCopy))


def test_a_new_node_with_less_load_gets_copies_only_where_that_pays_off() -> None:
    old = [Host(Node(f"n{at}"), load=0.5) for at in range(4)]
    ranges = even_ranges(12, Hosts.by_zone(old))
    hosts = Hosts.by_zone([*old, Host(Node("new"))])
    soon, late = (ReplicaConfig(replicas=2, horizon=horizon) for horizon in (10, 10_000))
    assert not changes(ranges, hosts, place_replicas(ranges, hosts, soon))
    moves = changes(ranges, hosts, place_replicas(ranges, hosts, late))
    assert {move.target for move in moves if isinstance(move, ShipCopy)} == {"new"}


def test_figure_1_a_failure_an_overload_and_a_new_node_at_once() -> None:
    """Instance 1 failed and instance 3 is overloaded; 5 is new. A range goes on where its replica is, and gets a new one elsewhere."""
    loads = {"2": 0.5, "3": 1.2, "4": 0.2, "5": 0.0}
    hosts = Hosts.by_zone([Host(Node(name), load) for name, load in loads.items()])
    ranges = [
        KeyRange("yellow", "1", frozenset({"2"}), 10, 1, load=0.3),
        KeyRange("red", "2", frozenset({"1"}), 10, 1, load=0.4),
        KeyRange("violet", "3", frozenset({"4"}), 10, 1, load=0.6),
        KeyRange("green", "3", frozenset({"4"}), 10, 1, load=0.6),
    ]
    after = place_together(ranges, hosts, ReplicaConfig())
    moves = changes(ranges, hosts, after)
    check(ranges, hosts, after, 1)
    assert after.primaries["yellow"] == "2", "restored where its replica is"
    assert sorted(after.primaries[name] for name in ("violet", "green")) == ["3", "4"], (
        "one of the two leaves the overloaded instance, lightly"
    )
    assert HandOver("yellow", "2", None, light=True) in moves
    assert ShipCopy("yellow", "2", "5") in moves
    assert ShipCopy("red", "2", "5") in moves


def test_zones_too_few_leave_replicas_missing_and_say_so() -> None:
    hosts = Hosts.by_zone([Host(Node("a", zone="x")), Host(Node("b", zone="x")), Host(Node("c", zone="y"))])
    for place in (place_replicas, place_together):
        after = place([KeyRange("r", "a")], hosts, ReplicaConfig(replicas=2))
        assert after.replicas == {"r": frozenset({"c"})}
        assert after.missing == {"r": 1}


def test_one_host_alone_has_a_primary_and_no_replica() -> None:
    hosts = Hosts.by_zone([Host(Node("a"))])
    after = place_together([KeyRange("r", "failed", frozenset({"a"}))], hosts)
    assert after.primaries == {"r": "a"}
    assert after.missing == {"r": 1}


def test_a_range_whose_copies_are_all_lost_is_restored_from_storage() -> None:
    hosts = Hosts.by_zone([Host(Node("c")), Host(Node("d"))])
    ranges = [KeyRange("r", "a", frozenset({"b"}))]
    after = place_together(ranges, hosts)
    moves = changes(ranges, hosts, after)
    assert moves == (
        HandOver("r", after.primaries["r"], None, light=False),
        ShipCopy("r", None, next(iter(after.replicas["r"]))),
    )


def test_nothing_to_place_is_fine() -> None:
    hosts = Hosts.by_zone([Host(Node("a"))])
    assert place_replicas([], hosts) == place_together([], hosts) == Arrangement({}, {}, {}, 0.0)


def test_mistakes_are_refused_by_name() -> None:
    hosts = Hosts.by_zone([Host(Node("a"))])
    with pytest.raises(QueryError, match="place primaries too: place_together"):
        place_replicas([KeyRange("r", "gone")], hosts)
    with pytest.raises(QueryError, match="replicas elsewhere than the primary"):
        KeyRange("r", "a", frozenset({"a"}))
    with pytest.raises(QueryError, match="a 1 x 1 matrix"):
        Hosts((Host(Node("a")),), np.ones((2, 2)))
    for wrong in (
        {"replicas": 0},
        {"load_weight": -1},
        {"horizon": 0},
        {"waiting_weight": -1},
        {"utilisation_max": 1.5},
        {"state_bytes_max": 0},
        {"spare_hosts": -1},
    ):
        with pytest.raises(QueryError, match=next(iter(wrong))):
            ReplicaConfig(**wrong)
