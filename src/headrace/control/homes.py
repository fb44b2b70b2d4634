"""The home of each instance: the executor that it runs on.

An instance stays where its state is, as long as that executor is alive and has no more instances than its share. So a new executor gets
instances only from those with too many, and the instances of a lost executor go to those with the fewest. Floe and SEEP have the same
rule: nothing moves that need not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Executor = str


def assigned(before: Sequence[Executor | None], instances: int, live: Sequence[Executor]) -> tuple[Executor, ...]:
    """A home for each instance, among the live executors. ``before`` are the homes so far.

    >>> assigned([], 4, ["1", "2"])
    ('1', '2', '1', '2')
    >>> assigned(["1", "2", "1", "2"], 4, ["1", "2", "3"])
    ('1', '2', '1', '3')
    >>> assigned(["1", "2", "3"], 3, ["1", "3", "4"])
    ('1', '4', '3')

    If some executors must have one instance more than others, those that had one more keep it:

    >>> assigned(["1", "2", "2"], 3, ["1", "2"])
    ('1', '2', '2')
    """
    share, over = divmod(instances, len(live))
    kept: Counter[Executor] = Counter()
    homes: list[Executor | None] = []
    for home in [*before, *[None] * instances][:instances]:
        if home is None or home not in live or kept[home] > share or (kept[home] == share and not over):
            homes.append(None)
            continue
        over -= kept[home] == share
        kept[home] += 1
        homes.append(home)
    for at, home in enumerate(homes):
        if home is None:
            homes[at] = min(live, key=lambda each: kept[each])
            kept[homes[at] or ""] += 1
    return tuple(home for home in homes if home is not None)
