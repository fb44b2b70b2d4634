"""Shedding plans in advance without a solver (Borealis 4.2): feasible input tables, merged upstream.

A *feasible input table* (FIT) of a node has a row for each of many combinations of input rates that the node and all behind it can bear,
with the local plan to use with it and the quality that results. It begins at the ends of the queries with a grid, spread epsilon of the
highest feasible rate on each input, and goes upstream: a node joins the tables of its children, takes them back through its own
operators, and drops the rows that overload it. At the sources an infeasible point q is mapped to the best row p <= q, and input i keeps
p_i / q_i.

    rows            arcs from upstream (open)    arcs behind          quality
    table of B      b1     b2                                         b1 + b2
    table of A      a1 = b1 / selectivity ...    b1     b2            the same; without the rows that A cannot bear

What flows on the arcs behind is the *complementary local plan*: where a stream is shared, its rate is the largest that any consumer
wants, and the others drop the rest. `groups.py` says who builds which
table; this file is the tables themselves and their use at run time.

Where it departs from the paper, whose details are in a report of its own:

- Columns are arcs, not streams: a source with two consumers is two columns, since each may keep another share.
- At a union the inputs share what is wanted in steps of epsilon of what they can deliver, the last taking the rest.
- A node with several parents sends its table to the one farthest downstream, which passes it on with the columns of the others; the paper
  speaks of one parent. Nodes that feed each other in a circle build one table together.
- At run time the best row is found in a dense array over the values of each column instead of a quadtree: the same row, in one step.

A plan's loss is bounded for networks without unions: at most epsilon times the sum over the ends' inputs of their highest worth.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt

from headrace.control.network import (
    Arc,
    Deployment,
    Matrix,
    NetworkOperator,
    NetworkQuery,
    Node,
    NodeId,
    Placement,
    StreamId,
    Vector,
    expect,
)
from headrace.control.shedding.plan import DropPlan, PlanId, Shedding, keep_from
from headrace.errors import QueryError, require

# Rows at the very capacity are feasible, whatever rounding says.
ROUNDING = 1e-9

# Of the array that finds the best row: 8 bytes each.
CELLS_MAX = 10_000_000


@dataclass(frozen=True)
class FitConfig:
    epsilon: float = 0.1
    """The spread of the grid, as a share of the highest feasible rate of each input."""
    rows_max: int = 1_000_000
    """Rows that a table may have before infeasible ones are dropped; they grow as (1 + 1/epsilon)^ends."""

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < 1, "FitConfig", "epsilon between 0 and 1", self.epsilon)
        expect(self.rows_max > 0, "FitConfig", "rows_max above 0", self.rows_max)


@dataclass(frozen=True, eq=False)
class Table:
    """Feasible rates: a row is what each arc delivers, and the quality of that."""

    arcs: tuple[Arc, ...]
    flows: Matrix
    quality: Vector

    @property
    def open_arcs(self) -> tuple[Arc, ...]:
        """Those whose stream comes from an operator that the table does not know, or from a source."""
        known: set[str] = {arc.operator for arc in self.arcs}
        return tuple(arc for arc in self.arcs if arc.stream not in known)

    def column(self, arc: Arc) -> Vector:
        flows: Vector = self.flows[:, self.arcs.index(arc)]
        return flows

    def only(self, rows: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> Table:
        return Table(self.arcs, self.flows[rows], self.quality[rows])

    def with_columns(self, arcs: Sequence[Arc], columns: Iterable[Vector]) -> Table:
        return Table(self.arcs + tuple(arcs), np.column_stack([self.flows, *columns]), self.quality)


NOTHING = Table((), np.zeros((1, 0)), np.zeros(1))
"""The table of nobody: one row without columns."""


def joined(tables: Iterable[Table], config: FitConfig) -> Table:
    """Every row with every row of the others."""
    return reduce(lambda left, right: _product(left, right, config), tables, NOTHING)


def _product(left: Table, right: Table, config: FitConfig) -> Table:
    rows = len(left.flows) * len(right.flows)
    _check_size("a table", config.rows_max, rows)
    i, j = np.repeat(np.arange(len(left.flows)), len(right.flows)), np.tile(np.arange(len(right.flows)), len(left.flows))
    return Table(left.arcs + right.arcs, np.hstack([left.flows[i], right.flows[j]]), left.quality[i] + right.quality[j])


def _check_size(what: str, most: int, found: int) -> None:
    if found > most:
        raise QueryError(where="FIT", wanted=f"{what} of at most {most} rows", found=str(found), hint="raise epsilon or use the solver")


@dataclass(frozen=True, eq=False)
class Workshop:
    """What builds tables. It need know only the operators that it is asked about, and their nodes."""

    nodes: tuple[Node, ...]
    placement: Placement
    config: FitConfig

    @cached_property
    def _capacities(self) -> dict[NodeId, float]:
        return {node.name: node.capacity for node in self.nodes}

    def delivered_max(self, operators: Iterable[NetworkOperator], into: Mapping[StreamId, float]) -> dict[StreamId, float]:
        """The highest rates that these operators, in order downstream, put out when each is alone on its node."""
        found = dict(into)
        for operator in operators:
            found[operator.output] = operator.selectivity * self._bears(operator, sum(found[stream] for stream in operator.inputs))
        return found

    def table(self, operators: Sequence[NetworkOperator], tables: Iterable[Table], rates_max: Mapping[StreamId, float]) -> Table:
        """The operators' table, from the tables of all who consume from them: back through each of them, the last first."""
        # In an order of their own, whoever came first.
        table = self._feasible(joined(sorted(tables, key=lambda each: each.arcs), self.config), operators)
        for operator in reversed(operators):
            if any(arc.stream == operator.output for arc in table.arcs):
                table = self._pulled(table, operator, rates_max)
            else:
                table = joined([table, self._grid(operator, rates_max)], self.config)
            table = self._feasible(table, operators)
        return _best_rows(table)

    def _bears(self, operator: NetworkOperator, rate: float) -> float:
        capacity = self._capacities[self.placement[operator.name]]
        return min(rate, capacity / operator.cost) if operator.cost else rate

    def _steps(self, operator: NetworkOperator, stream: StreamId, rates_max: Mapping[StreamId, float]) -> Vector:
        """Rates of an arc, epsilon of the highest apart, with 0 and the highest."""
        parts = self.config.epsilon * np.arange(math.floor(1 / self.config.epsilon + ROUNDING) + 1, dtype=np.float64)
        highest = self._bears(operator, rates_max[stream])
        steps: Vector = np.unique(np.append(parts[parts < 1 - ROUNDING], 1.0) * highest)
        return steps

    def _grid(self, operator: NetworkOperator, rates_max: Mapping[StreamId, float]) -> Table:
        """All combinations of the inputs of an operator at the end of a query."""
        worth = operator.weight * operator.selectivity
        columns = (self._steps(operator, stream, rates_max) for stream in operator.inputs)
        tables = (
            Table((Arc(stream, operator.name),), steps[:, None], worth * steps)
            for stream, steps in zip(operator.inputs, columns, strict=True)
        )
        return joined(tables, self.config)

    def _pulled(self, table: Table, operator: NetworkOperator, rates_max: Mapping[StreamId, float]) -> Table:
        """With columns for the inputs of an operator whose outputs are columns already."""
        wanted = np.max([table.column(arc) for arc in table.arcs if arc.stream == operator.output], axis=0)
        total = wanted / operator.selectivity if operator.selectivity else np.zeros(len(wanted))
        arcs = [Arc(stream, operator.name) for stream in operator.inputs]
        # All inputs but the last take steps; the last takes what is left, if it can deliver that.
        for arc in arcs[:-1]:
            steps = self._steps(operator, arc.stream, rates_max)
            table = _product(table, Table((arc,), steps[:, None], np.zeros(len(steps))), self.config)
            total = np.repeat(total, len(steps)) - table.column(arc)
            enough = total >= -ROUNDING
            table, total = table.only(enough), np.maximum(total[enough], 0.0)
        possible = total <= rates_max[arcs[-1].stream] * (1 + ROUNDING)
        return table.with_columns(arcs[-1:], [total]).only(possible)

    def _feasible(self, table: Table, operators: Iterable[NetworkOperator]) -> Table:
        """Without the rows that overload a node of these operators."""
        costs = {operator.name: operator.cost for operator in operators}
        columns: dict[NodeId, list[int]] = {}
        for at, arc in enumerate(table.arcs):
            if arc.operator in costs:
                columns.setdefault(self.placement[arc.operator], []).append(at)
        good = np.ones(len(table.flows), dtype=bool)
        for node, mine in columns.items():
            load = table.flows[:, mine] @ np.array([costs[table.arcs[at].operator] for at in mine])
            good &= load <= self._capacities[node] * (1 + ROUNDING)
        return table if good.all() else table.only(good)


def _best_rows(table: Table) -> Table:
    """Of rows with the same rates on the open arcs the one with the best quality: the rest are worse plans behind."""
    columns = [table.column(arc) for arc in table.open_arcs]
    order = np.lexsort((-table.quality, *columns))
    keys = np.column_stack(columns)[order]
    first = np.ones(len(order), dtype=bool)
    first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return table.only(order[first])


@dataclass(frozen=True, eq=False)
class PartTable:
    """The finished table of one part of the network, ready for look-up."""

    query: NetworkQuery
    table: Table
    first_id: int

    @cached_property
    def inputs(self) -> tuple[Arc, ...]:
        return tuple(arc for arc in self.table.arcs if arc.stream in self.query.sources)

    @cached_property
    def columns(self) -> list[int]:
        return [self.table.arcs.index(arc) for arc in self.inputs]

    @cached_property
    def values(self) -> tuple[list[float], ...]:
        """The rates that occur on each input, ascending."""
        return tuple(np.unique(self.table.column(arc)).tolist() for arc in self.inputs)

    @cached_property
    def cells(self) -> npt.NDArray[np.int64]:
        """For every combination of rates that occur, the best row at or below it on all inputs."""
        by_quality = np.argsort(self.table.quality, kind="stable")
        rank = np.empty(len(by_quality), dtype=np.int64)
        rank[by_quality] = np.arange(len(by_quality))
        shape = [len(each) for each in self.values]
        _check_size("a look-up array", CELLS_MAX, math.prod(shape))
        best = np.full(shape, -1, dtype=np.int64)
        at = tuple(np.searchsorted(each, self.table.column(arc)) for each, arc in zip(self.values, self.inputs, strict=True))
        np.maximum.at(best, at, rank)
        for axis in range(best.ndim):
            np.maximum.accumulate(best, axis=axis, out=best)
        require(bool((best >= 0).all()), "a table has the row that keeps nothing")
        cells: npt.NDArray[np.int64] = by_quality[best]
        return cells

    def row(self, rate_of: Mapping[StreamId, float]) -> int:
        """The best row that these rates can be reduced to."""
        found = zip(self.values, self.inputs, strict=True)
        cell = tuple(bisect.bisect_right(each, rate_of[arc.stream] * (1 + ROUNDING)) - 1 for each, arc in found)
        return int(self.cells[cell])

    def plan(self, row: int) -> DropPlan:
        """What goes on behind the inputs, which keep all that is left to them."""
        delivered = dict.fromkeys(self.query.arcs, 0.0) | dict(zip(self.table.arcs, self.table.flows[row].tolist(), strict=True))
        inside = keep_from(self.query, [0.0] * len(self.query.sources), delivered)
        return DropPlan(PlanId(self.first_id + row), inside, float(self.table.quality[row]))


@dataclass(frozen=True, eq=False)
class FeasibleInputs:
    """All finished tables: plans in advance for every combination of rates."""

    deployment: Deployment
    parts: tuple[PartTable, ...]

    @classmethod
    def of(cls, deployment: Deployment, tables: Iterable[Table]) -> FeasibleInputs:
        ordered = sorted(tables, key=lambda each: each.arcs)
        first_ids = itertools.accumulate((len(each.flows) for each in ordered), initial=0)
        parts = tuple(PartTable(deployment.query, table, first) for table, first in zip(ordered, first_ids, strict=False))
        for part in parts:
            # Built here, in advance, not at the first overload.
            require(part.cells.size > 0, "a table can be looked up")
        return cls(deployment, parts)

    def plan(self, plan: PlanId) -> DropPlan:
        part = self.parts[bisect.bisect_right([each.first_id for each in self.parts], plan) - 1]
        return part.plan(plan - part.first_id)

    def choose(self, rates: Sequence[float]) -> Shedding:
        rate_of = dict(zip(self.deployment.query.sources, rates, strict=True))
        overloaded = self.deployment.loads @ np.asarray(rates) > self.deployment.capacities
        plans: list[PlanId] = []
        keep: dict[Arc, float] = {}
        for part, nodes in zip(self.parts, self._nodes, strict=True):
            # A part that bears its rates is left alone.
            if overloaded[nodes].any():
                row = part.row(rate_of)
                plans.append(PlanId(part.first_id + row))
                limits = part.table.flows[row, part.columns].tolist()
                keep |= {
                    arc: limit / rate_of[arc.stream] for arc, limit in zip(part.inputs, limits, strict=True) if limit < rate_of[arc.stream]
                }
        return Shedding(tuple(plans), keep)

    @cached_property
    def _nodes(self) -> list[list[int]]:
        """The nodes of each part."""
        names = [node.name for node in self.deployment.nodes]
        used = [{self.deployment.placement[arc.operator] for arc in part.table.arcs} for part in self.parts]
        return [[at for at, name in enumerate(names) if name in each] for each in used]
