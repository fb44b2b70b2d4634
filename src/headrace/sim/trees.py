"""Queries to try placements on: a random tree of operators for every source.

The paper does not print its queries of Fig. 4 and 5. Here one to three operators read the output of each operator, and half of the
operators pass every tuple on. So a query of many operators is broad, not deep. In deep queries the load shrinks from operator to operator:
the first few have nearly all of it, and more operators do not make it easier to distribute.
"""

from __future__ import annotations

import numpy as np

from headrace.control.network import NetworkOperator, NetworkQuery, StreamId, expect
from headrace.ids import OperatorId

CONSUMERS_MAX = 3
COSTS = (0.1, 1.0)
SELECTIVITIES = (0.5, 1.0)


def random_trees(seed: int, sources: int, each: int) -> NetworkQuery:
    """A query of random trees, with ``each`` operators for every source.

    >>> query = random_trees(seed=1, sources=2, each=3)
    >>> [(operator.name, operator.inputs) for operator in query.operators][:3]
    [('o0.0', ('s0',)), ('o0.1', ('s0',)), ('o0.2', ('o0.0',))]
    """
    expect(sources > 0 and each > 0, "random_trees", "one or more sources and operators", (sources, each))
    rng = np.random.default_rng(seed)
    operators: list[NetworkOperator] = []
    for source in range(sources):
        to_read = [StreamId(f"s{source}")]
        made = 0
        while made < each:
            stream = to_read.pop(0)
            for _ in range(min(int(rng.integers(1, CONSUMERS_MAX + 1)), each - made)):
                selectivity = 1.0 if rng.random() < 0.5 else float(rng.uniform(*SELECTIVITIES))
                cost = float(rng.uniform(*COSTS))
                operators.append(NetworkOperator(OperatorId(f"o{source}.{made}"), (stream,), cost=cost, selectivity=selectivity))
                to_read.append(operators[-1].output)
                made += 1
    return NetworkQuery(tuple(StreamId(f"s{at}") for at in range(sources)), tuple(operators))
