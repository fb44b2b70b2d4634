"""Load shedding by feasible input tables (Borealis 4.2): centralised and by messages, beside the solver."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.network import Arc, Deployment, NetworkOperator, NetworkQuery, Node
from headrace.control.shedding import fit, gossip
from headrace.control.shedding import plan as P
from headrace.control.shedding.fit import FeasibleInputs, FitConfig
from headrace.control.shedding.gossip import plan_by_messages
from headrace.control.shedding.groups import groups_of, plan_by_tables
from headrace.control.shedding.program import Program
from headrace.control.shedding.quadtree import SolverConfig, plan_ahead
from headrace.errors import QueryError
from headrace.sim.networks import growing_imbalance, table_1
from tests.examples import examples
from tests.unit.control.test_shedding_solver import F, check, exact, lookup_s, lost, random_network


def delivered(planner: FeasibleInputs, rates: tuple[float, ...]) -> dict[Arc, float]:
    decision = P.decide(rates, planner)
    return P.flows(planner.deployment.query, rates, {} if decision is None else P.keep_of(decision, planner))


@pytest.mark.parametrize("way", ["centralised", "by messages"])
def test_table_1_fit_finds_the_optimum(way: str) -> None:
    deployment, config = table_1(), FitConfig(epsilon=0.2)
    if way == "centralised":
        planner = plan_by_tables(deployment, (1.0, 1.0), config)
    else:
        planner, _ = plan_by_messages(deployment, (1.0, 1.0), config)
    found = delivered(planner, (1.0, 1.0))
    assert exact([found[Arc("node0.path0", "node1.path0")], found[Arc("node0.path1", "node1.path1")]]) == [F(1, 5), F(2, 5)]
    assert exact([P.quality_of(deployment.query, found)]) == [F(3, 5)]
    assert exact(sorted(planner.parts[0].table.column(Arc("in1", "node0.path1")).tolist())[-1:]) == [F(1, 2)], "the highest rate of input 2"


def tree_network(seed: int) -> Deployment:
    """Operators with one input each, some of whose outputs are shared, on three nodes."""
    rng = np.random.default_rng(seed)
    operators = []
    for at in range(int(rng.integers(2, 6))):
        stream = f"s{at}" if at < 2 else f"o{rng.integers(at)}"
        cost, selectivity, weight = rng.uniform(0.2, 2), rng.uniform(0.3, 1.5), rng.uniform(0.5, 2)
        operators.append(NetworkOperator(f"o{at}", (stream,), cost=float(cost), selectivity=float(selectivity), weight=float(weight)))
    nodes = tuple(Node(f"n{at}", capacity=float(rng.uniform(0.5, 1.5))) for at in range(3))
    return Deployment(NetworkQuery(("s0", "s1"), tuple(operators)), nodes, {each.name: f"n{rng.integers(3)}" for each in operators})


def worth_of_a_step(deployment: Deployment, epsilon: float, top: float) -> float:
    """Epsilon of what the inputs of all ends are worth at their highest rates."""
    capacity = {node.name: node.capacity for node in deployment.nodes}
    bears = {each.name: capacity[deployment.placement[each.name]] / each.cost for each in deployment.query.operators}
    out = dict.fromkeys(deployment.query.sources, top)
    total = 0.0
    for each in deployment.query.downstream:
        rate = min(bears[each.name], sum(out[stream] for stream in each.inputs))
        out[each.name] = each.selectivity * rate
        total += each.weight * each.selectivity * rate if each in deployment.query.ends else 0
    return epsilon * total


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 0.25, 0.3]), st.tuples(st.floats(0, 3), st.floats(0, 3)))
def test_a_row_loses_at_most_a_step_of_every_end(seed: int, epsilon: float, rates: tuple[float, float]) -> None:
    deployment = tree_network(seed)
    planner = plan_by_tables(deployment, (3.0, 3.0), FitConfig(epsilon=epsilon))
    found = delivered(planner, rates)
    quality = P.quality_of(deployment.query, found)
    best = Program(deployment).solve(rates).quality
    assert best - worth_of_a_step(deployment, epsilon, 3.0) - 1e-9 <= quality <= best + 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.tuples(st.floats(0, 4), st.floats(0, 4)))
def test_a_plan_holds_on_any_network_also_with_unions_and_circles_of_nodes(seed: int, rates: tuple[float, float]) -> None:
    deployment = random_network(seed)
    planner = plan_by_tables(deployment, (3.0, 3.0), FitConfig(epsilon=0.34))
    decision = P.decide(rates, planner)
    if decision is None:
        return
    keep = P.keep_of(decision, planner)
    found = P.flows(deployment.query, rates, keep)
    check(deployment, rates, keep, P.quality_of(deployment.query, found))
    promised = sum(planner.plan(plan).quality for plan in decision.plans)
    assert promised - 1e-9 <= P.quality_of(deployment.query, found) <= Program(deployment).solve(rates).quality + 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 1000), st.booleans())
def test_messages_in_any_order_give_the_tables_of_the_coordinator(seed: int, order: int, unions: bool) -> None:
    deployment = random_network(seed) if unions else tree_network(seed)
    config = FitConfig(epsilon=0.34)
    central = plan_by_tables(deployment, (3.0, 2.0), config)
    spread, _ = plan_by_messages(deployment, (3.0, 2.0), config, seed=order)
    assert len(spread.parts) == len(central.parts)
    for mine, theirs in zip(spread.parts, central.parts, strict=True):
        assert mine.table.arcs == theirs.table.arcs
        assert np.array_equal(mine.table.flows, theirs.table.flows)
        assert np.array_equal(mine.table.quality, theirs.table.quality)


def test_messages_that_arrive_twice_change_nothing() -> None:
    deployment = growing_imbalance()[2]
    members = gossip.members_of(deployment, (3.0, 3.0))
    under_way = []
    for name, member in list(members.items()):
        members[name], outbox = gossip.start(member)
        under_way += outbox
    while under_way:
        name, message = under_way.pop(0)
        for _ in range(2):
            members[name], outbox = gossip.receive(members[name], message)
            under_way += outbox
    central = plan_by_tables(deployment, (3.0, 3.0))
    for member in members.values():
        assert np.array_equal(member.settled.flows, central.parts[0].table.flows), "all who worked on it have it"


def test_a_shared_stream_drops_locally_what_the_narrower_query_does_not_want() -> None:
    """One source, filtered once, read by two queries of which one can bear only half."""
    query = NetworkQuery(
        ("a",),
        (NetworkOperator("shared", ("a",), cost=0.1), NetworkOperator("wide", ("shared",)), NetworkOperator("narrow", ("shared",), cost=2)),
    )
    deployment = Deployment(query, (Node("x"), Node("y"), Node("z")), {"shared": "x", "wide": "y", "narrow": "z"})
    planner = plan_by_tables(deployment, (2.0,), FitConfig(epsilon=0.25))
    decision = P.decide((2.0,), planner)
    assert decision is not None
    assert P.keep_of(decision, planner) == {Arc("a", "shared"): 0.5, Arc("shared", "narrow"): 0.5}


def test_parts_that_share_no_node_have_plans_of_their_own_and_only_those_overloaded_shed() -> None:
    query = NetworkQuery(("a", "b"), (NetworkOperator("f", ("a",)), NetworkOperator("g", ("b",))))
    planner = plan_by_tables(Deployment(query, (Node("x"), Node("y")), {"f": "x", "g": "y"}), (2.0, 2.0), FitConfig(epsilon=0.25))
    assert len(planner.parts) == 2
    one, both = P.decide((2.0, 0.6), planner), P.decide((2.0, 4.0), planner)
    assert one is not None
    assert both is not None
    assert len(one.plans) == 1
    assert one.inputs == {Arc("a", "f"): 0.5}
    assert len(both.plans) == 2
    assert both.inputs == {Arc("a", "f"): 0.5, Arc("b", "g"): 0.25}


def test_a_circle_of_nodes_is_one_group() -> None:
    query = NetworkQuery(
        ("a", "b"),
        (NetworkOperator("a1", ("a",)), NetworkOperator("a2", ("a1",)), NetworkOperator("b1", ("b",)), NetworkOperator("b2", ("b1",))),
    )
    cut = Deployment(query, (Node("x"), Node("y")), {"a1": "x", "a2": "y", "b1": "y", "b2": "x"})
    assert [group.nodes for group in groups_of(cut)] == [("x", "y")]
    planner = plan_by_tables(cut, (2.0, 2.0), FitConfig(epsilon=0.1))
    assert P.quality_of(query, delivered(planner, (2.0, 2.0))) == pytest.approx(Program(cut).solve((2.0, 2.0)).quality)


def test_tables_that_grow_too_large_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QueryError, match="raise epsilon or use the solver"):
        plan_by_tables(table_1(), (1.0, 1.0), FitConfig(epsilon=0.01, rows_max=1000))
    monkeypatch.setattr(fit, "CELLS_MAX", 30)
    with pytest.raises(QueryError, match="a look-up array of at most 30"):
        plan_by_tables(table_1(), (1.0, 1.0), FitConfig(epsilon=0.2))


@pytest.mark.parametrize("wrong", [{"epsilon": 1.0}, {"rows_max": 0}])
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(QueryError, match=next(iter(wrong))):
        FitConfig(**wrong)


def test_figure_8_tables_are_faster_than_the_solver_on_all_five_networks_and_lose_no_more() -> None:
    """The epsilon of a table is a spread, that of the solver an error: half of it gives as good plans here."""
    for network in growing_imbalance():
        started = time.process_time()
        tables = plan_by_tables(network, (3.0, 3.0), FitConfig(epsilon=0.1))
        between = time.process_time()
        tree = plan_ahead(network, (3.0, 3.0), SolverConfig(epsilon=0.2))
        assert between - started < time.process_time() - between
        program = Program(network)
        for rates in np.random.default_rng(0).uniform(0, 3, (25, 2)).tolist():
            assert lost(network, program, tree, rates) <= 0.2 + 1e-9
            assert lost(network, program, tables, rates) <= 0.2 + 1e-9


def test_a_plan_is_looked_up_in_under_a_hundred_microseconds() -> None:
    planner = plan_by_tables(growing_imbalance(paths=3)[4], (3.0, 3.0, 3.0), FitConfig(epsilon=0.05))
    assert lookup_s(planner) < 100e-6
