"""Compares rows in any order, and describes in a few lines how they differ.

Doubles are equal within rounding, as sums depend on the order of rows. NaN equals NaN. Everything else is compared exactly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LINES_MAX = 8
PAIRED_MAX = 200
"""For at most this many missing rows, a wrong row in their place is searched, among at most this many unexpected rows."""
RELATIVE, ABSOLUTE = 1e-9, 1e-9

Values = tuple[Any, ...]


def assert_same_rows(
    found: Iterable[Sequence[Any]],
    wanted: Iterable[Sequence[Any]],
    *,
    columns: Sequence[str] = (),
    keys: Sequence[str] = (),
    what: str = "the rows",
) -> None:
    """Raise an AssertionError unless ``found`` has the rows ``wanted``, each as often, in any order. Doubles may differ by rounding.

    - ``columns``: the names of the columns, for the message.
    - ``keys``: the columns that identify a row. Rows with equal keys are compared value by value; without keys, rows that begin alike.
    - ``what``: what the rows are, for the message.

    >>> assert_same_rows([("ada", 90), ("bob", 10)], [("bob", 10), ("ada", 90)])
    >>> assert_same_rows([("ada", 60), ("bob", 10), ("bob", 10)], [("ada", 90), ("bob", 10), ("cy", 5)], columns=["src", "total"])
    Traceback (most recent call last):
    ...
    AssertionError: the rows differ (3 rows, 3 wanted):
      wrong       src='ada', total=60: wanted total=90
      missing     src='cy', total=5
      doubled     src='bob', total=10: 2 times, wanted 1
    """
    mine, theirs = [tuple(row) for row in found], [tuple(row) for row in wanted]
    difference = compared(mine, theirs, [columns.index(key) for key in keys])
    if difference:
        lines = difference.lines(columns)
        shown = lines[:LINES_MAX] + ([f"and {len(lines) - LINES_MAX} more"] if len(lines) > LINES_MAX else [])
        text = "\n  ".join([f"{what} differ ({len(mine)} rows, {len(theirs)} wanted):", *shown])
        raise AssertionError(text)


@dataclass(frozen=True)
class Difference:
    """How rows differ from the wanted ones."""

    wrong: list[tuple[Values, Values]]
    """Pairs: a row that was found, and the row that was wanted instead."""
    missing: list[tuple[Values, int, int]]
    """A row, how often it was found, and how often it was wanted."""
    unexpected: list[Values]
    doubled: list[tuple[Values, int, int]]

    def __bool__(self) -> bool:
        return bool(self.wrong or self.missing or self.unexpected or self.doubled)

    def lines(self, columns: Sequence[str]) -> list[str]:
        """One line for each row that differs."""
        lines = []
        for mine, theirs in self.wrong:
            differing = [at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if not same(a, b)]
            lines.append(f"wrong       {shown(mine, columns)}: wanted {shown(theirs, columns, differing)}")
        lines += [f"missing     {shown(row, columns)}{_times(n, wanted) if wanted > 1 else ''}" for row, n, wanted in self.missing]
        lines += [f"unexpected  {shown(row, columns)}" for row in self.unexpected]
        lines += [f"doubled     {shown(row, columns)}{_times(n, wanted)}" for row, n, wanted in self.doubled]
        return lines


def _times(found: int, wanted: int) -> str:
    return f": {found} time{'' if found == 1 else 's'}, wanted {wanted}"


def shown(row: Values, columns: Sequence[str], only: Iterable[int] | None = None) -> str:
    """A row as text with the names of its columns. ``only`` selects columns."""
    names = columns if len(columns) == len(row) else [f"column {at}" for at in range(len(row))]
    return ", ".join(f"{names[at]}={row[at]!r}" for at in (range(len(row)) if only is None else only) if at < len(row))


def compared(found: Sequence[Values], wanted: Sequence[Values], keys: Sequence[int] = ()) -> Difference:
    """Compare rows. ``keys`` are the positions of the columns that identify a row."""
    mine, theirs = _Rows(found), _Rows(wanted)
    extra, lacking = mine.counts - theirs.counts, theirs.counts - mine.counts
    _cancel_rounded(extra, lacking)
    doubled, unexpected = [], []
    for key, times in extra.items():
        expected = theirs.like(key)
        if expected:
            # Some of these rows may differ by rounding only.
            doubled.append((mine.rows[key], expected + times, expected))
        else:
            unexpected += [mine.rows[key]] * times
    missing = [(theirs.rows[key], theirs.counts[key] - times, theirs.counts[key]) for key, times in lacking.items()]
    return _paired(unexpected, missing, doubled, keys)


class _Rows:
    """Rows that can be looked up and counted, exactly or within rounding."""

    def __init__(self, rows: Sequence[Values]) -> None:
        frozen = [(_frozen(row), row) for row in rows]
        self.counts = Counter(key for key, _ in frozen)
        self.rows = dict(reversed(frozen))
        self.by_skeleton: dict[Any, list[Any]] = defaultdict(list)
        for key in self.counts:
            self.by_skeleton[_skeleton(key)].append(key)

    def like(self, key: Any) -> int:
        """How often a row occurs, doubles within rounding."""
        return sum(self.counts[each] for each in self.by_skeleton.get(_skeleton(key), ()) if same(each, key))


def _cancel_rounded(extra: Counter[Any], lacking: Counter[Any]) -> None:
    """Remove from both the rows that differ by rounding only."""
    candidates: dict[Any, list[Any]] = defaultdict(list)
    for key in lacking:
        candidates[_skeleton(key)].append(key)
    for key in list(extra):
        for other in candidates.get(_skeleton(key), ()):
            if lacking[other] and same(key, other):
                both = min(extra[key], lacking[other])
                extra[key] -= both
                lacking[other] -= both
            if not extra[key]:
                break
    for counts in (extra, lacking):
        for key in [key for key, times in counts.items() if not times]:
            del counts[key]


def _paired(
    unexpected: list[Values], missing: list[tuple[Values, int, int]], doubled: list[tuple[Values, int, int]], keys: Sequence[int]
) -> Difference:
    """Find for each missing row the wrong row in its place: one with equal keys, or else the most similar one."""
    wrong, lacking, left = [], missing[PAIRED_MAX:], unexpected[:PAIRED_MAX]
    for row, times, expected in missing[:PAIRED_MAX]:
        best = max(left, key=lambda other: _alike(row, other, keys), default=None)
        if times or best is None or not _alike(row, best, keys):
            lacking.append((row, times, expected))
            continue
        left.remove(best)
        wrong.append((best, row))
    return Difference(wrong, lacking, left + unexpected[PAIRED_MAX:], doubled)


def _alike(row: Values, other: Values, keys: Sequence[int]) -> int:
    """With keys: 1 if they are equal. Without: the number of equal columns before the first that differs."""
    if len(row) != len(other):
        return 0
    if keys:
        return int(all(same(row[at], other[at]) for at in keys))
    return next((at for at, (a, b) in enumerate(zip(row, other, strict=True)) if not same(a, b)), len(row))


def same(a: Any, b: Any) -> bool:
    """True if two values are equal, doubles within rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=RELATIVE, abs_tol=ABSOLUTE) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _frozen(value: Any) -> Any:
    """A hashable form of a value. Equal values have equal forms."""
    if isinstance(value, tuple | list):
        return tuple(_frozen(each) for each in value)
    if isinstance(value, dict):
        return tuple(sorted(((_frozen(key), _frozen(each)) for key, each in value.items()), key=lambda pair: repr(pair[0])))
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, bool):
        return _Flag(value)
    if isinstance(value, float) and math.isnan(value):
        return _NAN
    return value


@dataclass(frozen=True)
class _Flag:
    """A boolean that differs from numbers; in Python, True == 1."""

    value: bool


_NAN = float("nan")
"""One object for all NaNs: a tuple takes an object as equal to itself."""


def _skeleton(frozen: Any) -> Any:
    """A value without its doubles."""
    if isinstance(frozen, float):
        return float
    if isinstance(frozen, tuple):
        return tuple(_skeleton(each) for each in frozen)
    return frozen
