"""Load shedding by the solver (Borealis 4, 4.1): the paper's example, the program's optimum, the quadtree's error bound."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control.network import Arc, Deployment, NetworkOperator, NetworkQuery, Node
from headrace.control.shedding import plan as P
from headrace.control.shedding.program import Program
from headrace.control.shedding.quadtree import SolverConfig, Workload, plan_ahead
from headrace.errors import QueryError
from headrace.sim.networks import IMBALANCES, fair_share, growing_imbalance, table_1
from tests.examples import examples


def exact(values: tuple[float, ...] | list[float]) -> list[Fraction]:
    """The fractions that these floats stand for, to the last digit but one."""
    found = [Fraction(value).limit_denominator(100) for value in values]
    assert values == pytest.approx([float(each) for each in found], rel=1e-14, abs=1e-14)
    return found


F = Fraction
TABLE_1 = {
    "plan 0: originally, both nodes are overloaded": ((1, 1), 3, (F(1, 3), F(1, 3)), F(4, 3), (F(1, 4), F(1, 4))),
    "plan 1: B is still overloaded": ((F(1, 3), F(1, 3)), 1, (F(1, 3), F(1, 3)), F(4, 3), (F(1, 4), F(1, 4))),
    "plan 2: optimal for A, but increases the load of B": ((1, 0), 1, (1, 0), 3, (F(1, 3), 0)),
    "plan 3: both nodes ok, but not optimal": ((0, F(1, 2)), 1, (0, F(1, 2)), F(1, 2), (0, F(1, 2))),
    "plan 4: optimal": ((F(1, 5), F(2, 5)), 1, (F(1, 5), F(2, 5)), 1, (F(1, 5), F(2, 5))),
}


@pytest.mark.parametrize("row", TABLE_1)
def test_table_1(row: str) -> None:
    reduced, a_load, a_throughput, b_load, b_throughput = TABLE_1[row]
    deployment = table_1()
    keep = {Arc(f"in{path}", f"node0.path{path}"): float(rate) for path, rate in enumerate(reduced)}
    arriving = P.flows(deployment.query, (1.0, 1.0), keep)
    costs = {node: [each.cost for each in deployment.query.operators if each.name.startswith(node)] for node in ("node0", "node1")}
    at_a = [arriving[Arc(f"in{path}", f"node0.path{path}")] for path in range(2)]
    served = fair_share(at_a, costs["node0"], 1.0)
    results = fair_share(served, costs["node1"], 1.0)
    assert exact(at_a) == list(reduced)
    assert exact([P.node_loads(deployment, arriving)["node0"]]) == [a_load]
    assert exact(list(served)) == list(a_throughput)
    assert exact([float(np.dot(served, costs["node1"]))]) == [b_load]
    assert exact(list(results)) == list(b_throughput)


def test_table_1_the_solver_finds_the_optimum() -> None:
    deployment = table_1()
    plan = Program(deployment).solve((1.0, 1.0))
    delivered = P.flows(deployment.query, (1.0, 1.0), plan.keep)
    assert exact([delivered[Arc("node0.path0", "node1.path0")], delivered[Arc("node0.path1", "node1.path1")]]) == [F(1, 5), F(2, 5)]
    assert exact([plan.quality]) == [F(3, 5)]
    assert exact(list(P.node_loads(deployment, delivered).values())) == [1, 1]


def random_network(seed: int, sources: int = 2) -> Deployment:
    """A graph with shared streams and unions on three nodes, whatever way the streams go between them."""
    rng = np.random.default_rng(seed)
    streams = [f"s{at}" for at in range(sources)]
    operators = []
    for at in range(int(rng.integers(sources, 7))):
        inputs = {str(rng.choice(streams)) for _ in range(int(rng.integers(1, 3)))} | ({f"s{at}"} if at < sources else set())
        cost, selectivity, weight = rng.uniform(0.2, 2), rng.uniform(0.3, 1.5), rng.uniform(0.5, 2)
        operators.append(
            NetworkOperator(f"o{at}", tuple(sorted(inputs)), cost=float(cost), selectivity=float(selectivity), weight=float(weight))
        )
        streams.append(f"o{at}")
    nodes = tuple(Node(f"n{at}", capacity=float(rng.uniform(0.5, 1.5))) for at in range(3))
    placement = {each.name: f"n{rng.integers(3)}" for each in operators}
    return Deployment(NetworkQuery(tuple(f"s{at}" for at in range(sources)), tuple(operators)), nodes, placement)


def check(deployment: Deployment, rates: tuple[float, ...], keep: dict[Arc, float], quality: float) -> None:
    """A plan keeps no more than all, overloads nobody, and gives the quality it promises."""
    assert all(0 <= share <= 1 for share in keep.values())
    delivered = P.flows(deployment.query, rates, keep)
    loads = P.node_loads(deployment, delivered)
    assert all(loads[node.name] <= node.capacity * (1 + 1e-6) for node in deployment.nodes)
    assert P.quality_of(deployment.query, delivered) == pytest.approx(quality, rel=1e-6, abs=1e-9)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**31), st.tuples(st.floats(0, 3), st.floats(0, 3)))
def test_a_plan_holds_on_any_network(seed: int, rates: tuple[float, float]) -> None:
    deployment = random_network(seed)
    plan = Program(deployment).solve(rates)
    check(deployment, rates, dict(plan.keep), plan.quality)
    if deployment.feasible(rates):
        assert not plan.keep


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 2**31))
def test_no_plan_on_a_grid_of_drops_is_better(seed: int) -> None:
    deployment, rates = random_network(seed), (1.5, 1.5)
    arcs = deployment.query.arcs[:6]
    best = 0.0
    for shares in itertools.product((0.0, 0.3, 0.6, 1.0), repeat=len(arcs)):
        delivered = P.flows(deployment.query, rates, dict(zip(arcs, shares, strict=True)))
        loads = P.node_loads(deployment, delivered)
        if all(loads[node.name] <= node.capacity for node in deployment.nodes):
            best = max(best, P.quality_of(deployment.query, delivered))
    assert Program(deployment).solve(rates).quality >= best - 1e-9


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(0, 2**31), st.floats(0.2, 0.4))
def test_the_error_bound_holds_at_random_points(seed: int, epsilon: float) -> None:
    deployment, top = random_network(seed), (3.0, 2.0)
    tree = plan_ahead(deployment, top, SolverConfig(epsilon=epsilon, error_max=1))
    program = Program(deployment)
    tree_floor = SolverConfig().error_floor * program.solve(top).quality
    for rates in np.random.default_rng(seed).uniform(0, top, (20, 2)).tolist():
        best = program.solve(rates).quality
        decision = P.decide(rates, tree)
        if decision is None:
            continue
        keep = P.keep_of(decision, tree)
        found = P.quality_of(deployment.query, P.flows(deployment.query, rates, keep))
        check(deployment, rates, keep, found)
        assert found >= min((1 - epsilon) * best, best - tree_floor) - 1e-9


def side_by_side(*weights: float) -> Deployment:
    """Query ends of these weights on one node, each with its own input."""
    ends = tuple(NetworkOperator(f"o{at}", (f"s{at}",), weight=weight) for at, weight in enumerate(weights))
    return Deployment(NetworkQuery(tuple(f"s{at}" for at in range(len(weights))), ends), (Node("n"),), {end.name: "n" for end in ends})


@pytest.mark.parametrize(
    ("weights", "epsilon", "solves_max"), [((1, 0), 0.5, 20), ((1, 0), 0.1, 60), ((1, 0.3), 0.1, 100), ((1, 1), 0.1, 40)]
)
def test_the_weights_of_query_ends_do_not_decide_how_often_the_solver_is_called(
    weights: tuple[float, ...], epsilon: float, solves_max: int
) -> None:
    deployment, config = side_by_side(*weights), SolverConfig(epsilon=epsilon, error_max=1, solves_max=2_000)
    tree = plan_ahead(deployment, (3.0,) * len(weights), config)
    assert tree.solves <= solves_max
    program = Program(deployment)
    floor = config.error_floor * program.solve((3.0,) * len(weights)).quality
    for rates in np.random.default_rng(1).uniform(0, 3, (200, len(weights))).tolist():
        best, decision = program.solve(rates).quality, P.decide(rates, tree)
        if decision is not None:
            found = P.quality_of(deployment.query, P.flows(deployment.query, rates, P.keep_of(decision, tree)))
            assert found >= min((1 - epsilon) * best, best - floor) - 1e-9


def test_a_least_region_ends_the_splitting_where_no_loss_is_small_enough() -> None:
    config = SolverConfig(epsilon=0.5, error_floor=0, region_least=1 / 8)
    assert plan_ahead(side_by_side(1, 0), (3.0, 3.0), config).solves <= 9 * 9, "the corners of the smallest regions"


def test_a_smaller_error_costs_more_plans() -> None:
    sizes = [len(plan_ahead(table_1(), (1.0, 1.0), SolverConfig(epsilon=epsilon)).plans) for epsilon in (0.4, 0.2, 0.1)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_with_a_workload_the_average_error_holds_with_fewer_calls() -> None:
    deployment, top = growing_imbalance()[3], (3.0, 3.0)
    rng = np.random.default_rng(1)
    points = np.clip(rng.normal((1.5, 1.0), 0.15, (400, 2)), 0, 3)
    config = SolverConfig(epsilon=0.05)
    everywhere, expected = plan_ahead(deployment, top, config), plan_ahead(deployment, top, config, Workload(points, np.ones(400)))
    assert expected.solves < 0.5 * everywhere.solves
    program = Program(deployment)
    errors = [lost(deployment, program, expected, rates) for rates in points[:150].tolist()]
    assert np.mean(errors) <= 0.05
    unlikely = [lost(deployment, program, expected, rates) for rates in rng.uniform(0, 3, (80, 2)).tolist()]
    assert max(unlikely) <= config.error_max + 1e-9


def lost(deployment: Deployment, program: Program, planner: P.Planner, rates: list[float]) -> float:
    decision = P.decide(rates, planner)
    if decision is None:
        return 0.0
    found = P.quality_of(deployment.query, P.flows(deployment.query, rates, P.keep_of(decision, planner)))
    return 1 - found / program.solve(rates).quality


def test_rates_beyond_the_space_are_reduced_into_it() -> None:
    deployment = table_1()
    tree = plan_ahead(deployment, (1.0, 1.0))
    rates = (5.0, 7.0)
    keep = P.keep_of(P.decide(rates, tree), tree)
    check(deployment, rates, keep, P.quality_of(deployment.query, P.flows(deployment.query, rates, keep)))
    assert lost(deployment, Program(deployment), tree, list(rates)) <= 0.1


def test_nothing_is_shed_while_no_node_is_overloaded() -> None:
    assert P.decide((0.1, 0.1), plan_ahead(table_1(), (1.0, 1.0))) is None


def test_a_search_that_never_ends_is_refused() -> None:
    with pytest.raises(QueryError, match="raise epsilon"):
        plan_ahead(table_1(), (1.0, 1.0), SolverConfig(epsilon=0.001, solves_max=50))


@pytest.mark.parametrize("wrong", [{"epsilon": 0.0}, {"epsilon": 0.2, "error_max": 0.1}, {"solves_max": 0}])
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(QueryError, match=list(wrong)[-1]):
        SolverConfig(**wrong)


def test_wrong_rates_are_refused() -> None:
    with pytest.raises(QueryError, match="2 rates of 0 or more"):
        P.decide((1.0,), plan_ahead(table_1(), (1.0, 1.0)))
    with pytest.raises(QueryError, match="the highest rates of 2 sources"):
        plan_ahead(table_1(), (1.0, 0.0))


def test_the_five_networks_have_the_same_load_spread_ever_more_unevenly() -> None:
    networks = growing_imbalance(paths=3, nodes=2)
    assert len(networks) == len(IMBALANCES) == 5
    for network, ratio in zip(networks, IMBALANCES, strict=True):
        assert network.loads.sum(axis=1) == pytest.approx(1)
        assert network.loads[0].max() / network.loads[0].min() == pytest.approx(ratio)


def lookup_s(planner: P.Planner) -> float:
    """CPU seconds of a decision: the best of three rounds, since others may use the machine too."""
    points = np.random.default_rng(0).uniform(0.5, 3, (300, len(planner.deployment.query.sources))).tolist()
    rounds = []
    for _ in range(3):
        started = time.process_time()
        for rates in points:
            P.decide(rates, planner)
        rounds.append((time.process_time() - started) / len(points))
    return min(rounds)


def test_a_plan_is_looked_up_in_under_a_hundred_microseconds() -> None:
    assert lookup_s(plan_ahead(growing_imbalance()[3], (3.0, 3.0), SolverConfig(epsilon=0.1))) < 100e-6
