"""Points of a query's history as columns, for charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.runtime.history_files import Line, grouped

POINTS_MAX = 1_000
"""A chart gets at most about so many points. More of them are joined, so that peaks stay."""
PLAIN = ("t", "v", "n", "ms", "lat", "latMin", "ev", "wait", "share", "busy", "late", "fetched")
OF_OPERATOR = ("instances", "rowsIn", "rowsOut", "mean", "max", "rows", "bytes")
GAP_S_MIN, GAP_TIMES = 60.0, 20.0
"""So much time without a batch, and so many times the time of a batch, is drawn as a gap."""


def series(points: Sequence[Line], since_s: float = 0.0, most: int = POINTS_MAX) -> dict[str, Any]:
    """Columns of the points since a moment, and of one before it, so that the first has a rate."""
    first = next((at for at, each in enumerate(points) if each["t"] > since_s), len(points))
    chosen = list(_with_gaps(grouped(points[max(0, first - 1) :], most)))
    rates, after = _rates(chosen), chosen[1:] if first > 0 else chosen
    kept = rates[1:] if first > 0 else rates
    names = list(dict.fromkeys(name for each in after for name in each.get("ops", {})))
    return {
        **{name: [each.get(name) for each in after] for name in PLAIN},
        "rate": [each[0] for each in kept],
        "rateOut": [each[1] for each in kept],
        "span": [each[2] for each in kept],
        "operators": {name: _operator(after, kept, name) for name in names},
    }


Rate = tuple[float | None, float | None, float | None]


def _with_gaps(points: Sequence[Line]) -> Iterator[Line]:
    """The points. Where the query did not run, or had nothing to do, a point that has only a time interrupts charts."""
    before: Line | None = None
    for each in points:
        if before is not None and _is_gap(before["t"], each):
            yield {"t": before["t"] + 1e-3}
        yield each
        before = each


def _is_gap(before_s: float, point: Line) -> bool:
    return bool(point["t"] - before_s > max(GAP_S_MIN, GAP_TIMES * (point["t"] - point["b"])))


def _rates(points: Sequence[Line]) -> list[Rate]:
    """By point: rows per second in and out, and the seconds for which they stand."""
    found: list[Rate] = []
    before = None
    for each in points:
        if "b" not in each:
            found.append((None, None, None))
            continue
        span = each["t"] - each["b"] if before is None or _is_gap(before, each) else each["t"] - before
        span = max(span, 1e-3)
        found.append((round(each["rows"] / span, 2), round(each["out"] / span, 2), round(span, 3)))
        before = each["t"]
    return found


def _operator(points: Sequence[Line], rates: Sequence[Rate], name: str) -> dict[str, list[Any]]:
    rows = [each.get("ops", {}).get(name) or [None] * len(OF_OPERATOR) for each in points]
    columns: dict[str, list[Any]] = {column: [row[at] for row in rows] for at, column in enumerate(OF_OPERATOR)}
    for column in ("rowsIn", "rowsOut"):
        # A joined point has the rows of its last batch only, so the rate is that of one batch.
        spans = [(rate[2] or 1.0) / max(1, point.get("n", 1)) for rate, point in zip(rates, points, strict=True)]
        columns[column] = [None if rows is None else round(rows / span, 2) for rows, span in zip(columns[column], spans, strict=True)]
    return columns
