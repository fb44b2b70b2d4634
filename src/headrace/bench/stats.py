"""Figures from batches: rates, medians, spread."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.bench.model import LaneResult


def percentile(values: Sequence[float], q: float) -> float | None:
    return round(float(np.percentile(values, q)), 3) if len(values) else None


def rate_total(result: LaneResult) -> float | None:
    """Rows per measured second. A turn is measured from the start of its first batch to the end of its last, gaps included."""
    measured_ms = result.measured_ms
    return round(sum(b.rows for b in result.batches) * 1000 / measured_ms, 1) if measured_ms else None


def rate_median(result: LaneResult) -> float | None:
    """The rows of a batch divided by the median duration of a batch."""
    median_ms = percentile([b.duration_ms for b in result.batches], 50)
    return round(result.lane.rows * 1000 / median_ms, 1) if median_ms else None


def periods_ms(result: LaneResult) -> list[float]:
    """The times from the start of a batch to the start of the next one in the same turn."""
    return [after.start_ms - before.start_ms for turn in result.turns for before, after in pairwise(turn)]


def ratio(above: float | None, below: float | None) -> float | None:
    return round(above / below, 3) if above and below else None


def summary(result: LaneResult) -> dict[str, Any]:
    """The part of the RESULT line about one lane."""
    durations = [b.duration_ms for b in result.batches]
    said: dict[str, Any] = {
        "rate": rate_total(result),
        "rate_median": rate_median(result),
        "batches": len(durations),
        "seconds": round(result.measured_ms / 1000, 3),
        "batch_ms": {name: percentile(durations, q) for name, q in (("median", 50), ("p10", 10), ("p90", 90), ("p99", 99))},
        "rates_by_turn": [rate_total(LaneResult(result.lane, [turn])) for turn in result.turns if turn],
        "equal": result.verdict.equal if result.verdict else None,
    }
    if result.verdict:
        said["digest"] = result.verdict.digest
        said["rows_checked"] = result.verdict.rows
        if not result.verdict.equal:
            said["expected"] = result.verdict.expected
            said["detail"] = result.verdict.detail
    if result.failed:
        said["failed"] = result.failed
    return said


def phase_medians(result: LaneResult) -> dict[str, float]:
    """Median milliseconds of each phase that Spark reports, over the measured batches."""
    names = {name for batch in result.batches for name in batch.phases_ms}
    return {name: percentile([b.phases_ms.get(name, 0.0) for b in result.batches], 50) or 0.0 for name in sorted(names)}
