"""Measurements of the demo, and what they say: latency of both lanes, instances, and whether they followed the rate.

The latency of a call is the time from the moment its file (or record) became visible until the batch that read it was finished. Calls are
read in order of arrival, so a lane that has read so many calls has answered that many of the first. No row needs to carry a timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LAG_S_MAX = 12
"""Instances may be this late behind the rate: the policy's period, its cool-down, and a batch."""
FOLLOWS_FROM = 0.5
"""Instances follow the rate if they correlate with it at least so much, and change by at least half."""
SECONDS_MIN = 5
"""Fewer seconds say nothing about that."""
ALONE = 0.05
"""An instance has hardly any rows of other slots if they are less than this share of all rows."""


@dataclass(frozen=True)
class Arrival:
    """Calls of a tick that became visible to the lanes."""

    at_s: float
    """When they became visible, by the clock."""
    rows: int


@dataclass(frozen=True)
class Done:
    """A batch that a lane has finished."""

    at_s: float
    rows: int
    """All calls that are answered by then, since the beginning."""


@dataclass(frozen=True)
class Point:
    """The elastic lane in a batch."""

    at_s: float
    instances: int
    busy: float | None
    """The query's utilisation, as its policy sees it."""
    hot_slot: int = -1
    """The slot with the most rows."""
    hot_share: float = 0.0
    """Its share of the rows."""
    owner_share: float = 0.0
    """The share of the rows that its instance got, with those of other slots."""
    rows: int = 0


@dataclass(frozen=True)
class Mark:
    """Something that happened at a moment."""

    at_s: float
    kind: str
    """``change`` of instances, ``moved`` slots, ``hot``, ``cool``, ``rebalance``, ``kill``, ``back``."""
    text: str


@dataclass(frozen=True)
class Recording:
    """All that the view, the report and the captions are made from. Times are seconds since the demo's beginning."""

    seconds: float
    arrivals: tuple[Arrival, ...] = ()
    static: tuple[Done, ...] = ()
    elastic: tuple[Done, ...] = ()
    points: tuple[Point, ...] = ()
    marks: tuple[Mark, ...] = ()
    warm_rows: int = 0
    """The calls that warm the lanes up. They are in the answers, but not in the figures."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Recording:
        """The recording that ``to_json`` turned into ``body``."""
        kinds = {"arrivals": Arrival, "static": Done, "elastic": Done, "points": Point, "marks": Mark}
        return cls(**{**body, **{name: tuple(kind(**each) for each in body[name]) for name, kind in kinds.items()}})

    @property
    def rows(self) -> int:
        """All calls that came, with those for warming up."""
        return sum(arrival.rows for arrival in self.arrivals)

    def mark(self, kind: str) -> Mark | None:
        """The first mark of a kind."""
        return next((mark for mark in self.marks if mark.kind == kind), None)

    def rate(self) -> Floats:
        """Calls that came in each second of the demo."""
        times = [a.at_s for a in self._measured()]
        return np.histogram(times, bins=np.arange(0.0, np.ceil(self.seconds) + 1), weights=[a.rows for a in self._measured()])[0]

    def _measured(self) -> tuple[Arrival, ...]:
        return tuple(a for a in self.arrivals if a.at_s >= 0)

    def instances(self) -> Floats:
        """The number of instances in each second of the demo: that of the newest batch."""
        if not self.points:
            return np.zeros(int(np.ceil(self.seconds)))
        at = np.searchsorted([p.at_s for p in self.points], np.arange(1.0, np.ceil(self.seconds) + 1), "right") - 1
        return np.array([self.points[max(0, each)].instances for each in at], float)


@dataclass(frozen=True)
class Latencies:
    """The latencies of the calls of a lane, tick by tick."""

    came_s: Floats
    """When the calls came."""
    rows: Floats
    waited_s: Floats
    """How long they took. For calls that are not answered: how long they have been waiting."""
    answered: npt.NDArray[np.bool_]

    @property
    def behind(self) -> int:
        """The calls that are not answered."""
        return int(self.rows[~self.answered].sum())

    @property
    def oldest_s(self) -> float:
        """For how long the oldest call has been waiting; 0 if none is."""
        return float(self.waited_s[~self.answered].max(initial=0.0))

    def percentile(self, share: float) -> float | None:
        """The latency that this share of the calls did not exceed. Calls that still wait count with the time so far.

        >>> some = Latencies(np.arange(2.0), np.array([90.0, 10.0]), np.array([0.5, 3.0]), np.array([True, False]))
        >>> some.percentile(0.9), some.percentile(0.95), Latencies(*np.zeros((4, 0))).percentile(0.5)
        (0.5, 3.0, None)
        """
        if not len(self.rows):
            return None
        order = np.argsort(self.waited_s, kind="stable")
        reached = np.cumsum(self.rows[order]) / self.rows.sum()
        return float(self.waited_s[order][min(int(np.searchsorted(reached, share - 1e-12)), len(order) - 1)])

    def within(self, from_s: float, until_s: float) -> Latencies:
        """Those of the calls that came in this time."""
        kept = (self.came_s >= from_s) & (self.came_s < until_s)
        return Latencies(self.came_s[kept], self.rows[kept], self.waited_s[kept], self.answered[kept])


def latencies(arrivals: Sequence[Arrival], done: Sequence[Done], now_s: float) -> Latencies:
    """The latencies of the calls that came after the warm-up. A tick is answered when its last call is."""
    came, rows = np.array([a.at_s for a in arrivals]), np.array([a.rows for a in arrivals], float)
    upto = np.cumsum(rows)
    at = np.searchsorted([d.rows for d in done], upto) if done else np.zeros(len(rows), int)
    answered = at < len(done)
    ended = np.append([d.at_s for d in done], now_s)[np.minimum(at, len(done))]
    measured = (came >= 0) & (rows > 0)
    waited = np.maximum(0.0, ended - came)
    return Latencies(came[measured], rows[measured], waited[measured], answered[measured])


def oldest(arrivals: Sequence[Arrival], done: Sequence[Done], times_s: Floats) -> Floats:
    """At each of these times: for how long the oldest call that is not answered has been waiting; 0 if none waits.

    >>> came = [Arrival(0.0, 10), Arrival(1.0, 10)]
    >>> oldest(came, [Done(1.5, 10), Done(4.0, 20)], np.array([0.5, 1.4, 2.0, 3.5, 5.0])).tolist()
    [0.5, 1.4, 1.0, 2.5, 0.0]
    """
    came, upto = np.array([a.at_s for a in arrivals]), np.cumsum([a.rows for a in arrivals])
    answered = np.array([0, *(d.rows for d in done)])[np.searchsorted([d.at_s for d in done], times_s, "right")]
    first = np.searchsorted(upto, answered, "right")
    since = np.append(came, np.inf)[first]
    return np.where(since <= times_s, times_s - np.minimum(since, times_s), 0.0)


def delays(arrivals: Sequence[Arrival], done: Sequence[Done], until_s: float, step_s: float = 1.0) -> Floats:
    """The greatest value of `oldest` in each step of the time, without the calls that came before the beginning."""
    kept = [a if a.at_s >= 0 else Arrival(np.inf, a.rows) for a in arrivals]
    kept = [*(a for a in kept if a.at_s < np.inf)]
    warm = sum(a.rows for a in arrivals) - sum(a.rows for a in kept)
    after = [Done(d.at_s, max(0, d.rows - warm)) for d in done]
    # Just before a batch ends, the oldest call has waited for longest.
    ends = np.array([d.at_s - 1e-6 for d in after if 0 <= d.at_s <= until_s])
    times = np.unique(np.concatenate([np.arange(step_s, until_s, step_s), ends, [until_s]]))
    found = np.zeros(max(1, int(np.ceil(until_s / step_s))))
    if len(times):
        np.maximum.at(found, np.minimum((np.ceil(times / step_s) - 1).clip(0).astype(int), len(found) - 1), oldest(kept, after, times))
    return found


@dataclass(frozen=True)
class Followed:
    """Whether the number of instances followed the rate."""

    correlation: float
    """Of the two over the demo, at the lag at which it is greatest; 0 if the number never changed."""
    lag_s: int
    high: float
    """Instances on average while the rate was in its highest fifth, after the lag."""
    low: float
    """The same for the lowest fifth of the rates."""

    @property
    def yes(self) -> bool:
        return self.correlation >= FOLLOWS_FROM and self.high >= 1.5 * self.low


def followed(rate: Floats, instances: Floats, counts: npt.NDArray[np.bool_] | None = None) -> Followed:
    """Compare the rate with the number of instances, second by second, at lags of up to `LAG_S_MAX`.

    ``counts`` says which seconds of the instances count; by default all do.

    >>> rate = np.array([100.0] * 10 + [800.0] * 10 + [100.0] * 10)
    >>> after = np.roll(np.where(rate > 100, 6.0, 1.0), 3)
    >>> followed(rate, after), followed(rate, np.full(30, 4.0)).yes
    (Followed(correlation=1.0, lag_s=3, high=6.0, low=1.0), False)
    """
    kept = np.ones(len(instances), bool) if counts is None else counts
    mean = float(instances[kept].mean()) if kept.any() else 0.0
    best = Followed(0.0, 0, mean, mean)
    for lag in range(max(1, min(LAG_S_MAX, len(rate) // 3) + 1)):
        mine = kept[lag:]
        first, then = rate[: len(rate) - lag][mine], instances[lag:][mine]
        if len(first) < SECONDS_MIN or first.std() == 0 or then.std() == 0:
            continue
        correlation = round(float(np.corrcoef(first, then)[0, 1]), 9)
        if correlation > best.correlation:
            high, low = np.quantile(first, (0.8, 0.2))
            best = Followed(correlation, lag, float(then[first >= high].mean()), float(then[first <= low].mean()))
    return best


def undisturbed(run: Recording) -> npt.NDArray[np.bool_]:
    """By second: False from the kill until the lane has caught up. What it has to do in that time is not what comes in."""
    kept = np.ones(int(np.ceil(run.seconds)), bool)
    killed, back = run.mark("kill"), run.mark("back")
    if killed is None:
        return kept
    waits = delays(run.arrivals, run.elastic, run.seconds)
    first = max(0, int(killed.at_s))
    usual = float(waits[:first].max(initial=0.0))
    since = len(kept) if back is None else int(np.ceil(back.at_s))
    caught_up = next((at for at in range(since, len(kept)) if waits[at] <= usual), len(kept))
    kept[first:caught_up] = False
    return kept


@dataclass(frozen=True)
class Hotness:
    """What happened to the hot customer."""

    slot: int
    share: float
    """The greatest share of a batch's rows that the slot had."""
    before: float
    """The share of the rows that its instance got in the batch in which it was noticed."""
    after: float
    """The least share that its instance got later, as long as it was hot."""
    alone_s: float | None
    """When the instance first had hardly any other rows; None if never."""


def hotness(points: Sequence[Point], from_s: float) -> Hotness | None:
    """The slot that was hottest after a time; None if no batch after it is known."""
    after = [p for p in points if p.at_s > from_s and p.rows and p.hot_slot >= 0]
    if not after:
        return None
    hottest = max(after, key=lambda p: p.hot_share)
    mine = [p for p in after if p.hot_slot == hottest.hot_slot and p.hot_share >= 0.5 * hottest.hot_share]
    alone = next((p.at_s for p in mine if p.owner_share - p.hot_share < ALONE), None)
    return Hotness(hottest.hot_slot, hottest.hot_share, mine[0].owner_share, min(p.owner_share for p in mine), alone)
