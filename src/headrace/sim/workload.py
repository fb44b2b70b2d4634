"""What comes in: rates over time, and how keys lie on the slots. Plain functions of time, so that a workload is a value.

| rate           | what                                                                                  |
| -------------- | ------------------------------------------------------------------------------------- |
| `constant`     | always the same                                                                        |
| `ramp`         | from one rate to another                                                               |
| `steps`        | other rates from given moments on                                                      |
| `linear_road`  | Linear Road's curve as SEEP used it                                                    |
| `bursts`       | now and then so many times as much, at seeded moments                                  |
| `recorded`     | a trace of (second, rows per second)                                                   |

| keys           | what                                                                                  |
| -------------- | ------------------------------------------------------------------------------------- |
| `even`         | every slot the same                                                                    |
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
"""The part of all rows that falls into each slot at a moment; they sum up to 1."""


def constant(rows_per_s: float) -> Rate:
    return lambda at_s: rows_per_s


def ramp(first: float, last: float, duration_s: float, start_s: float = 0.0) -> Rate:
    """A straight line, level before and after.

    >>> [ramp(100, 200, 10)(at_s) for at_s in (-1, 0, 5, 20)]
    [100.0, 100.0, 150.0, 200.0]
    """
    return lambda at_s: float(np.interp(at_s, [start_s, start_s + duration_s], [first, last]))


def steps(*levels: tuple[float, float]) -> Rate:
    """Each rate from its moment on.

    >>> [steps((0, 10), (5, 30))(at_s) for at_s in (0, 4.9, 5)]
    [10.0, 10.0, 30.0]
    """
    starts, rates = [level[0] for level in levels], [float(level[1]) for level in levels]
    return lambda at_s: rates[max(0, int(np.searchsorted(starts, at_s, side="right")) - 1)]


def linear_road(expressways: int, duration_s: float, first: float = 15.0, last: float = 1700.0, exponent: float = 1.0) -> Rate:
    """Linear Road's input: from 15 to 1,700 rows a second and expressway.

    SEEP gives the two ends (6.1) and, for 350 expressways, other ones: 12,000 and 600,000, that is 34 and 1,714. So ends and
    shape are parameters; its Fig. 6 shows a line that is nearly straight.

    >>> [linear_road(350, 2000)(at_s) for at_s in (0, 1000, 2000)]
    [5250.0, 300125.0, 595000.0]
    """

    def rate(at_s: float) -> float:
        part: float = min(max(at_s / duration_s, 0.0), 1.0) ** exponent
        return expressways * (first + (last - first) * part)

    return rate


def bursts(base: Rate, seed: int, factor: float = 3.0, every_s: float = 60.0, length_s: float = 10.0, until_s: float = 86_400.0) -> Rate:
    """Now and then ``factor`` times as much: moments by a Poisson process, lengths exponential."""
    rng = np.random.default_rng(seed)
    count = int(until_s / every_s) + 10
    starts = np.cumsum(rng.exponential(every_s, count))
    ends = np.maximum.accumulate(starts + rng.exponential(length_s, count))

    def rate(at_s: float) -> float:
        begun = int(np.searchsorted(starts, at_s, side="right"))
        return base(at_s) * (factor if begun and at_s < ends[begun - 1] else 1.0)

    return rate


def recorded(at_s: Sequence[float], rows_per_s: Sequence[float]) -> Rate:
    """A trace, straight lines between its points.

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
    return EVEN


def normal(mean: float, deviation: float) -> Keys:
    """A normal distribution; mean and deviation are parts of the key space, and its ends are cut off."""
    weights = _normal(mean, deviation)
    return lambda at_s: weights


def shifting(means: Rate, deviations: Rate) -> Keys:
    """A normal distribution that moves and widens.

    >>> bool(shifting(ramp(0.2, 0.8, 100), constant(0.1))(100).argmax() == round(0.8 * 4096 - 0.5))
    True
    """
    return lambda at_s: _normal(means(at_s), deviations(at_s))


def _normal(mean: float, deviation: float) -> Floats:
    places = (np.arange(SLOTS) + 0.5) / SLOTS
    weights = np.exp(-0.5 * ((places - mean) / deviation) ** 2) + 1e-12
    return np.asarray(weights / weights.sum())
