"""Workloads: input rates over time, and the distribution of rows over slots. Both are plain functions of time.

| rate           | what                                                                                  |
| -------------- | ------------------------------------------------------------------------------------- |
| `constant`     | always the same                                                                        |
| `ramp`         | from one rate to another                                                               |
| `steps`        | rates that change at given moments                                                     |
| `linear_road`  | Linear Road's curve as SEEP used it                                                    |
| `bursts`       | a rate that is multiplied during bursts at random moments                              |
| `recorded`     | a recorded trace of (second, rows per second)                                          |

| keys           | what                                                                                  |
| -------------- | ------------------------------------------------------------------------------------- |
| `even`         | the same share for every slot                                                          |
| `normal`       | a normal distribution over the slots                                                   |
| `shifting`     | a normal one whose mean and deviation change over time (StreamCloud, Fig. 20)          |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.control.observation import Floats
from headrace.errors import QueryError
from headrace.ids import SLOTS

Rate = Callable[[float], float]
"""Rows per second at a moment."""

Keys = Callable[[float], Floats]
"""The share of all rows that falls into each slot at a moment. The shares sum up to 1."""


def constant(rows_per_s: float) -> Rate:
    return lambda at_s: rows_per_s


def ramp(first: float, last: float, duration_s: float, start_s: float = 0.0) -> Rate:
    """A rate that changes linearly from ``first`` to ``last``, and is constant before and after.

    >>> [ramp(100, 200, 10)(at_s) for at_s in (-1, 0, 5, 20)]
    [100.0, 100.0, 150.0, 200.0]
    """
    return lambda at_s: float(np.interp(at_s, [start_s, start_s + duration_s], [first, last]))


def steps(*levels: tuple[float, float]) -> Rate:
    """A step function: each level is (second, rate), and its rate holds from that second on.

    >>> [steps((0, 10), (5, 30))(at_s) for at_s in (0, 4.9, 5)]
    [10.0, 10.0, 30.0]
    """
    starts, rates = [level[0] for level in levels], [float(level[1]) for level in levels]
    return lambda at_s: rates[max(0, int(np.searchsorted(starts, at_s, side="right")) - 1)]


def linear_road(expressways: int, duration_s: float, first: float = 15.0, last: float = 1700.0, exponent: float = 1.0) -> Rate:
    """Linear Road's input: it grows from 15 to 1,700 rows per second and expressway.

    SEEP gives these two rates (6.1). For 350 expressways it gives 12,000 and 600,000, which is 34 and 1,714 per expressway. So both
    rates are parameters, and so is the exponent of the curve. SEEP's Fig. 6 is nearly a straight line.

    >>> [linear_road(350, 2000)(at_s) for at_s in (0, 1000, 2000)]
    [5250.0, 300125.0, 595000.0]
    """

    def rate(at_s: float) -> float:
        part: float = min(max(at_s / duration_s, 0.0), 1.0) ** exponent
        return expressways * (first + (last - first) * part)

    return rate


def bursts(base: Rate, seed: int, factor: float = 3.0, every_s: float = 60.0, length_s: float = 10.0, until_s: float = 86_400.0) -> Rate:
    """A rate that is ``factor`` times the base during bursts. They start by a Poisson process and have exponential lengths."""
    rng = np.random.default_rng(seed)
    count = int(until_s / every_s) + 10
    starts = np.cumsum(rng.exponential(every_s, count))
    ends = np.maximum.accumulate(starts + rng.exponential(length_s, count))

    def rate(at_s: float) -> float:
        begun = int(np.searchsorted(starts, at_s, side="right"))
        return base(at_s) * (factor if begun and at_s < ends[begun - 1] else 1.0)

    return rate


def recorded(at_s: Sequence[float], rows_per_s: Sequence[float]) -> Rate:
    """A recorded rate, linearly interpolated between its points.

    >>> recorded([0, 10], [100, 300])(5)
    200.0
    """
    if len(at_s) != len(rows_per_s) or len(at_s) < 1 or bool(np.any(np.diff(at_s) < 0)) or min(rows_per_s) < 0:
        found = f"{len(at_s)} moments and {len(rows_per_s)} rates"
        raise QueryError(where="recorded", wanted="as many ascending moments as rates, none negative", found=found)
    moments, rates = np.asarray(at_s, dtype=np.float64), np.asarray(rows_per_s, dtype=np.float64)
    return lambda at: float(np.interp(at, moments, rates))


EVEN = np.full(SLOTS, 1.0 / SLOTS)


def even(at_s: float) -> Floats:
    """The same share for every slot."""
    return EVEN


def normal(mean: float, deviation: float) -> Keys:
    """A normal distribution over the slots, truncated. Mean and deviation are fractions of the slot range: 0.5 is the middle."""
    weights = _normal(mean, deviation)
    return lambda at_s: weights


def shifting(means: Rate, deviations: Rate) -> Keys:
    """A normal distribution whose mean and deviation are functions of time.

    >>> bool(shifting(ramp(0.2, 0.8, 100), constant(0.1))(100).argmax() == round(0.8 * 4096 - 0.5))
    True
    """
    return lambda at_s: _normal(means(at_s), deviations(at_s))


def _normal(mean: float, deviation: float) -> Floats:
    places = (np.arange(SLOTS) + 0.5) / SLOTS
    weights = np.exp(-0.5 * ((places - mean) / deviation) ** 2) + 1e-12
    return np.asarray(weights / weights.sum())
