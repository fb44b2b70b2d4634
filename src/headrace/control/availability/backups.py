"""Which server backs up which unit (Borealis 5.2, "Backup Reassignment Algorithm").

The *worst point of failure* is the server whose failure would take longest to recover. The algorithm runs from time to time and relieves
it. Units that it backs up go to the server whose failure would take least, so that it has more time to capture its own units. Units of
its own go from their slowest backup to another one.

The paper only says that the backup load of the worst server is balanced with that of the best. Our definition of balance: the *duty* of a
server is all that it would have to recover for any primary, and the *load* of a pair is what a backup would have to recover for one
primary.

    unevenness = sum over servers of duty^2 / capacity + sum over pairs of load^2 / capacity of the backup

Every change must lower the unevenness by `gain_min` of the worst server's part in it, and must not raise the longest recovery time. So a
steady load comes to rest. (A share of the whole would be too much to ask of one change among a hundred servers.) A new backup is never
the primary nor in its zone. The paper only moves units between the worst and the best server. Moving units off the slowest backup of the
worst is ours, for the case that the worst backs up nothing.

Pass units with loads averaged over a period, not those of one moment: just after a capture a unit has nothing to redo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.control.availability.units import HaUnit, UnitId, check_units, pair_loads_s, slowest_s
from headrace.control.network import Node, NodeId, expect


@dataclass(frozen=True)
class BackupConfig:
    """Settings of the algorithm."""

    gain_min: float = 0.02
    """A change ships a unit's whole state. It must lower the unevenness by this share of the worst server's part."""
    changes_max: int = 4
    """The most changes in one run."""

    def __post_init__(self) -> None:
        expect(0 < self.gain_min < 1, "BackupConfig", "gain_min between 0 and 1", self.gain_min)
        expect(self.changes_max > 0, "BackupConfig", "changes_max above 0", self.changes_max)


@dataclass(frozen=True)
class Reassignment:
    """A unit that gets another backup, and the reason."""

    unit: UnitId
    source: NodeId
    target: NodeId
    reason: str


def reassign(units: Sequence[HaUnit], nodes: Sequence[Node], config: BackupConfig | None = None) -> tuple[Reassignment, ...]:
    """The units that should get another backup.

    >>> units = [HaUnit(f"u{at}", "a", "b", redo_s=1) for at in range(4)]
    >>> [(change.unit, change.target) for change in reassign(units, [Node("a"), Node("b"), Node("c")])]
    [('u0', 'c'), ('u1', 'c')]
    """
    check_units(units, nodes)
    config = config or BackupConfig()
    found: list[Reassignment] = []
    current = tuple(units)
    while len(found) < config.changes_max:
        change = _best_change(current, nodes, config)
        if change is None:
            break
        found.append(change)
        current = reassigned(current, [change])
    return tuple(found)


def reassigned(units: Iterable[HaUnit], changes: Iterable[Reassignment]) -> tuple[HaUnit, ...]:
    """The units after these changes."""
    target = {change.unit: change.target for change in changes}
    return tuple(replace(unit, backup=target[unit.name]) if unit.name in target else unit for unit in units)


@dataclass(frozen=True)
class Burden:
    """What each server would have to recover for others."""

    capacity: Mapping[NodeId, float]
    pairs_s: Mapping[tuple[NodeId, NodeId], float]
    """Per primary and backup: the load of the pair."""
    duties_s: Mapping[NodeId, float]
    """Per backup: its duty."""

    @classmethod
    def of(cls, units: Iterable[HaUnit], nodes: Sequence[Node]) -> Burden:
        pairs_s = pair_loads_s(units)
        duties_s = {node.name: 0.0 for node in nodes}
        for (_, backup), load_s in pairs_s.items():
            duties_s[backup] += load_s
        return cls({node.name: node.capacity for node in nodes}, pairs_s, duties_s)

    @property
    def times_s(self) -> dict[NodeId, float]:
        """How long the recovery of each server would take."""
        return slowest_s(self.pairs_s, self.capacity)

    @property
    def unevenness(self) -> float:
        of_servers = sum(duty_s**2 / self.capacity[name] for name, duty_s in self.duties_s.items())
        return of_servers + sum(load_s**2 / self.capacity[backup] for (_, backup), load_s in self.pairs_s.items())

    def part(self, server: NodeId) -> float:
        """A server's part in the unevenness: its duty, and the pairs of which it is the primary."""
        pairs = sum(load_s**2 / self.capacity[backup] for (primary, backup), load_s in self.pairs_s.items() if primary == server)
        return self.duties_s[server] ** 2 / self.capacity[server] + pairs

    def gain(self, unit: HaUnit, target: NodeId) -> float:
        """By how much the unevenness falls if this unit gets another backup."""
        x = unit.recovery_s
        here = self.duties_s[unit.backup] + self.pairs_s[unit.primary, unit.backup]
        there = self.duties_s[target] + self.pairs_s.get((unit.primary, target), 0.0)
        # The old backup saves a^2 - (a - x)^2, and the new one adds (b + x)^2 - b^2; for the duty and for the pair.
        return 2 * (x * here - x * x) / self.capacity[unit.backup] - 2 * (x * there + x * x) / self.capacity[target]

    def wait_s(self, unit: HaUnit, target: NodeId) -> float:
        """How long the unit's primary would wait for this backup, if it had the unit."""
        return (self.pairs_s.get((unit.primary, target), 0.0) + unit.recovery_s) / self.capacity[target]


def _best_change(units: Sequence[HaUnit], nodes: Sequence[Node], config: BackupConfig) -> Reassignment | None:
    burden = Burden.of(units, nodes)
    times_s = burden.times_s
    # Ties go to the least duty, then to the first name, so that the result does not depend on the order of nodes.
    worst = min(times_s, key=lambda name: (-times_s[name], name))
    best = min(times_s, key=lambda name: (times_s[name], burden.duties_s[name] / burden.capacity[name], name))
    wanted = config.gain_min * burden.part(worst)
    possible = [
        (burden.gain(unit, target), unit, target)
        for unit, target in _candidates(units, nodes, burden, worst, best)
        if burden.wait_s(unit, target) <= times_s[worst]
    ]
    useful = [each for each in possible if each[0] >= wanted > 0]
    if not useful:
        return None
    _, unit, target = min(useful, key=lambda each: (-each[0], each[1].name, each[2]))
    return Reassignment(unit.name, unit.backup, target, f"{worst} would take {times_s[worst]:.3g} s to recover")


def _candidates(
    units: Sequence[HaUnit], nodes: Sequence[Node], burden: Burden, worst: NodeId, best: NodeId
) -> Iterator[tuple[HaUnit, NodeId]]:
    """Possible changes: units that the worst server backs up, to the best one; and units of the worst at its slowest backup, to any."""
    zone = {node.name: node.fault_zone for node in nodes}
    waits_s = {backup: load_s / burden.capacity[backup] for (primary, backup), load_s in burden.pairs_s.items() if primary == worst}
    slowest = max(waits_s, key=lambda name: waits_s[name], default=None)
    for unit in units:
        if unit.backup == worst:
            targets: Iterable[NodeId] = (best,)
        else:
            targets = zone if (unit.primary, unit.backup) == (worst, slowest) else ()
        yield from ((unit, target) for target in targets if target != unit.backup and zone[target] != zone[unit.primary])
