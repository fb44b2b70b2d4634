"""The history of segment statistics, from which travel times are computed.

Linear Road takes it from a file of past weeks, which is not available. Ours is a formula, so that everyone has the same: a mean speed and
a mean toll for each day of the week, hour of the day, direction and segment. A journey from Sinit to Send covers all segments between,
both included, eastward (direction 0) if Send is not before Sinit. It uses the statistics of the hour in which it begins. Its time is the
sum of the segments' times in seconds, truncated at the end; its toll is the sum of the segments' tolls.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SEGMENTS = 100
SEGMENT_MILES = 1.0
_MIX = (7, 24, 2, SEGMENTS)


def speed_mph(dow: int, hour: int, direction: int, seg: int) -> int:
    """The mean speed, 25 to 64."""
    return 25 + (dow * 31 + hour * 17 + direction * 7 + seg * 13) % 40


def toll(dow: int, hour: int, direction: int, seg: int) -> int:
    """The mean toll, 0 to 29; 0 at night."""
    return 0 if hour < 6 else (dow * 11 + hour * 5 + direction * 3 + seg * 29) % 30


def journey(sinit: int, send: int, dow: int, tod: int) -> tuple[int, int]:
    """The seconds and the toll of a journey.

    >>> journey(3, 3, dow=1, tod=1)
    (65, 0)
    >>> journey(0, 9, dow=2, tod=480), journey(9, 0, dow=2, tod=480)
    ((858, 225), (902, 225))
    """
    hour, direction = (tod - 1) // 60, 0 if send >= sinit else 1
    segs = range(min(sinit, send), max(sinit, send) + 1)
    seconds = sum(3600 * SEGMENT_MILES / speed_mph(dow, hour, direction, seg) for seg in segs)
    return int(seconds), sum(toll(dow, hour, direction, seg) for seg in segs)


def totals() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Cumulative seconds and tolls from segment 0 on, by day of the week, hour, direction and segment. A journey is a difference."""
    dow, hour, direction, seg = np.meshgrid(*(np.arange(n) for n in _MIX), indexing="ij")
    speeds = 25 + ((dow + 1) * 31 + hour * 17 + direction * 7 + seg * 13) % 40
    tolls = np.where(hour < 6, 0, ((dow + 1) * 11 + hour * 5 + direction * 3 + seg * 29) % 30)
    seconds = np.cumsum(3600 * SEGMENT_MILES / speeds, axis=-1)
    return _from_zero(seconds), _from_zero(np.cumsum(tolls, axis=-1)).astype(np.int64)


def _from_zero(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.concatenate([np.zeros((*sums.shape[:-1], 1)), sums], axis=-1)
