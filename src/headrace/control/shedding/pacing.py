"""How long a batch may take, so that rows keep their deadline.

    Spark looks for rows    looks again              looks again
    |-- batch n - 1 --------|-- batch n --------------|
        ^ a row comes, waits,   and is in this batch  ^ its results are delivered

A row waits for the end of the batch that runs when it comes, and then for its own. If both take half of the deadline, the oldest row just
keeps it. So a batch may take half of the deadline, and less if the batch before has taken longer: how old the rows are by now is known.

Predictions err, so batches are planned for less: by the mean error of the last ones, and one standard deviation. What Spark's measured ages
say in the end counts most: if the 95th percentile of a batch's rows was too old, batches are planned shorter from then on.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

ERRORS_KEPT = 12
ERROR_ASSUMED = 0.15
"""The standard deviation of predictions that is assumed before there are some."""
ASSUMED_UNTIL = 6
SHORT = 0.2
"""Batches that should take less than this share of their time say nothing about those of an overload."""
MARGIN_MAX = 2.0
OLDEST = 0.05
"""This share of the rows may be older than the deadline."""
AIM = 0.97
"""Rows should not be older than this share of the deadline."""
SLOWER, FASTER, SHORTEST = 0.95, 1.01, 0.6
"""By what batches are planned shorter after rows that were too old, and longer after others; and the least share of their time."""
LEAST = 0.05
"""A batch is planned for at least this share of the deadline. Without any rows it would take as long."""
BEFORE_S = 0.3
"""After a pause, Spark has looked for rows at most this long before it hands over a batch."""


@dataclass
class Pacing:
    """Says how long the next batch may take, and learns from how long batches took."""

    deadline_s: float
    whole_s: float
    """How long a batch may take if all batches take as long: half of the deadline, or what the trigger leaves."""
    waits: bool = False
    """True if Spark waits for a trigger between two batches."""
    share: float = 1.0
    """Batches are planned for this share of their time."""
    _looked_s: float | None = None
    """When Spark looked for the rows of the last batch. Those of the next one came after that."""
    _ended_s: float = 0.0
    _errors: deque[float] = field(default_factory=lambda: deque(maxlen=ERRORS_KEPT))

    def margin(self) -> float:
        """How many times as long as predicted a batch may take.

        >>> pacing = Pacing(4.0, 2.0)
        >>> round(pacing.margin(), 2)
        1.15
        >>> for took_s in (1.1, 1.0, 1.2) * 4:
        ...     pacing.judge(took_s, 1.0)
        >>> round(pacing.margin(), 2)
        1.18
        """
        assumed = [ERROR_ASSUMED, -ERROR_ASSUMED] * max(0, ASSUMED_UNTIL - len(self._errors))
        errors = np.array([*self._errors, *assumed])
        return float(min(MARGIN_MAX, max(1.0, 1.0 + errors.mean() + errors.std())))

    def budget_s(self, now_s: float) -> float:
        """How long the batch that begins now should take by the model.

        >>> pacing = Pacing(4.0, 2.0)
        >>> round(pacing.budget_s(100.0), 2)
        1.69
        >>> pacing.ended(100.0, 103.0)
        >>> round(pacing.budget_s(103.1), 2)
        0.81
        """
        looked = self._looked(now_s)
        since = looked if self._looked_s is None else self._looked_s
        age_s = now_s - since - OLDEST * (looked - since)
        left_s = min(AIM * self.deadline_s - age_s, AIM * self.whole_s * self.share - (now_s - looked))
        return max(LEAST * self.deadline_s, left_s / self.margin())

    def ended(self, begin_s: float, end_s: float) -> None:
        """A batch has ended."""
        looked = self._looked(begin_s)
        if self._looked_s is not None:
            oldest_s = end_s - self._looked_s - OLDEST * (looked - self._looked_s)
            self.share = max(SHORTEST, self.share * SLOWER) if oldest_s > self.deadline_s else min(1.0, self.share * FASTER)
        self._looked_s, self._ended_s = looked, end_s

    def judge(self, took_s: float, expected_s: float) -> None:
        """A batch took so long, and this was expected; 0 if nothing was."""
        if expected_s > SHORT * self.whole_s:
            self._errors.append(min(MARGIN_MAX, took_s / expected_s) - 1)

    def _looked(self, begin_s: float) -> float:
        """When Spark looked for the rows of a batch that begins at this moment: when the last one had ended, or just before."""
        if self._looked_s is None:
            return begin_s
        return begin_s - BEFORE_S / 3 if self.waits else max(self._ended_s, begin_s - BEFORE_S)
