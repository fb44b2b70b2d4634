"""The linear program of load shedding (Borealis 4), which the paper describes in words.

    variables    kept_a >= 0, the tuples per second that arc a delivers
    maximise     sum over the ends of the query of weight * selectivity * kept
    such that    kept_a <= what arrives at a: the source's rate, or selectivity * all kept by the operator before
                 per node, sum of cost * kept <= capacity

The drop selectivity of an arc is kept over arriving. With flows instead of drop selectivities as variables the program stays linear when
drops follow one another. Rates are on the right-hand side only, so the matrix is built once; the best quality is concave and grows with
the rates, which the quadtree relies on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import linprog

from headrace.control.network import Arc, Deployment, Matrix, Vector, expect
from headrace.control.shedding.plan import DropPlan, PlanId, flows, keep_from, quality_of
from headrace.errors import require

ANY = PlanId(0)
"""The id of a plan that is not kept."""


@dataclass(frozen=True, eq=False)
class Program:
    deployment: Deployment

    @cached_property
    def constraints(self) -> Matrix:
        """Rows: first the arcs, then the nodes. Columns: the arcs."""
        query, nodes = self.deployment.query, [node.name for node in self.deployment.nodes]
        column = {arc: at for at, arc in enumerate(query.arcs)}
        matrix = np.zeros((len(column) + len(nodes), len(column)))
        for operator in query.operators:
            into = [column[Arc(stream, operator.name)] for stream in operator.inputs]
            matrix[into, into] = 1.0
            for arc in query.consumers[operator.output]:
                matrix[column[arc], into] = -operator.selectivity
            matrix[len(column) + nodes.index(self.deployment.placement[operator.name]), into] = operator.cost
        return matrix

    @cached_property
    def worth(self) -> Vector:
        """Quality per tuple that an arc delivers."""
        ends = {end.name: end.weight * end.selectivity for end in self.deployment.query.ends}
        return np.array([ends.get(arc.operator, 0.0) for arc in self.deployment.query.arcs])

    def solve(self, rates: Sequence[float], plan: PlanId = ANY) -> DropPlan:
        """The best plan for these rates of the sources.

        >>> from headrace.control.network import Node, NetworkOperator, NetworkQuery
        >>> query = NetworkQuery(("a",), (NetworkOperator("f", ("a",), cost=2),))
        >>> plan = Program(Deployment(query, (Node("n"),), {"f": "n"})).solve((1.0,))
        >>> plan.keep, plan.quality
        ({Arc(stream='a', operator='f'): 0.5}, 0.5)
        """
        query = self.deployment.query
        expect(len(rates) == len(query.sources), "Program", f"{len(query.sources)} rates", tuple(rates))
        if self.deployment.feasible(rates):
            return DropPlan(plan, {}, quality_of(query, flows(query, rates, {})))
        arriving = dict(zip(query.sources, rates, strict=True))
        offered = np.array([arriving.get(arc.stream, 0.0) for arc in query.arcs])
        bounds = np.concatenate([offered, self.deployment.capacities])
        found = linprog(-self.worth, A_ub=self.constraints, b_ub=bounds, method="highs")
        # Dropping everything is always feasible, and arrivals bound the results.
        require(found.success, f"the shedding program has an optimum; the solver says: {found.message}")
        delivered = {arc: float(kept) for arc, kept in zip(query.arcs, np.maximum(found.x, 0.0), strict=True)}
        return DropPlan(plan, keep_from(query, rates, delivered), float(-found.fun))
