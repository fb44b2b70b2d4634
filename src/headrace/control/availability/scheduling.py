"""The next checkpoint task of an idle server (Borealis 5.2, "Min-Max Checkpoint Scheduling").

A server is the primary of some units and the backup of others, so it can capture or paste. The time to recover a server is that of its
slowest backup. So the next task is the one that helps the slowest backup:

    best capture    among the server's units at its slowest backup: the one with most processing to lose per second of capture
    best paste      among messages for the primary that would wait longest for this server: the unit with the largest recovery load
    the task        the one of the two that lowers the larger recovery load

For comparison: *whole* checkpoints, the paper's baseline, capture all units of a server at once every `interval_s`. *Round-robin*, ours,
does all captures and pastes in turn.

The paper describes the idea without a formula; the lines above are our reading. A capture is useful only if it removes more recovery load
than its message adds. `paste_factor` is the time to paste a message, as a multiple of the time to capture it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.control.availability.units import HaUnit, UnitId, check_units, pair_loads_s
from headrace.control.network import Node, NodeId, expect


@dataclass(frozen=True)
class ScheduleConfig:
    """Settings of the schedule."""

    method: Literal["min-max", "round-robin", "whole"] = "min-max"
    interval_s: float = 30.0
    """The time between two whole checkpoints. The other methods use all idle time."""
    paste_factor: float = 1.0
    """The time to paste a message, as a multiple of the time to capture it."""
    gain_min_s: float = 0.0
    """A capture must lower the recovery load by more than this. A value above 0 saves work on units that hardly change."""

    def __post_init__(self) -> None:
        where = "ScheduleConfig"
        expect(self.method in ("min-max", "round-robin", "whole"), where, "method min-max, round-robin or whole", self.method)
        expect(self.interval_s > 0, where, "interval_s above 0", self.interval_s)
        expect(self.paste_factor >= 0, where, "paste_factor of 0 or more", self.paste_factor)
        expect(self.gain_min_s >= 0, where, "gain_min_s of 0 or more", self.gain_min_s)


@dataclass(frozen=True)
class Task:
    """A checkpoint task, and the reason for it."""

    kind: Literal["capture", "paste"]
    server: NodeId
    """The server that does it."""
    units: tuple[UnitId, ...]
    """One unit; all units of a server for whole checkpoints."""
    reason: str


@dataclass(frozen=True)
class RoundRobinTurn:
    """The memory of round-robin: the last task."""

    kind: str = ""
    unit: str = ""


FIRST = RoundRobinTurn()


def next_task(
    server: NodeId, units: Sequence[HaUnit], nodes: Sequence[Node], config: ScheduleConfig | None = None, turn: RoundRobinTurn = FIRST
) -> tuple[Task | None, RoundRobinTurn]:
    """The next task of an idle server, or None if none is useful; and the memory for the next call.

    >>> units = [HaUnit("u", "a", "b", redo_s=3, capture_s=1), HaUnit("v", "a", "b", redo_s=4, capture_s=2)]
    >>> task, _ = next_task("a", units, [Node("a"), Node("b")])
    >>> task.kind, task.units
    ('capture', ('u',))
    """
    check_units(units, nodes)
    config = config or ScheduleConfig()
    if config.method == "whole":
        return _whole(server, units, config), turn
    captures = [unit for unit in units if unit.primary == server and _gain_s(unit, config) > config.gain_min_s]
    pastes = [unit for unit in units if unit.backup == server and unit.paste_s > 0]
    if config.method == "round-robin":
        return _round_robin(server, captures, pastes, turn)
    return _min_max(server, units, captures, pastes, nodes), turn


def _gain_s(unit: HaUnit, config: ScheduleConfig) -> float:
    return unit.redo_s - config.paste_factor * unit.capture_s


def _min_max(
    server: NodeId, units: Sequence[HaUnit], captures: Sequence[HaUnit], pastes: Sequence[HaUnit], nodes: Sequence[Node]
) -> Task | None:
    capacity = {node.name: node.capacity for node in nodes}
    times_s = {pair: load / capacity[pair[1]] for pair, load in pair_loads_s(units).items()}

    def waits_s(unit: HaUnit) -> float:
        return times_s[unit.primary, unit.backup]

    # Ties go to the first name, so that the result does not depend on the order of units.
    capture = min(captures, key=lambda unit: (-waits_s(unit), -unit.redo_s / max(unit.capture_s, 1e-9), unit.name), default=None)
    paste = min(pastes, key=lambda unit: (-waits_s(unit), -unit.recovery_s, unit.name), default=None)
    if capture is not None and (paste is None or waits_s(capture) >= waits_s(paste)):
        return Task("capture", server, (capture.name,), f"{capture.backup} would recover {waits_s(capture):.3g} s for {server}")
    if paste is not None:
        return Task("paste", server, (paste.name,), f"{server} would recover {waits_s(paste):.3g} s for {paste.primary}")
    return None


def _round_robin(
    server: NodeId, captures: Sequence[HaUnit], pastes: Sequence[HaUnit], turn: RoundRobinTurn
) -> tuple[Task | None, RoundRobinTurn]:
    kinds: tuple[tuple[Literal["capture", "paste"], Sequence[HaUnit]], ...] = (("capture", captures), ("paste", pastes))
    tasks = [Task(kind, server, (unit.name,), "its turn") for kind, some in kinds for unit in some]
    if not tasks:
        return None, turn
    last = (turn.unit, turn.kind)
    # Ordered by unit, then by kind: the one after the last task, or the first of all.
    task = min(tasks, key=lambda each: ((each.units[0], each.kind) <= last, each.units[0], each.kind))
    return task, RoundRobinTurn(task.kind, task.units[0])


def _whole(server: NodeId, units: Sequence[HaUnit], config: ScheduleConfig) -> Task | None:
    received = [unit for unit in units if unit.backup == server and unit.paste_s > 0]
    if received:
        primary = min(unit.primary for unit in received)
        return Task("paste", server, tuple(unit.name for unit in received if unit.primary == primary), f"the checkpoint of {primary}")
    mine = [unit for unit in units if unit.primary == server]
    if mine and max(unit.age_s for unit in mine) >= config.interval_s:
        return Task("capture", server, tuple(unit.name for unit in mine), f"{config.interval_s:g} s since the last checkpoint")
    return None
