"""Checks of policies' settings. A mistake is reported where the settings are built."""

from __future__ import annotations

import itertools
import math

from headrace.errors import QueryError


def between(where: str, name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a setting outside of [low, high].

    >>> between("pool", "ready_min", 2, 0)
    >>> between("bottleneck", "threshold", 70, 0, 1)
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: bottleneck: wanted threshold in [0, 1]; found 70
    """
    if not low <= value <= high:
        wanted = f"{name} of at least {low:g}" if math.isinf(high) else f"{name} in [{low:g}, {high:g}]"
        raise QueryError(where=where, wanted=wanted, found=f"{value:g}")


def ascending(where: str, **values: float) -> None:
    """Refuse settings that are not in ascending order.

    >>> ascending("elastic manager", lower=0.5, target=0.4)
    Traceback (most recent call last):
    ...
    headrace.errors.QueryError: elastic manager: wanted lower <= target; found 0.5, 0.4
    """
    each = list(values.values())
    if any(not a <= b for a, b in itertools.pairwise(each)):
        raise QueryError(where=where, wanted=" <= ".join(values), found=", ".join(f"{value:g}" for value in each))
