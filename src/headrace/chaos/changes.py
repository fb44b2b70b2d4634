"""Random changes of the routing of a running query."""

from __future__ import annotations

from random import Random

from headrace.api.query import HeadraceQuery
from headrace.ids import OperatorId

INSTANCES_MAX = 4


def change_at_random(query: HeadraceQuery, random: Random) -> None:
    """Make one change: rescale all operators or one, move slots, or rebalance, by any protocol that the operators allow."""
    operator = OperatorId(random.choice(sorted(query.routing())))
    facts = query._engine.routing.facts
    own = random.choice(["auto", *facts[operator].possible])
    match random.randint(0, 4):
        case 0:
            of_all = set(facts[operator].possible).intersection(*(each.possible for each in facts.values()))
            query.rescale(random.randint(1, INSTANCES_MAX), protocol=random.choice(["auto", *sorted(of_all)]))
        case 1:
            query.rescale(operator, random.randint(1, INSTANCES_MAX), protocol=own)
        case 2:
            lo = random.randint(0, 4000)
            to = random.randrange(query.routing()[operator].instances)
            # Every other range begins or ends inside a slot, and cuts it.
            edges = lo + random.choice([0, random.random()]), lo + random.randint(1, 96) + random.choice([0, random.random()])
            query.move([edges, random.randint(0, 4095)], to, operator, own)
        case 3 if facts[operator].mergeable:
            lo = random.randint(0, 3000)
            query.spread([(lo, lo + 1000)] if random.random() < 0.7 else [], operator)
        case _:
            query.rebalance(operator, own)
