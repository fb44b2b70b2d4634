"""The home of each instance: the executor that it runs on.

All operators of a query are placed together. Each operator has its instances on as many executors as it can, because they run at the same
time. Among executors that are equal in that, an instance goes to the one with the fewest instances of all operators.

An instance stays where its state is, as long as that executor is alive and has no more instances than its share, of this operator and of
all. So a new executor gets instances only from those with too many, and the instances of a lost executor go to those with the fewest.
Floe and SEEP have the same rule: nothing moves that need not move.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from headrace.ids import OperatorId

Executor = str


def assigned(
    before: Mapping[OperatorId, Sequence[Executor | None]], instances: Mapping[OperatorId, int], live: Sequence[Executor]
) -> dict[OperatorId, tuple[Executor, ...]]:
    """A home for each instance of these operators, among the live executors.

    ``before`` are the homes so far. Operators that are only in ``before`` stay where they are, and count.

    >>> assigned({}, {"sum": 4}, ["1", "2"])
    {'sum': ('1', '2', '1', '2')}
    >>> assigned({"sum": ["1", "2", "1", "2"]}, {"sum": 4}, ["1", "2", "3"])
    {'sum': ('1', '2', '1', '3')}
    >>> assigned({"sum": ["1", "2", "3"]}, {"sum": 3}, ["1", "3", "4"])
    {'sum': ('1', '4', '3')}

    If some executors must have one instance more than others, those that had one more keep it:

    >>> assigned({"sum": ["1", "2", "2"]}, {"sum": 3}, ["1", "2"])
    {'sum': ('1', '2', '2')}

    Small operators do not all live on the first executor:

    >>> assigned({}, {"a": 1, "b": 1, "c": 2}, ["1", "2", "3", "4"])
    {'a': ('1',), 'b': ('2',), 'c': ('3', '4')}
    >>> assigned({"a": ["1"]}, {"b": 1}, ["1", "2"])
    {'b': ('2',)}
    """
    staying = (home for operator, homes in before.items() if operator not in instances for home in homes)
    everything: Counter[Executor] = Counter(home for home in staying if home is not None and home in live)
    most = -(-(everything.total() + sum(instances.values())) // len(live))
    kept = {operator: _kept(before.get(operator, ()), count, live, most, everything) for operator, count in instances.items()}
    return {operator: _filled(homes, live, everything) for operator, homes in kept.items()}


def executors_needed(instances: int, cores: int) -> int:
    """The number of executors with this many cores on which this many instances run at the same time.

    >>> executors_needed(5, cores=2)
    3
    """
    return math.ceil(instances / max(1, cores))


def without_ready_ones(live: Sequence[Executor], needed: int, homes: Collection[Executor], others: Collection[Executor]) -> list[Executor]:
    """As many executors as instances need. All others stay ready.

    ``homes`` are the present homes, once for each instance, and ``others`` the executors that other queries use. Executors with the most
    instances come first, then those that no other query uses, then the oldest.

    >>> without_ready_ones(["1", "2", "3", "4"], 2, ["3"], others=[])
    ['1', '3']
    >>> without_ready_ones(["1", "2", "3", "4"], 2, ["3"], others=["1"])
    ['2', '3']
    """
    here = Counter(homes)
    chosen = sorted(live, key=lambda each: (-here[each], each in others))[:needed]
    return [each for each in live if each in chosen]


def _kept(
    before: Sequence[Executor | None], instances: int, live: Sequence[Executor], most: int, everything: Counter[Executor]
) -> list[Executor | None]:
    """The homes that an operator's instances keep; None for those that must move. Adds the kept ones to ``everything``."""
    share, over = divmod(instances, len(live))
    here: Counter[Executor] = Counter()
    homes: list[Executor | None] = []
    for home in [*before, *[None] * instances][:instances]:
        too_many = home is None or here[home] > share or (here[home] == share and not over) or everything[home] >= most
        if home is None or home not in live or too_many:
            homes.append(None)
            continue
        over -= here[home] == share
        here[home] += 1
        everything[home] += 1
        homes.append(home)
    return homes


def _filled(homes: list[Executor | None], live: Sequence[Executor], everything: Counter[Executor]) -> tuple[Executor, ...]:
    """All homes of an operator: instances without one go to the executors with the fewest of it, and then with the fewest of all."""
    here = Counter(home for home in homes if home is not None)
    filled: list[Executor] = []
    for home in homes:
        chosen = home if home is not None else min(live, key=lambda each: (here[each], everything[each]))
        if home is None:
            here[chosen] += 1
            everything[chosen] += 1
        filled.append(chosen)
    return tuple(filled)
