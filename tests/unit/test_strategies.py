"""The three ways to parallelise a query: how they divide it, and their cost by StreamCloud's model."""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.compile import strategies
from headrace.compile.strategies import (
    Box,
    QueryGraph,
    Strategy,
    Weights,
    cost,
    example_chain,
    instantiate,
    render_costs,
    subqueries_of,
)
from headrace.errors import QueryError

QC, OC, OS = Strategy.QUERY_CLOUD, Strategy.OPERATOR_CLOUD, Strategy.OPERATOR_SET_CLOUD

PAPER = example_chain("M", "F", "J*", "M2", "Ag*", "F2")


def cut(graph: QueryGraph, strategy: Strategy = OS) -> dict[str, tuple[str, ...]]:
    return {subquery.name: subquery.boxes for subquery in subqueries_of(graph, strategy)}


def graph_of(**inputs: str) -> QueryGraph:
    """`agg="a b"` is a box with two inputs; names that start with a capital are stateful."""
    return QueryGraph(tuple(Box(name, name[0].isupper(), inputs=tuple(text.split())) for name, text in inputs.items()))


# The paper's example: six operators, two of them stateful, on 90 nodes.


@pytest.mark.parametrize(("strategy", "hops", "fan_out"), [(QC, 2, 89), (OC, 5, 15), (OS, 2, 30)])
def test_the_worked_example_of_the_paper(strategy: Strategy, hops: int, fan_out: int) -> None:
    found = cost(PAPER, strategy, 90, 100_000)
    assert (found.hops, found.fan_out) == (hops, fan_out)
    assert found.messages_per_s == 100_000 * hops


@pytest.mark.parametrize(("strategy", "channels", "printed"), [(QC, 90 * 89, 90 * 89), (OC, 5 * 15**2, 75), (OS, 2 * 30**2, 60)])
def test_channels_are_counted_and_the_printed_number_is_kept(strategy: Strategy, channels: int, printed: int) -> None:
    found = cost(PAPER, strategy, 90, 100_000)
    assert (found.channels, found.f_as_printed) == (channels, printed)


def test_the_cost_is_the_weighted_sum_of_the_paper() -> None:
    found = cost(PAPER, OS, 90, 100_000, Weights(channel_us=0.5, message_us=0.25))
    assert found.distribution_cores == pytest.approx((0.5 * 1800 + 0.25 * 100_000 * 2) / 1e6)


def test_the_example_is_cut_as_in_the_paper() -> None:
    assert cut(PAPER, OS) == {"prefix": ("M", "F"), "J": ("J", "M2"), "Ag": ("Ag", "F2")}
    assert cut(PAPER, OC) == {name: (name,) for name in ("M", "F", "J", "M2", "Ag", "F2")}
    assert cut(PAPER, QC) == {"query": ("M", "F", "J", "M2", "Ag", "F2")}
    assert [subquery.keyed for subquery in subqueries_of(PAPER, OS)] == [False, True, True]
    assert [subquery.keyed for subquery in subqueries_of(PAPER, OC)] == [False, False, True, False, True, False]
    assert [subquery.keyed for subquery in subqueries_of(PAPER, QC)] == [True]


# Other graphs.


def test_the_heavy_customers_of_the_paper_are_two_subqueries() -> None:
    assert cut(example_chain("map", "agg*", "filter")) == {"prefix": ("map",), "agg": ("agg", "filter")}


def test_a_query_that_starts_stateful_has_no_prefix_and_one_hop_less() -> None:
    graph = example_chain("A*", "f", "B*")
    assert cut(graph) == {"A": ("A", "f"), "B": ("B",)}
    assert [cost(graph, strategy, 6, 1).hops for strategy in (QC, OC, OS)] == [2, 2, 1]


def test_a_stateless_query_needs_no_distribution_but_by_operator() -> None:
    graph = example_chain("a", "b", "c")
    assert cut(graph) == {"prefix": ("a", "b", "c")}
    assert not subqueries_of(graph)[0].keyed
    for strategy in (OS, QC):
        found = cost(graph, strategy, 9, 1000)
        assert (found.hops, found.fan_out, found.channels, found.distribution_cores) == (0, 0, 0, 0)
    assert cost(graph, OC, 9, 1000).hops == 2


def test_the_prefixes_of_two_sources_are_one_subquery() -> None:
    graph = graph_of(left="", right="", tidy="right", Join="left tidy", keep="Join", Agg="keep")
    assert cut(graph) == {"prefix": ("left", "right", "tidy"), "Join": ("Join", "keep"), "Agg": ("Agg",)}
    assert cost(graph, OS, 9, 1000).hops == 2
    assert cost(graph, OC, 6, 1000).hops == 4, "right, tidy, Join, keep, Agg is the longest path"


def test_branches_of_a_split_are_paid_for_apart() -> None:
    graph = QueryGraph(
        (
            Box("s", False),
            Box("few", False, selectivity=0.1, inputs=("s",)),
            Box("many", False, selectivity=0.9, inputs=("s",)),
            Box("A", True, inputs=("few",)),
            Box("B", True, inputs=("many",)),
        )
    )
    found = cost(graph, OS, 12, 1000)
    assert found.hops == 1
    assert found.fan_out == 8, "an instance of the prefix reaches both of its successors"
    assert found.channels == 2 * 4 * 4
    assert found.messages_per_s == pytest.approx(1000)


def test_a_union_of_two_subqueries_runs_in_each_of_them() -> None:
    graph = graph_of(s="", A="s", B="s", both="A B", C="both")
    assert cut(graph) == {"prefix": ("s",), "A": ("A", "both"), "B": ("B", "both"), "C": ("C",)}
    # No hop between A and the union: s to A, union to C.
    found = cost(graph, OS, 4, 1000)
    assert (found.hops, found.channels) == (2, 4)
    assert found.messages_per_s == 1000 * 2 + 2000


def test_a_self_join_is_sent_its_rows_once() -> None:
    graph = graph_of(s="", J="s s")
    assert cost(graph, OS, 4, 1000).messages_per_s == 1000
    assert cost(graph, OS, 4, 1000).channels == 4


def test_a_box_may_be_called_prefix() -> None:
    assert cut(graph_of(s="", Prefix="s")) == {"prefix": ("s",), "Prefix": ("Prefix",)}
    assert cut(example_chain("s", "prefix*")) == {"prefix_": ("s",), "prefix": ("prefix",)}


def test_boxes_may_come_in_any_order() -> None:
    assert cut(QueryGraph(PAPER.boxes[::-1])) == cut(PAPER)


# Costs.


def test_instances_may_be_given_by_subquery() -> None:
    found = cost(PAPER, OS, {"prefix": 2, "J": 5, "Ag": 3}, 1000)
    assert (found.fan_out, found.channels) == (5, 2 * 5 + 5 * 3)
    assert cost(PAPER, QC, {"query": 4}, 1000).channels == 12


def test_every_subquery_has_an_instance_even_on_one_node() -> None:
    assert cost(PAPER, OC, 1, 1000).instances == tuple((box.name, 1) for box in PAPER.boxes)
    assert cost(PAPER, OS, 7, 1000).instances == (("prefix", 3), ("J", 2), ("Ag", 2))


def test_processing_follows_the_selectivities_and_is_the_same_for_all() -> None:
    boxes = tuple(replace(box, cost_us=2, selectivity=0.5) for box in PAPER.boxes)
    wanted = 64_000 * 2 * (1 + 1 / 2 + 1 / 4 + 1 / 8 + 1 / 16 + 1 / 32) / 1e6
    for strategy in Strategy:
        found = cost(QueryGraph(boxes), strategy, 90, 64_000)
        assert found.processing_cores == pytest.approx(wanted)
        assert found.total_cores == found.distribution_cores + found.processing_cores
    assert cost(QueryGraph(boxes), OS, 90, 64_000).messages_per_s == 64_000 / 4 + 64_000 / 16


def test_rates_may_differ_by_source() -> None:
    graph = graph_of(left="", right="", Join="left right")
    assert cost(graph, OS, 2, {"left": 10, "right": 1}).messages_per_s == 11
    assert cost(graph, OS, 2, 11).messages_per_s == 11


@st.composite
def graphs(draw: st.DrawFn) -> QueryGraph:
    boxes: list[Box] = []
    for number in range(draw(st.integers(1, 9))):
        inputs = draw(st.lists(st.sampled_from([box.name for box in boxes]), unique=True, max_size=3)) if boxes else []
        box = Box(f"o{number}", draw(st.booleans()), draw(st.integers(0, 50)), draw(st.sampled_from([0.25, 0.5, 1, 2])), tuple(inputs))
        boxes.append(box)
    return QueryGraph(tuple(draw(st.permutations(boxes))))


@settings(deadline=None)
@given(graphs(), st.sampled_from(Strategy))
def test_a_cut_leaves_nothing_out_and_keeps_state_in_one_place(graph: QueryGraph, strategy: Strategy) -> None:
    subqueries = subqueries_of(graph, strategy)
    assert len({subquery.name for subquery in subqueries}) == len(subqueries)
    for box in graph.boxes:
        homes = [subquery for subquery in subqueries if box.name in subquery.boxes]
        assert len(homes) == 1 if box.stateful else homes
        assert all(home.keyed for home in homes if box.stateful)
    if strategy is OS:
        stateful = {box.name for box in graph.boxes if box.stateful}
        assert all(len(stateful & set(subquery.boxes)) == subquery.keyed for subquery in subqueries)


@settings(deadline=None)
@given(graphs(), st.integers(1, 60), st.floats(0, 1e6))
def test_operator_set_cloud_never_sends_more_than_the_others(graph: QueryGraph, nodes: int, rate: float) -> None:
    least, by_operator, whole = (cost(graph, strategy, nodes, rate) for strategy in (OS, OC, QC))
    assert least.hops <= min(by_operator.hops, whole.hops)
    assert least.messages_per_s <= min(by_operator.messages_per_s, whole.messages_per_s) * (1 + 1e-9)
    assert least.processing_cores == by_operator.processing_cores == whole.processing_cores


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 20))
def test_a_chain_costs_what_the_formulas_say(stateful: list[bool], per_subcluster: int) -> None:
    graph = example_chain("source", *(f"o{i}{'*' if s else ''}" for i, s in enumerate(stateful)))
    operators, state = len(graph.boxes), sum(stateful)
    by_operator = cost(graph, OC, operators * per_subcluster, 1)
    assert (by_operator.hops, by_operator.channels) == (operators - 1, (operators - 1) * per_subcluster**2)
    sets = cost(graph, OS, (state + 1) * per_subcluster, 1)
    assert (sets.hops, sets.channels, sets.f_as_printed) == (state, state * per_subcluster**2, state * per_subcluster)
    assert cost(graph, QC, per_subcluster, 1).hops == state


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 5), st.integers(2, 200), st.floats(0, 1), st.floats(0, 1))
def test_with_a_prefix_operator_set_cloud_costs_no_more_than_query_cloud(
    state: int, extra: int, per_subcluster: int, alpha: float, beta: float
) -> None:
    graph = example_chain("source", *(f"s{i}*" for i in range(state)), *(f"f{i}" for i in range(extra)))
    costs = [cost(graph, strategy, (state + 1) * per_subcluster, 1e5, Weights(alpha, beta)) for strategy in (OS, QC)]
    assert costs[0].total_cores <= costs[1].total_cores


# The instantiator.


def test_instances_follow_the_load_at_the_target_utilisation() -> None:
    graph = QueryGraph(
        (
            Box("parse", False, cost_us=3, selectivity=0.5),
            Box("agg", True, cost_us=30, selectivity=0.01, inputs=("parse",)),
            Box("alarm", False, cost_us=1000, inputs=("agg",)),
        )
    )
    # parse: 0.3 cores; agg: 50,000/s at 30 us are 1.5 cores, alarm 500/s at 1 ms half a core more.
    assert instantiate(graph, subqueries_of(graph), 100_000) == {"prefix": 1, "agg": 4}
    assert instantiate(graph, subqueries_of(graph), 100_000, utilisation_target=1) == {"prefix": 1, "agg": 2}
    assert instantiate(graph, subqueries_of(graph, OC), 100_000) == {"parse": 1, "agg": 3, "alarm": 1}
    assert instantiate(graph, subqueries_of(graph, QC), 100_000) == {"query": 4}


def test_a_load_of_exactly_the_target_takes_one_instance() -> None:
    graph = example_chain("a")
    graph = QueryGraph((replace(graph.boxes[0], cost_us=6),))
    assert instantiate(graph, subqueries_of(graph), 100_000) == {"prefix": 1}
    assert instantiate(graph, subqueries_of(graph), 300_000) == {"prefix": 3}
    assert instantiate(graph, subqueries_of(graph), 300_001) == {"prefix": 4}


def test_without_rows_or_costs_there_is_one_instance_each() -> None:
    assert instantiate(PAPER, subqueries_of(PAPER), 0) == instantiate(PAPER, subqueries_of(PAPER), 1e9) == {"prefix": 1, "J": 1, "Ag": 1}


def test_a_union_costs_each_subquery_only_its_own_rows() -> None:
    boxes = graph_of(s="", A="s", B="s", both="A B").boxes
    graph = QueryGraph(tuple(replace(box, cost_us=6) if box.name == "both" else box for box in boxes))
    assert instantiate(graph, subqueries_of(graph), 200_000) == {"prefix": 1, "A": 2, "B": 2}


def test_scarce_instances_are_shared_by_load() -> None:
    graph = QueryGraph((Box("a", False, cost_us=10), Box("B", True, cost_us=40, inputs=("a",))))
    assert instantiate(graph, subqueries_of(graph), 1_000_000) == {"prefix": 17, "B": 67}
    assert instantiate(graph, subqueries_of(graph), 1_000_000, available=10) == {"prefix": 2, "B": 8}
    assert instantiate(graph, subqueries_of(graph), 1_000_000, available=1) == {"prefix": 1, "B": 1}


# In words.


def test_the_table_of_the_paper() -> None:
    text = render_costs(PAPER, 90, 100_000)
    assert [line.split()[:7] for line in text.splitlines()[2:5]] == [
        ["operator-set-cloud", "3", "3", "x", "30", "2", "30"],
        ["operator-cloud", "6", "6", "x", "15", "5", "15"],
        ["query-cloud", "1", "1", "x", "90", "2", "89"],
    ]
    assert text.splitlines()[0] == "== Headrace cost: 90 nodes, 100,000 rows/s =="
    assert text.splitlines()[2].endswith("in use  least")
    assert render_costs(PAPER, 90, 100_000, strategy=QC).splitlines()[4].endswith("in use")
    assert all(line == line.rstrip() for line in text.splitlines())


def test_the_table_of_one_node() -> None:
    assert "1 node," in render_costs(PAPER, 1, {"M": 5})


# Mistakes.


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: QueryGraph(()), "query graph: wanted at least one operator; found none"),
        (lambda: Box("", False), "Box: wanted a name"),
        (lambda: Box("a", False, cost_us=-1), "operator 'a': wanted a cost_us of 0 or more; found -1"),
        (lambda: Box("a", False, selectivity=float("nan")), "operator 'a': wanted a selectivity of 0 or more; found nan"),
        (lambda: example_chain("a", "b", "a"), "query graph: wanted distinct names; found 'a' twice"),
        (lambda: graph_of(a="", b="a c"), "operator 'b': wanted inputs that the graph has; found 'c'; use some of a, b"),
        (lambda: graph_of(a="c", b="a", c="b"), "query graph: wanted no cycles; found"),
        (lambda: graph_of(a="a"), "found a -> a"),
        (lambda: cost(PAPER, OS, 0, 1), "nodes: wanted at least one node; found 0"),
        (lambda: cost(PAPER, OS, {"J": 1}, 1), "nodes: wanted instances for each of prefix, J, Ag; found J"),
        (lambda: cost(PAPER, QC, {"query": 0}, 1), "nodes: wanted at least one instance of 'query'; found 0"),
        (lambda: cost(PAPER, OS, 3, -1), "rate: wanted 0 or more from 'M'; found -1"),
        (lambda: cost(PAPER, OS, 3, {"F": 1}), "rate: wanted a rate for each of M; found F"),
        (
            lambda: instantiate(PAPER, subqueries_of(PAPER), 1, utilisation_target=0),
            "instantiate: wanted a utilisation above 0, up to 1; found 0",
        ),
        (lambda: instantiate(PAPER, subqueries_of(PAPER), 1, available=0), "instantiate: wanted at least one instance; found 0"),
    ],
)
def test_a_mistake_is_named(build: object, message: str) -> None:
    with pytest.raises(QueryError) as caught:
        build()  # type: ignore[operator]
    assert message in str(caught.value)
    assert caught.value.where
    assert caught.value.wanted
    assert caught.value.found
    assert caught.value.hint


def test_the_cost_model_knows_no_spark() -> None:
    assert not [name for name, value in vars(strategies).items() if "pyspark" in str(getattr(value, "__module__", name))]


def test_the_examples_in_docstrings_hold() -> None:
    result = doctest.testmod(strategies)
    assert result.attempted > 0
    assert result.failed == 0
