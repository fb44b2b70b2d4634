"""Time windows and their panes.

Windows are half-open, [start, start + size), and start at every multiple of the advance (plus an offset), as Spark's do. A row is kept
once, in its *pane*: the time between two neighbouring window edges. Each advance has at most two window edges, at its beginning and at
``size mod advance``. So there are at most two panes per advance, however many windows overlap:

    advance   |----------|----------|----------|
    window    [============================)             size = 2 advances and a bit
    panes     |---|------|---|------|---|------|

All times are microseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.state.layout import Indices

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1000), ("us", 1))


def duration(us: int) -> str:
    """A duration as text, in the largest unit that leaves no remainder."""
    unit, length = next((unit, length) for unit, length in _UNITS if us % length == 0)
    return f"{us // length} {unit}"


@dataclass(frozen=True)
class TimeWindow:
    """A tumbling (advance = size) or sliding window. Size 0 means grouping by the event time itself."""

    size_us: int
    advance_us: int
    offset_us: int = 0

    def __str__(self) -> str:
        """The window as text, for people.

        >>> str(TimeWindow(3_600_000_000, 60_000_000))
        '1 h every 1 min'
        >>> str(TimeWindow(50_000_000, 50_000_000, offset_us=1_500_000))
        '50 s from 1500 ms'
        """
        if self.is_instant:
            return "the event time itself"
        every = "" if self.size_us == self.advance_us else f" every {duration(self.advance_us)}"
        return duration(self.size_us) + every + (f" from {duration(self.offset_us)}" if self.offset_us else "")

    @property
    def is_instant(self) -> bool:
        return self.size_us == 0

    @property
    def one_pane_each(self) -> bool:
        """True if every window is a single pane, so that nothing has to be combined when it closes."""
        return self.is_instant or self.size_us == self.advance_us

    @property
    def remainder_us(self) -> int:
        return 0 if self.is_instant else self.size_us % self.advance_us

    def last_start(self, pane: Indices) -> Indices:
        """The start of the last window that contains the pane."""
        if self.is_instant:
            return pane
        return pane - (pane - self.offset_us) % self.advance_us

    def first_start(self, pane: Indices) -> Indices:
        """The start of the first window that contains the pane."""
        if self.is_instant:
            return pane
        base = self.last_start(pane)
        whole = self.size_us - self.remainder_us
        if self.remainder_us == 0:
            return base - whole + self.advance_us
        return np.where(pane - base < self.remainder_us, base - whole, base - whole + self.advance_us)

    def last_end(self, pane: Indices) -> Indices:
        """The end of the last window that contains the pane."""
        return self.last_start(pane) + self.size_us

    def live_from(self, watermark_us: int) -> int:
        """The first pane that still belongs to an open window. A window is closed if its end <= watermark.

        >>> TimeWindow(size_us=60, advance_us=10).live_from(100)
        50
        >>> TimeWindow(size_us=0, advance_us=1).live_from(100)
        101
        """
        over = watermark_us - self.size_us
        if self.is_instant:
            return over + 1
        return over - (over - self.offset_us) % self.advance_us + self.advance_us

    def starts_over(self, panes: Indices, after_us: int | None, until_us: int | None) -> Indices:
        """The starts of windows that contain any of the panes and end in (after, until]. None means no bound.

        >>> TimeWindow(size_us=6, advance_us=2).starts_over(np.array([4]), after_us=None, until_us=8).tolist()
        [0, 2]
        """
        if not len(panes):
            return panes
        panes = np.unique(panes)
        first, last = self.first_start(panes), self.last_start(panes)
        if after_us is not None:
            first = np.maximum(first, self._start_at_or_after(after_us + 1 - self.size_us))
        if until_us is not None:
            last = np.minimum(last, self._start_at_or_before(until_us - self.size_us))
        step = self.advance_us
        count = np.maximum((last - first) // step + 1, 0)
        ahead = np.concatenate([[0], np.cumsum(count)[:-1]])
        within = np.arange(int(count.sum())) - np.repeat(ahead, count)
        return np.unique(np.repeat(first, count) + within * step)

    def starts_between(self, pane_min: int, pane_max: int, after_us: int, until_us: int) -> Indices:
        """The starts of windows that contain panes from `pane_min` to `pane_max` and end in (after, until]."""
        first, last = self._bounds(pane_min, pane_max, after_us, until_us)
        return np.arange(first, last + 1, self.advance_us, dtype=np.int64)

    def any_over(self, pane_min: int, pane_max: int, after_us: int, until_us: int) -> bool:
        """True if a window that contains panes from `pane_min` to `pane_max` ends in (after, until]."""
        first, last = self._bounds(pane_min, pane_max, after_us, until_us)
        return first <= last

    def count_over(self, pane_min: int, pane_max: int, after_us: int, until_us: int) -> int:
        """The greatest number of windows that contain one pane from `pane_min` to `pane_max` and end in (after, until].

        >>> TimeWindow(size_us=60, advance_us=10).count_over(0, 1000, after_us=100, until_us=130)
        3
        >>> TimeWindow(size_us=60, advance_us=10).count_over(0, 1000, after_us=100, until_us=900)
        6
        """
        first, last = self._bounds(pane_min, pane_max, after_us, until_us)
        per_pane = 1 if self.one_pane_each else -(-self.size_us // self.advance_us)
        return max(0, min((last - first) // self.advance_us + 1, per_pane))

    def _bounds(self, pane_min: int, pane_max: int, after_us: int, until_us: int) -> tuple[int, int]:
        """The first and the last start of these windows."""
        first = int(self.first_start(np.array([pane_min]))[0])
        last = int(self.last_start(np.array([pane_max]))[0])
        first = max(first, self._start_at_or_after(after_us + 1 - self.size_us))
        return first, min(last, self._start_at_or_before(until_us - self.size_us))

    def _start_at_or_before(self, time_us: int) -> int:
        return time_us - (time_us - self.offset_us) % self.advance_us

    def _start_at_or_after(self, time_us: int) -> int:
        return self._start_at_or_before(time_us + self.advance_us - 1)
