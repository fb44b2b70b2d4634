"""The model for placement and load shedding: a query as a graph of operators, the nodes, and the placement of operators on nodes.

The load model is linear, as in Borealis: a tuple costs an operator `cost` seconds of CPU and makes `selectivity` tuples, from whichever
input it comes. So rates and loads are linear in the rates of the sources, and a few matrices describe them:

    source a --> [cost 1, selectivity 0.5] --> [cost 4] --> output         arrivals per tuple of a: 1, 0.5
                                                                           load per tuple of a:     1, 2

Running queries use it for load shedding, and its nodes for peers and for the order of checkpoints. The rest is used in the simulator.
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, NewType

import numpy as np
import numpy.typing as npt

from headrace.errors import QueryError
from headrace.ids import OperatorId

NodeId = NewType("NodeId", str)
"""A machine or an executor. It has a capacity of its own and fails as a whole."""

StreamId = NewType("StreamId", str)
"""A source, or the output of the operator with the same name."""

Placement = Mapping[OperatorId, NodeId]
"""The node of each operator."""

Matrix = npt.NDArray[np.float64]
Vector = npt.NDArray[np.float64]


def expect(ok: bool, where: str, wanted: str, found: object) -> None:
    """Raise a QueryError that names a mistake of the user or the caller, unless ``ok``.

    >>> expect(False, "Node 'a'", "a capacity above 0", -1)
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: Node 'a': wanted a capacity above 0; found -1
    """
    if not ok:
        raise QueryError(where=where, wanted=wanted, found=repr(found))


@dataclass(frozen=True)
class Node:
    """A machine or an executor that runs operators."""

    name: NodeId
    capacity: float = 1.0
    """CPU seconds per second."""
    zone: str = ""
    """Its fault zone, such as a rack or a host: nodes of one zone may fail together. A node without one is a zone of its own."""

    def __post_init__(self) -> None:
        expect(0 < self.capacity < math.inf, f"Node {self.name!r}", "a capacity above 0", self.capacity)

    @property
    def fault_zone(self) -> str:
        # With a prefix, so that the name of a node without a zone never equals a zone.
        return f"zone {self.zone}" if self.zone else f"node {self.name}"


@dataclass(frozen=True)
class NetworkOperator:
    """An operator of the load model."""

    name: OperatorId
    inputs: tuple[StreamId, ...]
    cost: float = 1.0
    """CPU seconds per tuple that arrives."""
    selectivity: float = 1.0
    """Tuples out per tuple in."""
    weight: float = 1.0
    """The worth of a tuple of its output. Only outputs that no operator reads count: the results of the query."""

    def __post_init__(self) -> None:
        where = f"Operator {self.name!r}"
        expect(len(set(self.inputs)) == len(self.inputs) > 0, where, "one or more inputs, each once", self.inputs)
        for field, value in (("cost", self.cost), ("selectivity", self.selectivity), ("weight", self.weight)):
            expect(0 <= value < math.inf, where, f"a {field} of 0 or more", value)

    @property
    def output(self) -> StreamId:
        return StreamId(self.name)


class Arc(NamedTuple):
    """The connection from a stream to one operator that reads it. Tuples can be dropped there."""

    stream: StreamId
    operator: OperatorId


@dataclass(frozen=True)
class NetworkQuery:
    """A graph of operators without cycles. Several queries that run together are one graph with several ends."""

    sources: tuple[StreamId, ...]
    operators: tuple[NetworkOperator, ...]

    def __post_init__(self) -> None:
        names = [*self.sources, *(each.name for each in self.operators)]
        expect(len(set(names)) == len(names), "Query", "every name once", names)
        for operator in self.operators:
            unknown = set(operator.inputs) - set(names)
            expect(not unknown, f"Operator {operator.name!r}", f"inputs among {', '.join(names)}", sorted(unknown))
        graph = {each.name: set(each.inputs) - set(self.sources) for each in self.operators}
        try:
            tuple(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            raise QueryError(where="Query", wanted="operators without a cycle", found=" -> ".join(error.args[1])) from None

    @cached_property
    def downstream(self) -> tuple[NetworkOperator, ...]:
        """The operators, each after those that it reads."""
        by_name = {each.name: each for each in self.operators}
        graph = {each.name: [name for name in each.inputs if name not in self.sources] for each in self.operators}
        return tuple(by_name[OperatorId(name)] for name in graphlib.TopologicalSorter(graph).static_order())

    @cached_property
    def arcs(self) -> tuple[Arc, ...]:
        """All arcs, in the order of `downstream`."""
        return tuple(Arc(stream, each.name) for each in self.downstream for stream in each.inputs)

    @cached_property
    def consumers(self) -> Mapping[StreamId, tuple[Arc, ...]]:
        """The arcs that leave each stream."""
        found: dict[StreamId, tuple[Arc, ...]] = dict.fromkeys([*self.sources, *(each.output for each in self.operators)], ())
        for arc in self.arcs:
            found[arc.stream] += (arc,)
        return found

    @cached_property
    def ends(self) -> tuple[NetworkOperator, ...]:
        """The operators whose output is a result."""
        return tuple(each for each in self.downstream if not self.consumers[each.output])

    @cached_property
    def arrivals(self) -> Matrix:
        """Tuples that arrive at each operator (row, in the given order) per tuple of each source (column), if none are dropped.

        >>> chain = NetworkQuery(("a",), (NetworkOperator("f", ("a",), selectivity=0.5), NetworkOperator("g", ("f",), cost=4)))
        >>> chain.arrivals.tolist(), chain.loads.tolist()
        ([[1.0], [0.5]], [[1.0], [2.0]])
        """
        out: dict[str, Vector] = dict(zip(self.sources, np.eye(len(self.sources)), strict=True))
        into: dict[str, Vector] = {}
        for each in self.downstream:
            into[each.name] = np.sum([out[stream] for stream in each.inputs], axis=0)
            out[each.name] = into[each.name] * each.selectivity
        return np.array([into[each.name] for each in self.operators]).reshape(len(self.operators), len(self.sources))

    @cached_property
    def loads(self) -> Matrix:
        """CPU seconds of each operator per tuple of each source."""
        costs: Matrix = np.array([each.cost for each in self.operators])[:, None] * self.arrivals
        return costs


@dataclass(frozen=True)
class Deployment:
    """A query whose operators are placed on nodes."""

    query: NetworkQuery
    nodes: tuple[Node, ...]
    placement: Placement

    def __post_init__(self) -> None:
        check_placement(self.placement, (each.name for each in self.query.operators), self.nodes)

    @cached_property
    def capacities(self) -> Vector:
        return np.array([node.capacity for node in self.nodes])

    @cached_property
    def loads(self) -> Matrix:
        """CPU seconds of each node (row) per tuple of each source (column), if no tuples are dropped."""
        at = owners(self.placement, (each.name for each in self.query.operators), self.nodes)
        return node_sums(self.query.loads, at, len(self.nodes))

    def feasible(self, rates: Sequence[float] | Vector) -> bool:
        """True if no node is overloaded at these rates of the sources.

        >>> one = Deployment(NetworkQuery(("a",), (NetworkOperator("f", ("a",), cost=2),)), (Node("n"),), {"f": "n"})
        >>> one.feasible([0.5]), one.feasible([0.6])
        (True, False)
        """
        return bool((self.loads @ np.asarray(rates) <= self.capacities * (1 + 1e-12)).all())


def check_nodes(nodes: Sequence[Node]) -> None:
    """Refuse an empty list of nodes, or two with one name."""
    names = [node.name for node in nodes]
    expect(len(set(names)) == len(names) > 0, "nodes", "one or more, every name once", names)


def check_placement(placement: Placement, operators: Iterable[OperatorId], nodes: Sequence[Node]) -> None:
    """Refuse a placement that lacks an operator or names an unknown node."""
    check_nodes(nodes)
    missing = [name for name in operators if name not in placement]
    expect(not missing, "placement", "a node for every operator", f"none for {missing}")
    unknown = set(placement.values()) - {node.name for node in nodes}
    expect(not unknown, "placement", f"nodes among {', '.join(node.name for node in nodes)}", sorted(unknown))


def owners(placement: Placement, operators: Iterable[OperatorId], nodes: Sequence[Node]) -> npt.NDArray[np.int64]:
    """The index of each operator's node."""
    index = {node.name: at for at, node in enumerate(nodes)}
    return np.array([index[placement[name]] for name in operators], dtype=np.int64)


def node_sums(values: Matrix, at: npt.NDArray[np.int64], nodes: int) -> Matrix:
    """The sum of the operators' rows for each node. `at` is the node of each operator."""
    sums = np.zeros((nodes, values.shape[1]))
    np.add.at(sums, at, values)
    return sums
