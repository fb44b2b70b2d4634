"""Simulated time: a heap of events, the earliest first. Events at the same moment run by rank, then in the order they were added.

The real clock is never read, so two runs with the same seed have the same events.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from headrace.errors import require

Action = Callable[[], None]


class SimulatedClock:
    """The current simulated time, and the events to come.

    >>> clock, heard = SimulatedClock(), []
    >>> clock.at(2.0, lambda: heard.append("second"))
    >>> clock.after(1.0, lambda: clock.after(0.5, lambda: heard.append("first")))
    >>> clock.run(until_s=3.0)
    >>> heard, clock.now_s
    (['first', 'second'], 3.0)
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, int, Action]] = []
        self._order = itertools.count()
        self._stopped = False

    def at(self, at_s: float, action: Action, rank: int = 0) -> None:
        """Run an action at this moment. Of several actions at one moment, a lower rank runs first."""
        require(at_s >= self.now_s, f"an event at {at_s:g} s lies ahead of {self.now_s:g} s")
        heapq.heappush(self._heap, (at_s, rank, next(self._order), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Run an action after a delay."""
        self.at(self.now_s + delay_s, action)

    def every(self, period_s: float, action: Action, rank: int = 0) -> None:
        """Run an action once every period. Moments are rounded, so that 500 times 0.1 s and 10 times 5 s are the same moment."""
        require(period_s > 0, f"a period is above 0, not {period_s:g}")
        start_s = self.now_s

        def again(turn: int) -> None:
            action()
            self.at(round(start_s + (turn + 1) * period_s, 9), lambda: again(turn + 1), rank)

        self.at(round(start_s + period_s, 9), lambda: again(1), rank)

    def run(self, until_s: float) -> None:
        """Run all events up to this moment, inclusive."""
        while self._heap and self._heap[0][0] <= until_s and not self._stopped:
            self.now_s, _, _, action = heapq.heappop(self._heap)
            self.events += 1
            action()
        self.now_s = self.now_s if self._stopped else max(self.now_s, until_s)

    def stop(self) -> None:
        """End the simulation now: `run` runs no further event."""
        self._stopped = True
