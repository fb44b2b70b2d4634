"""HA units, and how long it takes to recover them (Borealis 5.2).

The operators of a server, the *primary*, are divided into HA units. Each unit has a *backup* on another server. A checkpoint of a unit has
two tasks: the primary *captures* the changes into a message, and the backup *pastes* the message into its image of the unit. If a primary
fails, its backups paste the messages that have arrived and redo the processing since the last capture. They work at the same time, each
for its own units:

    recovery load of a unit            paste_s + redo_s
    recovery time of a server          the largest sum of these over the units that one backup holds for it, per capacity
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType

from headrace.control.network import Node, NodeId, expect

UnitId = NewType("UnitId", str)


@dataclass(frozen=True)
class HaUnit:
    """A unit at one moment. All times are seconds of CPU, except `age_s`."""

    name: UnitId
    primary: NodeId
    backup: NodeId
    redo_s: float = 0.0
    """Processing since the last capture. It is lost with the primary and must be done again."""
    capture_s: float = 0.0
    """How long a capture would take now."""
    paste_s: float = 0.0
    """How long it takes to paste the messages that were captured and not pasted yet."""
    age_s: float = 0.0
    """Seconds since the last capture."""

    def __post_init__(self) -> None:
        where = f"HaUnit {self.name!r}"
        expect(self.primary != self.backup, where, "a backup that is not its primary", self.backup)
        for field in ("redo_s", "capture_s", "paste_s", "age_s"):
            expect(0 <= getattr(self, field) < math.inf, where, f"{field} of 0 or more", getattr(self, field))

    @property
    def recovery_s(self) -> float:
        return self.paste_s + self.redo_s


def pair_loads_s(units: Iterable[HaUnit]) -> dict[tuple[NodeId, NodeId], float]:
    """Per primary and backup: the recovery load of the backup if the primary failed."""
    loads: dict[tuple[NodeId, NodeId], float] = {}
    for unit in units:
        pair = (unit.primary, unit.backup)
        loads[pair] = loads.get(pair, 0.0) + unit.recovery_s
    return loads


def recovery_times_s(units: Iterable[HaUnit], nodes: Sequence[Node]) -> Mapping[NodeId, float]:
    """How long the recovery of each server would take. Its backups work at the same time.

    >>> units = [HaUnit("u", "a", "b", redo_s=3), HaUnit("v", "a", "c", redo_s=2, paste_s=2), HaUnit("w", "b", "a", redo_s=1)]
    >>> recovery_times_s(units, [Node("a"), Node("b"), Node("c")])
    {'a': 4.0, 'b': 1.0, 'c': 0.0}
    """
    return slowest_s(pair_loads_s(units), {node.name: node.capacity for node in nodes})


def slowest_s(pairs_s: Mapping[tuple[NodeId, NodeId], float], capacity: Mapping[NodeId, float]) -> dict[NodeId, float]:
    """Per server: the time of its slowest backup."""
    times = dict.fromkeys(capacity, 0.0)
    for (primary, backup), load in pairs_s.items():
        times[primary] = max(times[primary], load / capacity[backup])
    return times


def check_units(units: Sequence[HaUnit], nodes: Sequence[Node]) -> None:
    """Refuse two units with one name, or a server that is no node."""
    names = [unit.name for unit in units]
    expect(len(set(names)) == len(names), "units", "every name once", names)
    unknown = {server for unit in units for server in (unit.primary, unit.backup)} - {node.name for node in nodes}
    expect(not unknown, "units", f"servers among {', '.join(node.name for node in nodes)}", sorted(unknown))
