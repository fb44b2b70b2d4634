"""What the batches of a running query cost, fitted to the last of them: the model that plans of drops are made with.

    seconds of a batch = fixed + scan * rows that came + sum over places of (cost of a kept row * rows kept there)

A place is a call of ``hr.shed``. Rows are dropped after Spark has scanned them and handed them over, so the scan is paid for every row,
and what comes behind a place only for rows that it keeps. The kernels report how long they worked. How the rest divides into scan and
combine, and among the places, can only be told apart once something has been dropped; until then it is assumed to be half and half.
What was learned stays while batches say nothing new: each fit begins with the costs of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from headrace.control.critical_path import fixed_s
from headrace.ids import OperatorId
from headrace.state.drops import ShedId

FADES = 0.9
"""A batch weighs this much less than the one after it."""
COLD = 4.0
"""In the first batch after a start, kernels take this many times as long as later: processes start, and modules are imported."""
FREE = 1e-12
"""Seconds that a row costs at least."""
PRIOR = 1.5
"""The assumed costs weigh as much as this many batches."""


@dataclass(frozen=True)
class ShedBatch:
    """A batch, as far as the model needs to know it."""

    seconds: float
    """From its beginning to its end, and on to the next batch, if that followed at once."""
    work_s: float
    """The part that jobs and delivery took."""
    scanned: float
    """Rows that came from the sources."""
    arrived: Mapping[ShedId, float]
    kept: Mapping[ShedId, float]
    busiest_s: Mapping[OperatorId, float]
    """By operator: how long its busiest instance worked."""
    instances: Mapping[OperatorId, int]
    cold: bool = False
    """True for the first batch after a start, in which code is compiled. Only the time of its kernels says something about later ones."""


@dataclass(frozen=True)
class Costs:
    """What batches cost, in seconds."""

    fixed_s: float
    scan_s: float
    """Per row that comes."""
    kept_s: Mapping[ShedId, float]
    """Per row that a place keeps."""

    def seconds(self, scanned: float, kept: Mapping[ShedId, float]) -> float:
        """How long a batch takes."""
        return self.fixed_s + self.scan_s * scanned + sum(self.kept_s.get(place, 0.0) * rows for place, rows in kept.items())

    def differs(self, other: Costs, share: float) -> bool:
        """True if a cost has changed by more than this share."""
        mine, theirs = ([self.fixed_s, self.scan_s, *(each.kept_s[p] for p in self.kept_s)] for each in (self, other))
        return any(abs(a - b) > share * max(a, b) for a, b in zip(mine, theirs, strict=True))


def fitted(
    batches: Sequence[ShedBatch],
    reads: Mapping[OperatorId, Sequence[ShedId]],
    now: Mapping[OperatorId, int],
    before: Costs | None = None,
) -> Costs | None:
    """The costs by which these batches, the newest at the end, are explained best; None if there are too few.

    `reads`: the places that each operator gets rows from, directly or through others. `now`: its present number of instances. Batches from
    before a rescale count as if their operators had had as many. `before`: the costs that were found with the same instances one batch ago.
    They are kept where the batches do not say otherwise.
    """
    with_rows = [each for each in batches if each.scanned > 0]
    if not with_rows:
        return None
    places = list(with_rows[-1].arrived)
    known = [each for each in with_rows if not each.cold]
    busiest = [_busiest_now(each, now) for each in known or with_rows]
    if not known:
        # About the least that rows will cost. It is enough to know if there are many times too many.
        return Costs(0.0, 0.0, {place: _kernels_s(with_rows, busiest, place, reads) / COLD for place in places})
    seconds = np.array([each.seconds + sum(b.values()) - sum(each.busiest_s.values()) for each, b in zip(known, busiest, strict=True)])
    rows = np.array([[1.0, each.scanned, *(each.kept.get(place, 0.0) for place in places)] for each in known])
    if before is not None and (before.fixed_s or before.scan_s) and before.kept_s.keys() == set(places):
        prior = np.array([before.fixed_s, before.scan_s, *(before.kept_s[place] for place in places)])
    else:
        prior = _prior(known, busiest, places, reads)
    weights = np.sqrt(FADES ** np.arange(len(known))[::-1]) / np.maximum(seconds, 1e-3)
    scale = np.average(rows, axis=0, weights=weights) / float(np.average(seconds, weights=weights))
    scale = np.maximum(scale, 1e-9) * np.sqrt(PRIOR)
    matrix = np.vstack([rows * weights[:, None], np.diag(scale)])
    found, _ = nnls(matrix, np.concatenate([seconds * weights, scale * prior]))
    # No row is free, or nobody could say how many are too many.
    kept_s = {place: max(FREE, float(cost)) for place, cost in zip(places, found[2:], strict=True)}
    return Costs(float(found[0]), float(found[1]), kept_s)


def _busiest_now(batch: ShedBatch, now: Mapping[OperatorId, int]) -> dict[OperatorId, float]:
    """How long the busiest instances would have worked with the present numbers of instances."""
    return {op: s * batch.instances.get(op, 1) / max(1, now.get(op, batch.instances.get(op, 1))) for op, s in batch.busiest_s.items()}


def _prior(
    batches: Sequence[ShedBatch],
    busiest: Sequence[Mapping[OperatorId, float]],
    places: Sequence[ShedId],
    reads: Mapping[OperatorId, Sequence[ShedId]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The costs that are assumed where batches do not tell them apart: fixed, scan, and per place."""
    around = [max(0.0, each.work_s - sum(each.busiest_s.values())) for each in batches]
    scanned = [each.scanned for each in batches]
    jobs_s = fixed_s(scanned, around)
    fixed = jobs_s + float(np.mean([max(0.0, each.seconds - each.work_s) for each in batches]))
    slope = max(0.0, sum(around) - jobs_s * len(batches)) / max(1.0, sum(scanned))
    half = slope / 2
    costs = []
    for place in places:
        kept = sum(each.kept.get(place, 0.0) for each in batches)
        costs.append(_kernels_s(batches, busiest, place, reads) + half * sum(scanned) / max(1.0, kept) / len(places))
    return np.array([fixed, half, *costs])


def _kernels_s(
    batches: Sequence[ShedBatch], busiest: Sequence[Mapping[OperatorId, float]], place: ShedId, reads: Mapping[OperatorId, Sequence[ShedId]]
) -> float:
    """How long the busiest instances work per kept row of a place. An operator with several places shares its time among their rows."""
    found = 0.0
    for op, feeding in reads.items():
        if place in feeding:
            kept = sum(each.kept.get(other, 0.0) for each in batches for other in feeding)
            found += sum(each.get(op, 0.0) for each in busiest) / max(1.0, kept)
    return found
