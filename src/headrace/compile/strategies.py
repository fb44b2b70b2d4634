"""How a query is divided into subqueries, and what each division costs. It does not use Spark.

The three strategies are those of StreamCloud (sections III, IV and XI of that paper):

    operator-set-cloud   a stateful operator and the stateless ones behind it; the stateless prefix apart   [M F] [J M] [A F]
    operator-cloud       every operator by itself                                                           [M] [F] [J] [M] [A] [F]
    query-cloud          the whole query on every node, rows redistributed before each stateful operator    [M F J M A F]

Distribution costs `a * f + b * rate * h`: `f` the channels to keep open, `h` the hops of a row, `a` and `b` weights.
Where this departs from the paper:

- As printed, f(OC) = N(l-1)/l and f(OS) = Ns/(s+1) count no channels. `Cost.channels` does: (l-1)(N/l)^2 and s(N/(s+1))^2.
  `Cost.f_as_printed` keeps the paper's number. So operator-cloud has fewer channels than operator-set-cloud, not more;
  its hops still make it dearer.
- The paper finds QC > OC > OS while hops weigh far more than channels. Both cannot be: when hops decide, QC is cheaper
  than OC. That OS is the cheapest holds either way, as soon as rows flow.
- The paper counts operators, as if the query were a chain. A graph's hops are those of its longest path, its messages follow
  the selectivities, and subclusters may differ in size. For a chain of selectivity 1 this is the paper's formula.
- The weights are CPU time, so that distribution and processing add up. Their defaults are assumptions, not measurements.

A row that is redistributed counts as a message even if it lands on its own node: a shuffle writes it out all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

from headrace.errors import QueryError

UTILISATION_TARGET = 0.6  # The paper's target utilisation in its experiments.


def _wanted(holds: bool, where: str, wanted: str, found: object, hint: str) -> None:
    if not holds:
        raise QueryError(where=where, wanted=wanted, found=str(found), hint=hint)


@dataclass(frozen=True)
class Box:
    """An operator. Every box that reads it gets all its output. The branches of a split are boxes, each with its selectivity."""

    name: str
    stateful: bool
    cost_us: float = 0.0  # CPU time per row that comes in
    selectivity: float = 1.0  # rows out per row in
    inputs: tuple[str, ...] = ()  # none: a source

    def __post_init__(self) -> None:
        _wanted(bool(self.name), "Box", "a name", "an empty one", "name every operator of the graph")
        for field, value in (("cost_us", self.cost_us), ("selectivity", self.selectivity)):
            _wanted(0 <= value < math.inf, f"operator {self.name!r}", f"a {field} of 0 or more", value, "measure it on a sample")


@dataclass(frozen=True)
class QueryGraph:
    """The operators of a query, in any order. Names and inputs are checked when it is built."""

    boxes: tuple[Box, ...]

    def __post_init__(self) -> None:
        _wanted(bool(self.boxes), "query graph", "at least one operator", "none", "start from a source")
        names = [box.name for box in self.boxes]
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        _wanted(not twice, "query graph", "distinct names", f"{', '.join(map(repr, twice))} twice", "rename one of the operators")
        for box in self.boxes:
            unknown = [name for name in box.inputs if name not in names]
            hint = f"use some of {', '.join(names)}"
            _wanted(not unknown, f"operator {box.name!r}", "inputs that the graph has", ", ".join(map(repr, unknown)), hint)
        self.ordered()

    def ordered(self) -> tuple[Box, ...]:
        """The boxes in topological order."""
        named = {box.name: box for box in self.boxes}
        try:
            return tuple(named[name] for name in TopologicalSorter({box.name: box.inputs for box in self.boxes}).static_order())
        except CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise QueryError(
                where="query graph", wanted="no cycles", found=cycle, hint="break the cycle with a sink and a source"
            ) from None


class Strategy(StrEnum):
    """What is parallelised as one unit."""

    OPERATOR_SET_CLOUD = "operator-set-cloud"
    OPERATOR_CLOUD = "operator-cloud"
    QUERY_CLOUD = "query-cloud"


@dataclass(frozen=True)
class Subquery:
    """A unit of parallelisation: all its instances run the same boxes, each on a share of the rows.

    `keyed` says that rows are routed by key, because a stateful operator is inside.
    """

    name: str
    boxes: tuple[str, ...]
    keyed: bool


def subqueries_of(graph: QueryGraph, strategy: Strategy = Strategy.OPERATOR_SET_CLOUD) -> tuple[Subquery, ...]:
    """The subqueries of a query, sources first. A subquery is named after its stateful operator.

    A stateless operator after several subqueries, such as a union, belongs to each of them: each runs it on its own rows. Only a
    stateful operator needs the rows of all of them together.

    >>> graph = QueryGraph((Box("map", False), Box("agg", True, inputs=("map",)), Box("filter", False, inputs=("agg",))))
    >>> [(s.name, s.boxes) for s in subqueries_of(graph)]
    [('prefix', ('map',)), ('agg', ('agg', 'filter'))]
    """
    ordered = graph.ordered()
    if strategy is Strategy.QUERY_CLOUD:
        return (Subquery("query", tuple(box.name for box in ordered), any(box.stateful for box in ordered)),)
    if strategy is Strategy.OPERATOR_CLOUD:
        return tuple(Subquery(box.name, (box.name,), box.stateful) for box in ordered)
    prefix = "prefix"
    while any(box.name == prefix for box in ordered):
        prefix += "_"
    homes: dict[str, set[str]] = {}
    for box in ordered:
        if box.stateful:
            homes[box.name] = {box.name}
        else:
            homes[box.name] = set().union(*(homes[name] for name in box.inputs)) if box.inputs else {prefix}
    leads = ([prefix] if any(prefix in home for home in homes.values()) else []) + [box.name for box in ordered if box.stateful]
    return tuple(Subquery(lead, tuple(box.name for box in ordered if lead in homes[box.name]), lead != prefix) for lead in leads)


@dataclass(frozen=True)
class Weights:
    """The costs of distribution: the paper's alpha and beta, as CPU time. The defaults are assumptions; give measured values."""

    channel_us: float = 0.1  # per channel and second
    message_us: float = 1.0  # per row and hop: to write it out and read it in


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a strategy. Cores are CPU seconds per second."""

    strategy: Strategy
    instances: tuple[tuple[str, int], ...]  # of each subquery
    hops: int  # how often a row is redistributed, on the longest path
    fan_out: int  # how many others an instance must reach, at most
    channels: int  # pairs of instances that are connected, all together
    f_as_printed: int  # the paper's f(X)
    messages_per_s: float
    distribution_cores: float
    processing_cores: float

    @property
    def total_cores(self) -> float:
        return self.distribution_cores + self.processing_cores


def cost(
    graph: QueryGraph,
    strategy: Strategy,
    nodes: int | Mapping[str, int],
    rate: float | Mapping[str, float],
    weights: Weights | None = None,
) -> Cost:
    """What a strategy costs.

    `nodes` is their number, shared evenly by the subqueries (at least one instance each, even if there are fewer nodes), or the
    instances of each subquery by name. `rate` is rows per second, shared evenly by the sources, or the rate of each source.

    The paper's example: two stateful operators of six, on 90 nodes.

    >>> graph = example_chain("M", "F", "J*", "M2", "Ag*", "F2")
    >>> [(c.hops, c.fan_out) for c in (cost(graph, s, 90, 100_000) for s in Strategy)]
    [(2, 30), (5, 15), (2, 89)]
    """
    weights = weights or Weights()
    subqueries = subqueries_of(graph, strategy)
    instances = _sizes(subqueries, nodes)
    received = _flows(graph, subqueries_of(graph, Strategy.QUERY_CLOUD), rate)
    crossed = [box for box in graph.ordered() if _crosses(box, strategy)]
    hops = _hops(graph, {box.name for box in crossed})
    messages_per_s = sum(received["query", box.name] for box in crossed)
    if strategy is Strategy.QUERY_CLOUD:
        size = instances["query"]
        fan_out = size - 1 if hops else 0
        channels = f_as_printed = size * fan_out
    else:
        links = _links(graph, subqueries)
        fan_out = max(sum(instances[target] for source, target in links if source == name) for name in instances)
        channels = sum(instances[source] * instances[target] for source, target in links)
        f_as_printed = sum(instances[target] for _, target in links)
    return Cost(
        strategy=strategy,
        instances=tuple(instances.items()),
        hops=hops,
        fan_out=fan_out,
        channels=channels,
        f_as_printed=f_as_printed,
        messages_per_s=messages_per_s,
        distribution_cores=(weights.channel_us * channels + weights.message_us * messages_per_s) / 1e6,
        processing_cores=sum(received["query", box.name] * box.cost_us for box in graph.boxes) / 1e6,
    )


def instantiate(
    graph: QueryGraph,
    subqueries: Sequence[Subquery],
    rate: float | Mapping[str, float],
    utilisation_target: float = UTILISATION_TARGET,
    available: int | None = None,
) -> dict[str, int]:
    """Instances of each subquery at the start, from the measured cost per row: the paper's query instantiator.

    Rates follow from the selectivities. Each instance is one core, used up to the target. If that needs more cores than are
    available, they are shared in proportion to the load. Every subquery gets at least one.

    >>> graph = QueryGraph((Box("map", False, cost_us=1), Box("agg", True, cost_us=20, inputs=("map",))))
    >>> instantiate(graph, subqueries_of(graph), rate=100_000)
    {'prefix': 1, 'agg': 4}
    """
    _wanted(0 < utilisation_target <= 1, "instantiate", "a utilisation above 0, up to 1", utilisation_target, "0.6 leaves room")
    _wanted(available is None or available >= 1, "instantiate", "at least one instance", available, "leave it out for no limit")
    load = {subquery.name: 0.0 for subquery in subqueries}
    costs = {box.name: box.cost_us for box in graph.boxes}
    for (subquery, box), received in _flows(graph, subqueries, rate).items():
        load[subquery] += received * costs[box] / 1e6
    # A rounding error in the last bit must not turn 0.6 / 0.6 into two instances.
    wanted = {name: max(1, math.ceil(cores / utilisation_target - 1e-9)) for name, cores in load.items()}
    if available is None or sum(wanted.values()) <= available:
        return wanted
    return _share(available, load)


def render_costs(
    graph: QueryGraph,
    nodes: int,
    rate: float | Mapping[str, float],
    strategy: Strategy = Strategy.OPERATOR_SET_CLOUD,
    weights: Weights | None = None,
) -> str:
    """The three strategies side by side, as text. `strategy` is the one in use."""
    weights = weights or Weights()
    costs = [cost(graph, each, nodes, rate, weights) for each in Strategy]
    cheapest = min(costs, key=lambda each: each.total_cores).strategy
    head = ("strategy", "subqueries", "instances", "hops", "fan-out", "channels", "messages/s", "distribution", "processing", "total")
    rows = [
        (
            each.strategy.value,
            str(len(each.instances)),
            _sizes_in_words(each),
            str(each.hops),
            str(each.fan_out),
            f"{each.channels:,}",
            f"{each.messages_per_s:,.0f}",
            f"{each.distribution_cores:.3f}",
            f"{each.processing_cores:.3f}",
            f"{each.total_cores:.3f}",
        )
        for each in costs
    ]
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    notes = ["", *("  ".join(words) for words in (_notes(each.strategy, strategy, cheapest) for each in costs))]
    total = sum(_source_rates(graph, rate).values())
    lines = [f"== Headrace cost: {nodes:,} {'node' if nodes == 1 else 'nodes'}, {total:,.0f} rows/s =="]
    for row, note in zip((head, *rows), notes, strict=True):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width) for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join([*cells, note]).rstrip())
    lines.append("hops: times a row is redistributed; fan-out: instances that one instance must reach; distribution to total: cores, where")
    lines.append(
        f"distribution = {weights.channel_us:g} us/s per channel + {weights.message_us:g} us per message (assumed unless measured)"
    )
    return "\n".join(lines)


def example_chain(*names: str) -> QueryGraph:
    """A chain of operators, for examples and tests. A star marks a stateful operator: `example_chain("map", "agg*")`."""
    plain = [name.removesuffix("*") for name in names]
    return QueryGraph(
        tuple(Box(p, n.endswith("*"), inputs=tuple(plain[i - 1 : i])) for i, (p, n) in enumerate(zip(plain, names, strict=True)))
    )


def _crosses(box: Box, strategy: Strategy) -> bool:
    """True if rows are redistributed before the box. As in the paper, a source's rows reach their first subquery without that, except
    with query-cloud."""
    match strategy:
        case Strategy.QUERY_CLOUD:
            return box.stateful
        case Strategy.OPERATOR_CLOUD:
            return bool(box.inputs)
        case Strategy.OPERATOR_SET_CLOUD:
            return box.stateful and bool(box.inputs)


def _hops(graph: QueryGraph, crossed: set[str]) -> int:
    longest: dict[str, int] = {}
    for box in graph.ordered():
        longest[box.name] = max((longest[name] for name in box.inputs), default=0) + (box.name in crossed)
    return max(longest.values())


def _feeders(box: Box, subquery: Subquery, subqueries: Sequence[Subquery]) -> Iterator[tuple[str, str]]:
    """The (subquery, box) pairs that send rows to the box in this subquery.

    A stateful box reads from all subqueries that run its inputs. A stateless box reads only from its own subquery, unless its input runs
    where the box does not. An input that is read twice (a self-join) is sent once.
    """
    for name in dict.fromkeys(box.inputs):
        for other in subqueries:
            if name in other.boxes and (other.name == subquery.name or box.stateful or box.name not in other.boxes):
                yield other.name, name


def _links(graph: QueryGraph, subqueries: Sequence[Subquery]) -> list[tuple[str, str]]:
    """Pairs of subqueries where the first sends rows to the second."""
    found: dict[tuple[str, str], None] = {}
    for box in graph.ordered():
        for subquery in subqueries:
            if box.name in subquery.boxes:
                found.update(((other, subquery.name), None) for other, _ in _feeders(box, subquery, subqueries) if other != subquery.name)
    return list(found)


def _flows(graph: QueryGraph, subqueries: Sequence[Subquery], rate: float | Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Rows per second into each (subquery, box)."""
    rates = _source_rates(graph, rate)
    flows: dict[tuple[str, str], float] = {}
    selectivity = {box.name: box.selectivity for box in graph.boxes}
    for box in graph.ordered():
        for subquery in subqueries:
            if box.name in subquery.boxes:
                fed = (flows[place] * selectivity[place[1]] for place in _feeders(box, subquery, subqueries))
                flows[subquery.name, box.name] = sum(fed) if box.inputs else rates[box.name]
    return flows


def _source_rates(graph: QueryGraph, rate: float | Mapping[str, float]) -> dict[str, float]:
    sources = [box.name for box in graph.boxes if not box.inputs]
    rates = dict(rate) if isinstance(rate, Mapping) else dict.fromkeys(sources, rate / len(sources))
    wanted = f"a rate for each of {', '.join(sources)}"
    _wanted(set(rates) == set(sources), "rate", wanted, ", ".join(rates) or "none", "or give one number for all")
    for name, value in rates.items():
        _wanted(0 <= value < math.inf, "rate", f"0 or more from {name!r}", value, "give rows per second")
    return rates


def _sizes(subqueries: Sequence[Subquery], nodes: int | Mapping[str, int]) -> dict[str, int]:
    names = [subquery.name for subquery in subqueries]
    if not isinstance(nodes, Mapping):
        _wanted(nodes >= 1, "nodes", "at least one node", nodes, "count the instances to run on")
        return _share(nodes, dict.fromkeys(names, 1.0))
    wanted = f"instances for each of {', '.join(names)}"
    _wanted(set(nodes) == set(names), "nodes", wanted, ", ".join(nodes) or "none", "or give one number for all")
    for name in names:
        _wanted(nodes[name] >= 1, "nodes", f"at least one instance of {name!r}", nodes[name], "count the instances")
    return {name: nodes[name] for name in names}


def _share(total: int, load: Mapping[str, float]) -> dict[str, int]:
    """Share instances: one each, then one more for the greatest load per instance, until none is left. A tie goes to the first."""
    sizes = dict.fromkeys(load, 1)
    for _ in range(total - len(sizes)):
        sizes[max(sizes, key=lambda name: load[name] / sizes[name])] += 1
    return sizes


def _sizes_in_words(each: Cost) -> str:
    """The sizes of subqueries as text: `3 x 30`, or `31+31+30`, or if that is long, `23 in all`."""
    sizes = [size for _, size in each.instances]
    if len(set(sizes)) == 1:
        return f"{len(sizes)} x {sizes[0]}"
    words = "+".join(map(str, sizes))
    return words if len(words) <= 12 else f"{sum(sizes)} in all"


def _notes(strategy: Strategy, used: Strategy, cheapest: Strategy) -> list[str]:
    return [word for word, holds in (("in use", strategy is used), ("least", strategy is cheapest)) if holds]
