"""Linear Road's answers, computed tuple by tuple from the rules: slow and simple, without code of the query.

The rules are in the README. Tuples are ordered by Time. All reports of a minute are known when the next minute begins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from benchmarks.linear_road.segments import journey

Place = tuple[int, int, int]
"""Expressway, direction, segment."""

POSITION, BALANCE, DAILY, TRAVEL = 0, 2, 3, 4
EXIT = 4
STOPPED_REPORTS = 4


@dataclass
class Vehicle:
    place: Place
    lane: int
    pos: int
    reports_here: int
    """Consecutive reports of the same lane and position."""
    owes: int = 0
    """The toll of its current segment."""


@dataclass
class Answers:
    """The answers, without the times of emission."""

    tolls: list[tuple[int, int, int, int]] = field(default_factory=list)
    """VID, Time, LAV, toll."""
    accidents: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, VID, segment."""
    balances: list[tuple[int, int, int, frozenset[int]]] = field(default_factory=list)
    """Time, QID, VID, and all balances that held at some time in the last minute."""
    daily: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, QID, balance."""
    travel: list[tuple[int, int, int, int]] = field(default_factory=list)
    """QID, Time, seconds, toll."""


class Reference:
    def __init__(self, history: dict[tuple[int, int, int], int]) -> None:
        self.history = history
        self.answers = Answers()
        self.vehicles: dict[int, Vehicle] = {}
        self.speeds: dict[tuple[int, Place], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        """By minute and place, the speeds of each car."""
        self.stopped: dict[tuple[Place, int, int], dict[int, int]] = defaultdict(dict)
        """By place, lane and position: when each stopped vehicle last reported."""
        self.accidents: set[tuple[int, Place]] = set()
        self.lavs: dict[tuple[int, Place], int] = {}
        self.means: dict[tuple[int, Place], Fraction | None] = {}
        self.charges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """By vehicle, in order: a time, and the balance from then on."""

    def feed(self, rows: Iterable[tuple[int, ...]]) -> None:
        for kind, time, vid, spd, xway, lane, direction, seg, pos, qid, sinit, send, dow, tod, day in rows:
            if kind == POSITION:
                self._report(time, vid, spd, (xway, direction, seg), lane, pos)
            elif kind == BALANCE:
                self.answers.balances.append((time, qid, vid, self._balances(vid, time)))
            elif kind == DAILY and (vid, day, xway) in self.history:
                self.answers.daily.append((time, qid, self.history[vid, day, xway]))
            elif kind == TRAVEL:
                self.answers.travel.append((qid, time, *journey(sinit, send, dow, tod)))

    def _report(self, time: int, vid: int, spd: int, place: Place, lane: int, pos: int) -> None:
        minute = time // 60 + 1
        self.speeds[minute, place][vid].append(spd)
        before = self.vehicles.get(vid)
        stays = before is not None and (before.place, before.lane, before.pos) == (place, lane, pos)
        now = Vehicle(place, lane, pos, before.reports_here + 1 if before and stays else 1)
        if now.reports_here >= STOPPED_REPORTS:
            self._stands(time, vid, place, lane, pos, minute)
        if before and before.place != place and before.owes:
            self._charge(vid, time, before.owes)
        elif before and before.place == place and lane != EXIT:
            now.owes = before.owes
        if lane != EXIT and (before is None or before.lane == EXIT or before.place != place):
            now.owes = self._notify(time, vid, place, minute)
        if lane == EXIT:
            now.owes = 0
        self.vehicles[vid] = now

    def _stands(self, time: int, vid: int, place: Place, lane: int, pos: int, minute: int) -> None:
        here = self.stopped[place, lane, pos]
        if any(other != vid and time - 30 <= at <= time for other, at in here.items()):
            self.accidents.add((minute, place))
        here[vid] = time

    def _notify(self, time: int, vid: int, place: Place, minute: int) -> int:
        lav, cars = self._lav(place, minute), len(self.speeds.get((minute - 1, place), ()))
        accident = self._accident_ahead(place, minute - 1)
        toll = 0 if lav >= 40 or cars <= 50 or accident is not None else 2 * (cars - 50) ** 2
        self.answers.tolls.append((vid, time, lav, toll))
        if accident is not None:
            self.answers.accidents.append((time, vid, accident))
        return toll

    def _lav(self, place: Place, minute: int) -> int:
        """Asked for in this minute, when those before are over and told for good."""
        if (minute, place) not in self.lavs:
            self.lavs[minute, place] = self._mean_speed(place, minute)
        return self.lavs[minute, place]

    def _mean_speed(self, place: Place, minute: int) -> int:
        """Computed with fractions, so that rounding cannot lower a mean that is a whole number."""
        means = [mean for earlier in range(minute - 5, minute) if (mean := self._mean_of_minute(place, earlier)) is not None]
        return int(sum(means) / len(means)) if means else -1

    def _mean_of_minute(self, place: Place, minute: int) -> Fraction | None:
        if (minute, place) not in self.means:
            cars = self.speeds.get((minute, place), {})
            by_reports: dict[int, int] = defaultdict(int)
            for each in cars.values():
                by_reports[len(each)] += sum(each)
            total = sum((Fraction(speeds, reports) for reports, speeds in by_reports.items()), Fraction())
            self.means[minute, place] = total / len(cars) if cars else None
        return self.means[minute, place]

    def _accident_ahead(self, place: Place, minute: int) -> int | None:
        xway, direction, seg = place
        for ahead in range(5):
            at = seg + ahead if direction == 0 else seg - ahead
            if (minute, (xway, direction, at)) in self.accidents:
                return at
        return None

    def _charge(self, vid: int, time: int, toll: int) -> None:
        charged = self.charges[vid]
        charged.append((time, (charged[-1][1] if charged else 0) + toll))

    def _balances(self, vid: int, time: int) -> frozenset[int]:
        charged = self.charges.get(vid, [])
        at_first = [balance for at, balance in charged if at <= time - 60]
        return frozenset([at_first[-1] if at_first else 0, *(balance for at, balance in charged if time - 60 < at <= time)])
