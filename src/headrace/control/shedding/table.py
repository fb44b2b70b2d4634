"""Plans of drops, made ahead and looked up before each batch (Borealis 4.1, for a running query).

The places where rows may be dropped are the inputs of Borealis' linear program, and the query's one node bears what one batch may take:

    maximise     sum over sinks of weight * delivered share
    such that    hand-over * rows that some place of their source keeps + sum over places of cost * rows kept there <= room
                 kept share of each place >= 1 - max_loss

The room is what is left of a batch's time after its fixed cost and the scan. The rows of a batch come in a mix that changes slowly. So all
that a plan depends on is the room per row that comes, and there is a plan for each of a list of rooms. Between two of them a batch takes
the mean of their shares, weighted by the distance. Where the program is linear, that is the best plan too.

Places that drop by the same identity keep the same rows, so that the most that one of them keeps is handed over. Places of one source that
drop by different identities are independent of each other, and a row is handed over if any of them wants it. That is not linear: the
program is solved a few times, each time with the chance, taken from the last solution, that no other place wants a row.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType

import numpy as np

from headrace.control.shedding.costs import FREE, Costs
from headrace.state.drops import ShedId

LEVELS = 16
NEARER = 0.74
"""Each room of the list is this much nearer to the least one than the room before."""
TRIES = 3
"""How often the program is solved to find out which rows other places want."""
PROBED = 0.9
"""A batch that probes costs is planned for this share of the time that it may take, since the costs may be wrong."""
PROBE_EVERY = 60
"""One of so many batches that drop rows probes costs that may have changed."""

Keep = Mapping[ShedId, float]
"""By place: the share of its rows that it keeps."""


@dataclass(frozen=True)
class Goals:
    """What the user asked for."""

    max_loss: Mapping[ShedId, float]
    sinks: Mapping[str, tuple[float, tuple[ShedId, ...]]]
    """By sink: its weight, and the places that its rows come through."""
    deadline_s: float | None = None

    @property
    def least(self) -> dict[ShedId, float]:
        """By place: the share that it must keep."""
        return {place: 1 - loss for place, loss in self.max_loss.items()}

    def delivered(self, arrived: Mapping[ShedId, float], kept: Mapping[ShedId, float]) -> dict[str, float]:
        """By sink: the share of its rows that were kept."""
        found = {}
        for sink, (_, places) in self.sinks.items():
            came = sum(arrived.get(place, 0.0) for place in places)
            found[sink] = sum(kept.get(place, 0.0) for place in places) / came if came else 1.0
        return found


@dataclass(frozen=True)
class Origin:
    """A source, as far as rows are handed over from it."""

    groups: tuple[tuple[ShedId, ...], ...]
    """Its places, those together that drop by the same identity."""
    always: bool = False
    """True if all its rows are handed over, because a branch takes them without a place or decides later."""

    def handed(self, keep: Keep) -> float:
        """The share of its rows that is handed over.

        >>> one, other = ShedId("one"), ShedId("other")
        >>> round(Origin(((one,), (other,))).handed({one: 0.5, other: 0.2}), 2), Origin(((one, other),)).handed({one: 0.5, other: 0.2})
        (0.6, 0.5)
        """
        return 1.0 if self.always else 1.0 - float(np.prod([1.0 - _most(group, keep) for group in self.groups]))


@dataclass(frozen=True)
class Mix:
    """What comes with each row from the sources."""

    origins: tuple[tuple[float, Origin], ...]
    """The share of the rows that comes from each source."""
    arrived: Mapping[ShedId, float]
    """Rows that arrive at each place."""

    def handed(self, keep: Keep) -> float:
        """The share of the rows that is handed over."""
        return sum(share * origin.handed(keep) for share, origin in self.origins)

    def differs(self, other: Mix, least: float) -> bool:
        """True if a share has changed by this much."""
        return any(abs(rows - other.arrived.get(place, 0.0)) > least for place, rows in self.arrived.items())


@dataclass(frozen=True)
class PlanTable:
    """Plans for batches of the same mix of rows and of all sizes."""

    costs: Costs
    goals: Goals
    mix: Mix
    rooms: tuple[float, ...] = ()
    """Seconds per row that comes, ascending. In the last one nothing must be dropped."""
    plans: tuple[Keep, ...] = ()
    first: int = 0
    """The id of the plan for the first room. Those of the others follow."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "plans", tuple(MappingProxyType(dict(plan)) for plan in self.plans))

    def look_up(self, scanned: float, budget_s: float) -> tuple[int, dict[ShedId, float], bool] | None:
        """For a batch of so many rows that may take so long: the plan's id, the share that each place keeps, and if the time suffices.

        None if nothing must be dropped.
        """
        room = (budget_s - self.costs.fixed_s) / max(1.0, scanned) - self.costs.scan_s
        if not self.rooms or room >= self.rooms[-1]:
            return None
        at = bisect.bisect_right(self.rooms, room) - 1
        if at < 0:
            return self.first, dict(self.plans[0]), False
        further = (room - self.rooms[at]) / (self.rooms[at + 1] - self.rooms[at])
        low, high = self.plans[at], self.plans[at + 1]
        return self.first + at, {place: share + further * (high[place] - share) for place, share in low.items()}, True

    def seconds(self, scanned: float, keep: Keep) -> float:
        """How long a batch of so many rows takes if places keep these shares; a place that is left out keeps all."""
        whole = {place: keep.get(place, 1.0) for place in self.mix.arrived}
        kept = {place: scanned * rows * whole[place] for place, rows in self.mix.arrived.items()}
        return self.costs.seconds(scanned, scanned * self.mix.handed(whole), kept)

    def probe(self, scanned: float, budget_s: float, place: ShedId) -> dict[ShedId, float]:
        """The share that each place keeps in a batch that shows what the rows of one place cost: that place keeps as many as it can."""
        keep = self.goals.least
        for name in sorted(keep, key=lambda each: each != place):
            shares = np.linspace(keep[name], 1.0, 41)
            fitting = takewhile(lambda share, name=name: self.seconds(scanned, keep | {name: share}) <= PROBED * budget_s, shares)  # type: ignore[misc]
            keep[name] = max([keep[name], *(float(share) for share in fitting)])
        return keep


def probed_place(number: int, places: Sequence[ShedId]) -> ShedId | None:
    """The place to probe in a batch, by how many batches have dropped rows before; None for nearly all batches.

    While each batch keeps the same shares, a change of what rows of a place cost may be taken for one of another cost.

    >>> [(number, probed_place(number, [ShedId("a"), ShedId("b")])) for number in (0, 1, 59, 60, 120)]
    [(0, None), (1, None), (59, None), (60, 'b'), (120, 'a')]
    >>> [number for number in range(200) if probed_place(number, [ShedId("a")])]
    []
    """
    if len(places) < 2 or not number or number % PROBE_EVERY:
        return None
    return places[number // PROBE_EVERY % len(places)]


def planned(costs: Costs, goals: Goals, mix: Mix, first: int = 0) -> PlanTable:
    """Make the plans for this mix.

    >>> a, b = ShedId("a"), ShedId("b")
    >>> goals = Goals({a: 0.9, b: 0.9}, {"one": (1.0, (a,)), "two": (3.0, (b,))})
    >>> mix = Mix(((1.0, Origin(((a,), (b,)), always=True)),), {a: 1.0, b: 1.0})
    >>> table = planned(Costs(0.2, 1e-6, 0.0, {a: 1e-5, b: 1e-5}), goals, mix)
    >>> table.look_up(35_000, 1.0) is None
    True
    >>> plan, keep, holds = table.look_up(60_000, 1.0)
    >>> round(keep[a], 2), round(keep[b], 2), holds
    (0.23, 1.0, True)
    >>> round(table.seconds(60_000, keep), 2)
    1.0
    """
    program = _Program(costs, goals, mix)
    least, most = program.room(goals.least), program.room(dict.fromkeys(mix.arrived, 1.0))
    if most - least <= 0:
        return PlanTable(costs, goals, mix, (), (), first)
    rooms = [least, *sorted(least + (most - least) * NEARER**step for step in range(LEVELS))]
    plans = [goals.least, *(program.best(room) for room in rooms[1:])]
    return PlanTable(costs, goals, mix, tuple(rooms), tuple(plans), first)


@dataclass(frozen=True)
class _Step:
    """Some places keep more of the same rows."""

    places: tuple[ShedId, ...]
    size: float
    """How much more, at most: a share of the rows."""
    cost: float
    worth: float

    @property
    def rate(self) -> float:
        """What it is worth for its cost."""
        return self.worth / max(self.cost, FREE)


class _Program:
    """The linear program, per row that comes."""

    def __init__(self, costs: Costs, goals: Goals, mix: Mix) -> None:
        self.goals, self.mix, self.costs = goals, mix, costs
        self._groups = [(share, group, origin) for share, origin in mix.origins if not origin.always for group in origin.groups]
        self._always = costs.handed_s * sum(share for share, origin in mix.origins if origin.always)
        self._cost = {place: costs.kept_s.get(place, 0.0) * rows for place, rows in mix.arrived.items()}
        self._worth = dict.fromkeys(mix.arrived, 0.0)
        for weight, feeding in goals.sinks.values():
            came = sum(mix.arrived.get(place, 0.0) for place in feeding)
            for place in feeding if came else ():
                self._worth[place] += weight * mix.arrived[place] / came

    def room(self, keep: Keep) -> float:
        """The room that these shares need."""
        behind = sum(cost * keep[place] for place, cost in self._cost.items())
        return self.costs.handed_s * self.mix.handed(keep) + behind

    def best(self, room: float) -> dict[ShedId, float]:
        """The shares that are worth most in this room. It is at least what the least shares need."""
        tries = []
        for start in (0.0, 1.0) if self._groups else (0.0,):
            keep: Keep = dict.fromkeys(self.mix.arrived, start)
            for _ in range(TRIES if len(self._groups) > 1 else 1):
                solved = self._solved(room, keep)
                tries.append(self._fitting(solved, room))
                if all(abs(solved[place] - keep[place]) < 1e-3 for place in solved):
                    break
                keep = solved
        return max(tries, key=lambda each: sum(worth * each[place] for place, worth in self._worth.items()))

    def _solved(self, room: float, others: Keep) -> dict[ShedId, float]:
        """The best shares, if a row that a group wants is handed over for it alone as often as with these shares of the other groups.

        There is one constraint beside the bounds, so the best plan takes what is worth most for its cost until the room is full.
        """
        keep, steps = self.goals.least, []
        for share, group, origin in self._groups:
            alone = float(np.prod([1.0 - _most(other, others) for other in origin.groups if other != group]))
            hand_over, handed = self.costs.handed_s * share * alone, _most(group, keep)
            room -= hand_over * handed
            # Up to the most that one of them must keep, the others keep rows that are handed over anyway.
            steps += [_Step((place,), handed - keep[place], self._cost[place], self._worth[place]) for place in group]
            ordered = sorted(group, key=lambda place: -self._worth[place] / max(self._cost[place], FREE))
            firsts = (ordered[:upto] for upto in range(1, len(ordered) + 1))
            sums = ((each, hand_over + self._sum(self._cost, each), self._sum(self._worth, each)) for each in firsts)
            together = max((_Step(tuple(each), 1.0 - handed, cost, worth) for each, cost, worth in sums), key=lambda step: step.rate)
            steps += [together, *(_Step((p,), 1.0 - handed, self._cost[p], self._worth[p]) for p in ordered[len(together.places) :])]
        grouped = {place for _, group, _ in self._groups for place in group}
        steps += [_Step((p,), 1.0 - keep[p], self._cost[p], self._worth[p]) for p in self.mix.arrived if p not in grouped]
        room -= self._always + sum(self._cost[place] * keep[place] for place in self.mix.arrived)
        for step in sorted(steps, key=lambda step: -step.rate):
            part = min(1.0, max(0.0, room) / (step.cost * step.size)) if step.cost * step.size > 0 else 1.0
            room -= part * step.size * step.cost
            keep |= {place: min(1.0, keep[place] + part * step.size) for place in step.places}
        return keep

    def _sum(self, of: Mapping[ShedId, float], places: Sequence[ShedId]) -> float:
        return sum(of[place] for place in places)

    def _fitting(self, keep: Keep, room: float) -> dict[ShedId, float]:
        """The shares, brought nearer to the least ones until they need no more than the room."""
        least, low, high = self.goals.least, 0.0, 1.0

        def part(of: float) -> dict[ShedId, float]:
            return {place: least[place] + (share - least[place]) * of for place, share in keep.items()}

        if self.room(keep) <= room * (1 + 1e-6):
            return part(1.0)
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self.room(part(middle)) <= room else (low, middle)
        return part(low)


def _most(group: Sequence[ShedId], keep: Keep) -> float:
    return max((keep.get(place, 1.0) for place in group), default=0.0)
