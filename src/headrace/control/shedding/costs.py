"""What the batches of a running query cost, learned from the last of them: the model that plans of drops are made with.

    seconds of a batch = fixed + scan * rows that came + hand-over * rows handed over + sum over places of (cost * rows kept there)

Rows are dropped in the plan of their source. So the scan is paid for every row, hand-over (caching for the branches) for rows that some
branch wants, and what comes behind a place only for the rows that it keeps.

Spark measures how long the tasks of each job ran, so each cost is found in the job where it arises, and no regression over whole batches
has to tell them apart:

    the job that scans and caches     = scan * rows that came + cache * rows handed over
    the job of an operator            = read * rows handed over + cost * rows kept for it      (if rows are cached)
    the one job that reads the source = scan * rows that came + cost * rows kept for it        (if they are not)

Each pair is fitted by least squares without negative values. Batches fade, one that took far longer than the others say counts less, and
where batches say nothing new, because they all keep the same share, the costs of the last fit stay.

The time of a batch is then fixed + pace * work, where work is the run time of tasks by the number of cores, and that of kernels by their
busiest instance. If jobs keep all cores busy, the pace is 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from headrace.ids import OperatorId
from headrace.state.drops import ShedId

SCAN = "scan"
"""The name of the job that reads the source and caches its rows."""
FADES = 0.9
"""A batch weighs this much less than the one after it."""
BATCHES_MAX = 40
COLD_S = 1.0
"""In the first batch after a start, tasks of a job run this much longer than later: code is compiled, and processes start."""
COLD_LEAST = 0.25
"""But this share of what they take is believed."""
FREE = 1e-12
"""Seconds that a row costs at least: if rows were free, nobody could say how many are too many."""
PRIOR = 0.3, 0.3
"""What is assumed, or was known before, of each of two costs weighs as much as this many batches."""
FIXED_S, PACE = 0.15, 1.0
"""What is assumed of the time around the tasks."""
ASSUMED_SCAN_S, ASSUMED_KEPT_S = 1e-6, 1e-5
"""Seconds of a core that a row is assumed to take where nothing is known: in the first batch of a query's first start."""
FIRST_SHARE = 0.3
"""The share of a job's time that is assumed to go into the rows before it, until drops tell."""
READ, READ_FIRM = 0.02, (20.0, 0.3)
"""Reading a cached row is assumed to cost this share of what it costs to process one, as firmly as so many batches could say."""
PACE_FIRM = 0.3, 5.0
"""How firmly the fixed cost and the pace of before are held."""
KERNELS_LAST = 12
"""What a row costs in a kernel is the median of so many batches."""
FAR, LATELY = 0.3, 5
"""Batches that differ by more than this share from what was known count less, unless most of the last so many do."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """Which jobs a batch has, as far as they read rows that may be dropped."""

    feeds: Mapping[str, tuple[ShedId, ...]]
    """By job: the places that its rows come through. Jobs are named by their last operator, or ``sink N``."""
    jobs: Mapping[OperatorId, str]
    """By operator: the job in which it runs."""
    cached: bool
    """True if a job of its own reads the source, and the others read what it has cached."""
    cores: int

    def through(self, operator: OperatorId) -> tuple[ShedId, ...]:
        """The places that the rows of an operator come through."""
        return self.feeds.get(self.jobs.get(operator, ""), ())


@dataclass(frozen=True)
class ShedBatch:
    """A batch, as far as the model needs to know it."""

    seconds: float
    """From its beginning to its end."""
    scanned: float
    """Rows that came from the sources."""
    handed: float
    """Rows that at least one branch wanted."""
    kept: Mapping[ShedId, float]
    tasks_s: Mapping[str, float]
    """By job: the run time of all its tasks."""
    busy_s: Mapping[OperatorId, float]
    """By operator: how long all its instances worked."""
    busiest_s: Mapping[OperatorId, float]
    """By operator: how long its busiest instance worked."""
    instances: Mapping[OperatorId, int]
    cold: bool = False
    """True for the first batch after a start."""


@dataclass(frozen=True)
class Costs:
    """What batches cost, in seconds."""

    fixed_s: float
    scan_s: float
    """Per row that comes."""
    handed_s: float
    """Per row that is handed over."""
    kept_s: Mapping[ShedId, float]
    """Per row that a place keeps."""
    pace: float = PACE
    """Seconds per second of work; the other costs per row contain it."""
    lines: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By job: the run time of its tasks per row before it, and per row kept for it."""

    def seconds(self, scanned: float, handed: float, kept: Mapping[ShedId, float]) -> float:
        """How long a batch takes."""
        behind = sum(self.kept_s.get(place, 0.0) * rows for place, rows in kept.items())
        return self.fixed_s + self.scan_s * scanned + self.handed_s * handed + behind

    def differs(self, other: Costs, share: float) -> bool:
        """True if a cost has changed by more than this share."""
        mine, theirs = ([c.fixed_s, c.scan_s + c.handed_s, *(c.kept_s.get(p, 0.0) for p in self.kept_s)] for c in (self, other))
        return any(abs(a - b) > share * max(a, b) for a, b in zip(mine, theirs, strict=True))

    def to_json(self) -> dict[str, object]:
        found = {"fixedS": self.fixed_s, "scanS": self.scan_s, "handedS": self.handed_s, "pace": self.pace}
        return {**found, "keptS": dict(self.kept_s), "jobs": {name: list(line) for name, line in self.lines.items()}}


def fitted(
    batches: Sequence[ShedBatch], shape: Shape, now: Mapping[OperatorId, int], before: Costs | None = None
) -> Costs | None:
    """The costs by which these batches, the newest at the end, are explained best; None if there are too few.

    ``now``: the present numbers of instances. Batches from before a rescale count as if their operators had had as many. ``before``: the
    costs that were found last, which are kept where the batches do not say otherwise.
    """
    found = [each for each in batches if each.scanned > 0 and each.tasks_s][-BATCHES_MAX:]
    known = [each for each in found if not each.cold] or found
    if not known:
        return None
    lines = {job: _line_of_job(job, known, shape, None if before is None else before.lines.get(job)) for job in _jobs(known, shape)}
    kernels = {op: _kernel_s(op, known, shape, now) for op in shape.jobs}
    fixed, pace = (FIXED_S, PACE) if before is None else (before.fixed_s, before.pace)
    if not known[-1].cold:
        work, seconds = (np.array([of(each) for each in known]) for of in (lambda b: _work_s(b, shape, now), lambda b: b.seconds))
        fixed, pace = _line(seconds, np.ones(len(known)), work, (fixed, pace), PACE_FIRM)
    return _costs(shape, list(known[-1].kept), lines, kernels, fixed, max(pace, 0.1))


def assumed(shape: Shape, places: Iterable[ShedId]) -> Costs:
    """The costs of a query of which nothing is known."""
    per_core = 1 / max(1, shape.cores)
    return Costs(FIXED_S, ASSUMED_SCAN_S * per_core, 0.0, dict.fromkeys(places, ASSUMED_KEPT_S * per_core))


def remembered(body: Mapping[str, Any], shape: Shape) -> Costs:
    """The costs that `Costs.to_json` has written. Raises ValueError if they are those of other jobs, and KeyError if some are missing."""
    lines = {str(name): (float(line[0]), float(line[1])) for name, line in body["jobs"].items()}
    if not set(lines) <= {SCAN, *shape.feeds}:
        raise ValueError(f"costs of {', '.join(lines)}, not of {', '.join(shape.feeds)}")
    kept = {ShedId(name): float(cost) for name, cost in body["keptS"].items()}
    return Costs(float(body["fixedS"]), float(body["scanS"]), float(body["handedS"]), kept, float(body["pace"]), lines)


def _costs(
    shape: Shape,
    places: Sequence[ShedId],
    lines: Mapping[str, tuple[float, float]],
    kernels: Mapping[OperatorId, float],
    fixed_s: float,
    pace: float,
) -> Costs:
    scan, handed = lines.get(SCAN, (0.0, 0.0))
    kept = dict.fromkeys(places, 0.0)
    for job, (ahead, behind) in lines.items():
        if job == SCAN:
            continue
        handed += ahead if shape.cached else 0.0
        scan += 0.0 if shape.cached else ahead
        kept |= {place: kept.get(place, 0.0) + behind for place in shape.feeds[job]}
    per_core = pace / max(1, shape.cores)
    found = {place: cost * per_core for place, cost in kept.items()}
    for op, cost in kernels.items():
        found |= {place: found.get(place, 0.0) + pace * cost for place in shape.through(op)}
    return Costs(fixed_s, scan * per_core, handed * per_core, {p: max(FREE, cost) for p, cost in found.items()}, pace, dict(lines))


def _jobs(batches: Sequence[ShedBatch], shape: Shape) -> list[str]:
    seen = dict.fromkeys(job for each in batches for job in each.tasks_s)
    return [job for job in seen if job in shape.feeds or job == SCAN]


def _line_of_job(job: str, batches: Sequence[ShedBatch], shape: Shape, before: tuple[float, float] | None) -> tuple[float, float]:
    """The run time of a job's tasks, without that of kernels, per row before it and per row kept for it."""
    known = [each for each in batches if job in each.tasks_s]
    took = np.array([_outside_kernels_s(job, each, shape) for each in known])
    if job == SCAN:
        ahead, behind = [each.scanned for each in known], [each.handed for each in known]
    else:
        ahead = [each.handed if shape.cached else each.scanned for each in known]
        behind = [sum(each.kept.get(place, 0.0) for place in shape.feeds[job]) for each in known]
    rows, kept = np.array(ahead), np.array(behind)
    total, reads_cache = float(took.sum()), shape.cached and job != SCAN
    if before is None:
        share = READ if reads_cache else FIRST_SHARE
        before = share * total / max(1.0, float(rows.sum())), (1 - share) * total / max(1.0, float(kept.sum()))
    if reads_cache and kept.any():
        # Nearly all rows that are handed over are kept for somebody, so the two are hard to tell apart.
        return _line(took, rows, kept, (READ * total / float(kept.sum()), before[1]), READ_FIRM)
    return _line(took, rows, kept, before)


def _outside_kernels_s(job: str, batch: ShedBatch, shape: Shape) -> float:
    took = batch.tasks_s[job]
    if batch.cold:
        took = max(took - COLD_S, COLD_LEAST * took)
    return max(0.0, took - sum(s for op, s in batch.busy_s.items() if shape.jobs.get(op) == job))


def _kernel_s(op: OperatorId, batches: Sequence[ShedBatch], shape: Shape, now: Mapping[OperatorId, int]) -> float:
    """How long the busiest instance of an operator works per row kept for it."""
    lately = batches[-KERNELS_LAST:]
    kept = np.array([sum(each.kept.get(place, 0.0) for place in shape.through(op)) for each in lately])
    busiest = np.array([_busiest_now(each, now).get(op, 0.0) for each in lately])
    many = kept >= max(1.0, float(kept.max()) / 4)
    return float(np.median(busiest[many] / kept[many])) if many.any() else 0.0


def _work_s(batch: ShedBatch, shape: Shape, now: Mapping[OperatorId, int]) -> float:
    """The run time of a batch's tasks by the number of cores, and that of its kernels by their busiest instance."""
    tasks = sum(_outside_kernels_s(job, batch, shape) for job in batch.tasks_s)
    # The seconds of the batch are those with as many instances as it had.
    had = {op: batch.instances.get(op, count) for op, count in now.items()}
    return tasks / max(1, shape.cores) + sum(_busiest_now(batch, had).values())


def _busiest_now(batch: ShedBatch, now: Mapping[OperatorId, int]) -> dict[OperatorId, float]:
    """How long the busiest instances would have worked with these numbers of instances."""
    return {op: s * batch.instances.get(op, 1) / max(1, now.get(op, batch.instances.get(op, 1))) for op, s in batch.busiest_s.items()}


def _line(took: Floats, one: Floats, other: Floats, before: tuple[float, float], firm: tuple[float, float] = PRIOR) -> tuple[float, float]:
    """The two factors, not negative, with which ``one`` and ``other`` explain ``took``, the newest at the end; near ``before`` if in doubt.

    ``firm``: as how many batches each of the factors before counts.

    >>> rows, kept = np.array([100.0] * 6), np.array([100.0, 20.0, 60.0] * 2)
    >>> [round(factor) for factor in _line(2 * rows + 5 * kept, rows, kept, (1.0, 6.0))]
    [2, 5]
    >>> [round(factor, 1) for factor in _line(7 * rows, rows, rows, (1.0, 6.0))]
    [1.0, 6.0]
    """
    rows, assumed = np.column_stack([one, other]), np.array(before)
    # How far each batch is from what was known before, apart from what the last ones have in common.
    ratios = took / np.maximum(rows @ assumed, 1e-9)
    far = np.abs(ratios / max(1e-9, float(np.median(ratios[-LATELY:]))) - 1)
    weights = FADES ** np.arange(len(took))[::-1] * np.minimum(1.0, FAR / np.maximum(far, 1e-9)) ** 2
    scale = np.sqrt(firm) * np.maximum(np.sqrt(np.average(rows**2, axis=0, weights=weights)), 1e-9)
    roots = np.sqrt(weights)
    found, _ = nnls(np.vstack([rows * roots[:, None], np.diag(scale)]), np.concatenate([took * roots, scale * assumed]))
    return float(found[0]), float(found[1])
