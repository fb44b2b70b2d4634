"""Correlation-based placement (Borealis 3.1) beside largest-load-first and random."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.control import baselines
from headrace.control import correlation as C
from headrace.control.network import Node, Placement
from headrace.errors import QueryError
from tests.examples import examples


def nodes_of(count: int) -> list[Node]:
    return [Node(f"n{at}") for at in range(count)]


def bursty(seed: int, operators: int, streams: int, samples: int = 40) -> C.LoadHistory:
    """Operators on streams that burst each at its own time."""
    rng = np.random.default_rng(seed)
    rates = 1 + 3 * (rng.random((streams, samples)) < 0.2)
    costs = rng.uniform(0.5, 1.5, operators)
    return C.LoadHistory(tuple(f"o{at}" for at in range(operators)), costs[:, None] * rates[np.arange(operators) % streams])


def loads_of(history: C.LoadHistory) -> dict[str, float]:
    return dict(zip(history.operators, history.means.tolist(), strict=True))


FIGURE_3 = C.LoadHistory(("a1", "a2", "b1", "b2"), np.array([[1, 2], [1, 2], [2, 1], [2, 1]], dtype=float))


def test_figure_3_the_cut_plan_comes_out_with_3cr_on_both_nodes_in_both_bursts() -> None:
    nodes = nodes_of(2)
    placement = C.place(FIGURE_3, nodes)
    assert C.node_series(FIGURE_3, nodes, placement).tolist() == [[3, 3], [3, 3]]


def test_figure_3_the_connected_plan_is_as_even_on_average_and_varies_more() -> None:
    nodes = nodes_of(2)
    connected = {"a1": "n0", "a2": "n0", "b1": "n1", "b2": "n1"}
    series = C.node_series(FIGURE_3, nodes, connected)
    assert series.tolist() == [[2, 4], [4, 2]]
    assert series.mean(axis=1).tolist() == [3, 3]
    assert C.mean_variance(series) == 1


@pytest.mark.parametrize("method", ["one-way", "two-way", "selective"])
def test_a_pair_out_of_balance_is_evened_out(method: str) -> None:
    history, nodes = bursty(1, 40, 4), nodes_of(2)
    everything_on_one: Placement = dict.fromkeys(history.operators, "n0")
    config = C.CorrelationConfig(method=method)
    after = C.placement_after(everything_on_one, C.rebalance(history, nodes, everything_on_one, config))
    loads = C.node_series(history, nodes, after).mean(axis=1)
    assert abs(loads[0] - loads[1]) < 0.1 * loads.sum()


def test_one_way_moves_only_from_the_fuller_node() -> None:
    history, nodes = bursty(2, 30, 3), nodes_of(2)
    placement = {name: "n0" if at < 20 else "n1" for at, name in enumerate(history.operators)}
    moves = C.rebalance(history, nodes, placement, C.CorrelationConfig(method="one-way"))
    assert moves
    assert {move.source for move in moves} == {"n0"}


def test_better_plans_cost_more_moves_in_the_order_one_way_selective_two_way() -> None:
    variances, counts = {}, {}
    for method in ("one-way", "selective", "two-way"):
        found = [rebalanced(seed, C.CorrelationConfig(method=method)) for seed in range(12)]
        variances[method], counts[method] = np.mean(found, axis=0)
    assert variances["two-way"] < variances["selective"] < variances["one-way"]
    assert counts["one-way"] < counts["selective"] < counts["two-way"]


def rebalanced(seed: int, config: C.CorrelationConfig) -> tuple[float, int]:
    """Variance and moves, from connected operators: each stream on one node, and two nodes with more of them."""
    history, nodes = bursty(seed, 60, 6), nodes_of(2)
    placement = {name: "n0" if at % 6 < 4 else "n1" for at, name in enumerate(history.operators)}
    moves = C.rebalance(history, nodes, placement, config)
    return C.mean_variance(C.node_series(history, nodes, C.placement_after(placement, moves))), len(moves)


def test_a_higher_threshold_of_scores_moves_less() -> None:
    counts = [sum(rebalanced(seed, C.CorrelationConfig(score_min=score))[1] for seed in range(8)) for score in (-1.0, 0.3, 2.0)]
    assert counts[0] >= counts[1] >= counts[2]
    assert counts[0] > counts[2]


def test_figure_4_variance_is_below_largest_first_and_random_and_close_to_the_optimum() -> None:
    nodes, ours, largest, rand, optimum = nodes_of(2), [], [], [], []
    for seed in range(15):
        history = bursty(seed, 8, 4)
        loads = loads_of(history)
        ours.append(C.mean_variance(C.node_series(history, nodes, C.place(history, nodes))))
        largest.append(C.mean_variance(C.node_series(history, nodes, baselines.largest_first(loads, nodes))))
        rand.append(C.mean_variance(C.node_series(history, nodes, baselines.random_balanced(loads, nodes, seed))))
        optimum.append(best_by_search(history, nodes))
    assert np.mean(ours) < np.mean(largest)
    assert np.mean(ours) < np.mean(rand)
    assert np.mean(ours) < 1.15 * np.mean(optimum)


def best_by_search(history: C.LoadHistory, nodes: list[Node]) -> float:
    """The least variance of all placements that are about as even as ours."""
    gap = np.ptp(C.node_series(history, nodes, C.place(history, nodes)).mean(axis=1))
    found = []
    for chosen in itertools.product(nodes, repeat=len(history.operators)):
        placement = {name: node.name for name, node in zip(history.operators, chosen, strict=True)}
        series = C.node_series(history, nodes, placement)
        if np.ptp(series.mean(axis=1)) <= gap + 1e-9:
            found.append(C.mean_variance(series))
    return min(found)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 30), st.integers(1, 6), st.sampled_from(["one-way", "two-way", "selective"]), st.floats(0, 0.5)
)
def test_a_steady_load_comes_to_rest_and_never_gets_less_even(seed: int, operators: int, count: int, method: str, gap_max: float) -> None:
    rng = np.random.default_rng(seed)
    history = bursty(seed, operators, 3)
    nodes = [Node(f"n{at}", capacity=float(rng.uniform(0.5, 2))) for at in range(count)]
    placement: Placement = {name: f"n{rng.integers(count)}" for name in history.operators}
    config = C.CorrelationConfig(method=method, gap_max=gap_max)
    capacities = np.array([node.capacity for node in nodes])
    uneven = np.inf
    for _ in range(200):
        loads = C.node_series(history, nodes, placement).mean(axis=1)
        now = float((loads**2 / capacities).sum())
        assert now <= uneven + 1e-9
        uneven = now
        moves = C.rebalance(history, nodes, placement, config)
        if not moves:
            return
        placement = C.placement_after(placement, moves)
    pytest.fail("it never came to rest")


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 60), st.integers(2, 8), st.sampled_from(["one-way", "two-way", "selective"]))
def test_pairs_that_are_handled_together_do_what_each_would_do_alone(seed: int, operators: int, count: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    history = bursty(seed, operators, 3)
    nodes = [Node(f"n{at}", capacity=float(rng.uniform(0.5, 2))) for at in range(count)]
    # Some nodes have many operators and some few, so that pairs differ in size.
    placement: Placement = {name: f"n{min(rng.integers(count), rng.integers(count))}" for name in history.operators}
    config = C.CorrelationConfig(method=method, score_min=0.1)
    together = C.rebalance(history, nodes, placement, config)
    used = C.node_series(history, nodes, placement).mean(axis=1) / np.array([node.capacity for node in nodes])
    order = np.argsort(-used, kind="stable").tolist()
    alone: list[C.OperatorMove] = []
    for full, empty in zip(order[: count // 2], order[::-1], strict=False):
        pair = [nodes[at] for at in sorted((full, empty))]
        rows = [at for at, name in enumerate(history.operators) if placement[name] in (pair[0].name, pair[1].name)]
        if rows:
            part = C.LoadHistory(tuple(history.operators[at] for at in rows), history.series[rows])
            alone += C.rebalance(part, pair, {name: placement[name] for name in part.operators}, config)
    assert sorted((move.operator, move.target) for move in together) == sorted((move.operator, move.target) for move in alone)


def test_constant_loads_correlate_with_nothing_and_are_dealt_out_evenly() -> None:
    history = C.LoadHistory(tuple("abcdef"), np.full((6, 5), 0.1))
    placement = C.place(history, nodes_of(3))
    assert sorted(placement.values()) == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_a_node_of_twice_the_capacity_gets_twice_the_load() -> None:
    history = bursty(3, 90, 5)
    nodes = [Node("small"), Node("large", capacity=2)]
    loads = C.node_series(history, nodes, C.place(history, nodes)).mean(axis=1)
    assert loads[1] / loads[0] == pytest.approx(2, rel=0.05)


@pytest.mark.parametrize(
    "wrong",
    [{"method": "three-way"}, {"gap_max": -0.1}, {"gain_min": 0.0}, {"score_min": 3.0}, {"band": 1.5}],
    ids=lambda each: next(iter(each)),
)
def test_a_wrong_setting_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(QueryError, match=next(iter(wrong))):
        C.CorrelationConfig(**wrong)


def test_a_history_that_does_not_fit_is_refused() -> None:
    with pytest.raises(QueryError, match="a series for each of 2 operators"):
        C.LoadHistory(("a", "b"), np.ones((3, 4)))
    with pytest.raises(QueryError, match="a node for every operator"):
        C.rebalance(FIGURE_3, nodes_of(2), {"a1": "n0"})


def test_a_thousand_operators_on_a_hundred_nodes_are_placed_within_two_seconds() -> None:
    history, nodes = bursty(0, 1000, 50, samples=100), nodes_of(100)
    started = time.process_time()
    placement = C.place(history, nodes)
    assert time.process_time() - started < 2
    assert len(placement) == 1000


def test_random_placements_depend_on_their_seed_only() -> None:
    loads = loads_of(bursty(0, 20, 3))
    assert baselines.random_balanced(loads, nodes_of(3), 1) == baselines.random_balanced(loads, nodes_of(3), 1)
    assert baselines.random_balanced(loads, nodes_of(3), 1) != baselines.random_balanced(loads, nodes_of(3), 2)
    even = baselines.random_even(list(loads), nodes_of(3), 1)
    assert sorted(list(even.values()).count(f"n{at}") for at in range(3)) == [6, 7, 7]
