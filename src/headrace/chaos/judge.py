"""The judge: compares what a query delivered with Spark's batch answer, by what the query promises. A pure function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.testing.compare import Difference, compared

SHOWN = 5
SAMPLE = 100
"""Rows that are looked at for booleans; the rows of one side have equal types."""
Values = tuple[Any, ...]


class Expectation(StrEnum):
    """What must come out."""

    EQUAL = "equal"
    """Every row as often as in the answer."""
    AT_LEAST_ONCE = "at-least-once"
    """Every row at least as often as in the answer, and no other row."""
    COUNTED_GAP = "counted-gap"
    """Rows may be missing or lower, no more of them than the query has counted as lost. No row is there too often."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of one comparison, or of several of them together."""

    rows: int = 0
    """Rows of the answer."""
    lost: int = 0
    """Rows that are missing."""
    doubled: int = 0
    """Rows that are there too often."""
    wrong: int = 0
    """Rows with other values than the answer's, and rows that the answer does not have."""
    forgiven: int = 0
    """Differences that the expectation allows."""
    examples: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        return not (self.lost or self.doubled or self.wrong)

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.rows + other.rows,
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.wrong + other.wrong,
            self.forgiven + other.forgiven,
            (self.examples + other.examples)[:SHOWN],
        )

    def __str__(self) -> str:
        """
        >>> str(Verdict(rows=10)), str(Verdict(rows=10, lost=2, wrong=1))
        ('equal, 10 rows', '2 lost, 0 doubled, 1 wrong of 10 rows')
        """
        if self.right:
            return f"equal, {self.rows:,} rows" + (f" ({self.forgiven} differences are allowed)" if self.forgiven else "")
        return f"{self.lost} lost, {self.doubled} doubled, {self.wrong} wrong of {self.rows:,} rows"


def judge(
    found: Sequence[Values],
    wanted: Sequence[Values],
    expectation: Expectation = Expectation.EQUAL,
    *,
    counted: int = 0,
    what: str = "",
    columns: Sequence[str] = (),
    keys: Sequence[int] = (),
) -> Verdict:
    """Compare rows in any order; doubles within rounding.

    - ``counted``: for a counted gap, how many results the query's own count of lost rows allows to differ.
    - ``what``, ``columns``: the name of the rows and of their columns, for the examples.
    - ``keys``: positions of the columns that identify a row.

    >>> judge([("ada", 1), ("ada", 1)], [("ada", 1)]).doubled
    1
    >>> judge([("ada", 1), ("ada", 1)], [("ada", 1)], Expectation.AT_LEAST_ONCE).right
    True
    >>> judge([("ada", 1)], [("ada", 2)], Expectation.COUNTED_GAP, counted=1, keys=[0]).right
    True
    >>> judge([("ada", 1)], [("ada", 2)], Expectation.COUNTED_GAP, counted=0, keys=[0]).right
    False
    """
    if _are_surely_equal(found, wanted):
        return Verdict(len(wanted))
    difference = compared(found, wanted, keys)
    lost = sum(expected - times for _, times, expected in difference.missing)
    doubled = sum(times - expected for _, times, expected in difference.doubled)
    wrong = len(difference.wrong) + len(difference.unexpected)
    if not (lost or doubled or wrong):
        return Verdict(len(wanted))
    if expectation is Expectation.AT_LEAST_ONCE:
        examples = _examples(Difference(difference.wrong, difference.missing, difference.unexpected, []), what, columns)
        return Verdict(len(wanted), lost, 0, wrong, doubled, examples)
    if expectation is Expectation.COUNTED_GAP:
        # A result may lack rows; it may not have come out of nothing.
        lower = lost + len(difference.wrong)
        if lower <= counted:
            examples = _examples(Difference([], [], difference.unexpected, difference.doubled), what, columns)
            return Verdict(len(wanted), 0, doubled, len(difference.unexpected), lower, examples)
    return Verdict(len(wanted), lost, doubled, wrong, 0, _examples(difference, what, columns))


def _are_surely_equal(found: Sequence[Values], wanted: Sequence[Values]) -> bool:
    """True if the rows are equal value by value, which is found much sooner than a difference. False does not say that they differ.

    >>> _are_surely_equal([(1, "a"), (2, "b")], [(2, "b"), (1, "a")]), _are_surely_equal([(1,)], [(True,)])
    (True, False)
    """
    if len(found) != len(wanted) or any(isinstance(value, bool) for row in (*found[:SAMPLE], *wanted[:SAMPLE]) for value in row):
        # In Python, True equals 1.
        return False
    try:
        return Counter(found) == Counter(wanted)
    except TypeError:
        # Lists cannot be counted.
        return False


def _examples(difference: Difference, what: str, columns: Sequence[str]) -> tuple[str, ...]:
    lines = difference.lines(columns)[:SHOWN]
    return tuple(f"{what}: {' '.join(line.split(maxsplit=1))}" if what else line for line in lines)
