"""The figures of a cell, computed from its batches."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.word_frequency.cell import Batch, Cell, Outcome

CHECKPOINT_PHASES = ("instance/write", "commit")
"""The phases in which Headrace writes a version: the run with the changed counts, the staged results, the manifest."""


@dataclass(frozen=True)
class Seen:
    """A cell and its figures."""

    cell: Cell
    fragments_s: float
    """Fragments delivered per second of the measured time."""
    words_s: float
    batches: int
    batch_ms: float
    """The median of batches after the head."""
    latency_ms: dict[str, float] = field(default_factory=dict)
    """p50, p95, p99 and maximum; empty in a closed loop."""
    behind_s: float = 0.0
    """The time from the offer of the last fragment to its delivery."""
    checkpoint_ms: float | None = None
    """Headrace only: the median time of ``CHECKPOINT_PHASES`` in a batch."""
    delta_bytes: float | None = None
    """What a batch adds to the state in the checkpoint."""
    delta_share: float | None = None
    """Headrace only: the median share of counts that a batch changed."""
    recovery_s: float | None = None
    overran: bool = False
    """True if fragments were outstanding when the time was up. Their latency is not in the figures."""
    wrong: str = ""


def summarise(outcome: Outcome, wrong: str, words_per_fragment: float, checkpoint: Path) -> Seen:
    cell = outcome.cell
    behind_head = [batch for batch in outcome.batches if batch.begin >= cell.head]
    usual = [batch for batch in behind_head if outcome.failed_s is None or batch.at_s <= outcome.failed_s]
    took_ms = latencies_s(cell, usual, outcome.fired_s) * 1000 if cell.rate else np.array([])
    fragments_s = _rate(usual, outcome.fired_s + cell.settle_s)
    names = {"p50": 50, "p95": 95, "p99": 99, "max": 100}
    costs = [sum(phases.get(name, 0.0) for name in CHECKPOINT_PHASES) for phases in outcome.phases_ms[1:]]
    shares = [keys / cell.words for keys in outcome.keys_touched[1:]]
    last = usual[-1] if usual else None
    return Seen(
        cell,
        fragments_s,
        fragments_s * words_per_fragment,
        len(usual),
        median([batch.duration_ms for batch in usual if batch.duration_ms] or [0.0]),
        {name: float(np.percentile(took_ms, q)) for name, q in names.items()} if len(took_ms) else {},
        last.at_s - outcome.fired_s - (last.end - cell.head) / cell.rate if last and cell.rate else 0.0,
        median(costs) if costs else None,
        written_bytes(checkpoint, outcome.fired_s, len(behind_head)),
        median(shares) if shares else None,
        outcome.recovery_s,
        outcome.overran,
        wrong,
    )


def latencies_s(cell: Cell, batches: list[Batch], fired_s: float) -> np.ndarray:
    """The latency of each fragment that was created after the query had settled."""
    first = cell.head + int(cell.settle_s * cell.rate)
    found = []
    for batch in batches:
        numbers = np.arange(max(batch.begin, first), batch.end)
        found.append(batch.at_s - (fired_s + (numbers - cell.head) / cell.rate))
    return np.concatenate(found) if found else np.array([])


def _rate(batches: list[Batch], settled_s: float) -> float:
    """Fragments per second between the first delivery after the query had settled and the last."""
    counted = [batch for batch in batches if batch.at_s >= settled_s]
    if len(counted) < 2 or counted[-1].at_s <= counted[0].at_s:
        return 0.0
    return sum(batch.end - batch.begin for batch in counted[1:]) / (counted[-1].at_s - counted[0].at_s)


def written_bytes(checkpoint: Path, fired_s: float, batches: int) -> float | None:
    """The bytes that a batch adds to the state in the checkpoint, on average.

    Headrace: the runs of the versions that are kept, without merged runs, which repeat earlier content. Spark: all files since the
    gun, divided by the number of batches; they are merged and repeat content as well.
    """
    runs: dict[str, int] = defaultdict(int)
    for path in checkpoint.glob("headrace/runs/*-run.arrow"):
        runs[path.name.partition("-")[0]] += path.stat().st_size
    later = [size for _, size in sorted(runs.items())[1:]]
    if later:
        return float(median(later))
    files = [path.stat() for path in checkpoint.glob("state/**/*") if path.is_file()]
    theirs = sum(file.st_size for file in files if file.st_mtime >= fired_s)
    return theirs / batches if theirs and batches else None
