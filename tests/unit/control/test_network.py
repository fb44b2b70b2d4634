"""Queries as graphs on nodes: mistakes are found when they are built, and loads follow the tuples."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.control.network import Arc, Deployment, NetworkOperator, NetworkQuery, Node
from headrace.errors import QueryError

DIAMOND = NetworkQuery(
    ("a", "b"),
    (
        NetworkOperator("join", ("left", "right"), cost=2, selectivity=0.1),
        NetworkOperator("left", ("a",), cost=1, selectivity=0.5),
        NetworkOperator("right", ("a", "b"), cost=3),
    ),
)


def test_loads_follow_the_tuples_through_a_diamond() -> None:
    assert DIAMOND.arrivals.tolist() == [[1.5, 1.0], [1.0, 0.0], [1.0, 1.0]]
    assert DIAMOND.loads.tolist() == [[3.0, 2.0], [1.0, 0.0], [3.0, 3.0]]


def test_operators_come_after_those_that_feed_them_in_whatever_order_they_are_given() -> None:
    names = [each.name for each in DIAMOND.downstream]
    assert names.index("join") > max(names.index("left"), names.index("right"))
    assert [end.name for end in DIAMOND.ends] == ["join"]
    assert DIAMOND.consumers["a"] == (Arc("a", "left"), Arc("a", "right"))


def test_loads_of_nodes_add_up_to_those_of_the_query() -> None:
    deployment = Deployment(DIAMOND, (Node("x"), Node("y", 10.0)), {"join": "y", "left": "x", "right": "y"})
    assert deployment.loads.tolist() == [[1.0, 0.0], [6.0, 5.0]]
    assert deployment.feasible([1.0, 0.8])
    assert not deployment.feasible(np.array([1.1, 0.0]))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: NetworkQuery(("a",), (NetworkOperator("f", ("b",)),)), "inputs among a, f"),
        (lambda: NetworkQuery(("a",), (NetworkOperator("a", ("a",)),)), "every name once"),
        (lambda: NetworkQuery((), (NetworkOperator("f", ("g",)), NetworkOperator("g", ("f",)))), "without a cycle"),
        (lambda: NetworkOperator("f", ()), "one or more inputs"),
        (lambda: NetworkOperator("f", ("a", "a")), "each once"),
        (lambda: NetworkOperator("f", ("a",), cost=-1), "a cost of 0 or more"),
        (lambda: NetworkOperator("f", ("a",), selectivity=float("inf")), "a selectivity of 0 or more"),
        (lambda: Node("n", capacity=0), "a capacity above 0"),
        (lambda: Deployment(DIAMOND, (Node("x"),), {"join": "x", "left": "x"}), "none for"),
        (lambda: Deployment(DIAMOND, (Node("x"),), {"join": "x", "left": "x", "right": "z"}), "nodes among x"),
        (lambda: Deployment(DIAMOND, (Node("x"), Node("x")), {}), "every name once"),
    ],
)
def test_a_mistake_is_refused_when_it_is_made(build, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(QueryError, match=message):
        build()


def test_a_node_without_a_zone_shares_none() -> None:
    assert Node("x").fault_zone != Node("y").fault_zone
    assert Node("x", zone="y").fault_zone != Node("y").fault_zone
    assert Node("x", zone="r").fault_zone == Node("y", zone="r").fault_zone
