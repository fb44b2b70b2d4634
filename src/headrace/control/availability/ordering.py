"""The order in which the units of a checkpoint are shipped, by the schedules of Borealis 5.2.

A running query has one backup for all: the durable store. So its units are the instances of operators, a *capture* is the shipping of an
instance's delta, and the *paste* is the commit of the manifest that names all deltas of one version. A manifest names one version, so the
paste is one for all units, and comes last. What is left to decide is the order of the captures on each executor:

    min-max        the unit with most processing to lose per second of shipping goes first (the slowest backup is the same for all)
    round-robin    the units take turns: the unit after the one that the checkpoint before began with goes first
    whole          all units at once

If a checkpoint breaks off, the units that it has shipped count for the next one. So the order decides how much of the lost processing is
behind a capture when a checkpoint is broken off, and how much the next one has to ship. It does not change what an unbroken checkpoint
ships, or when it is durable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.control.availability.scheduling import FIRST, RoundRobinTurn, ScheduleConfig, Task, next_task
from headrace.control.availability.units import HaUnit, UnitId
from headrace.control.network import Node, NodeId

STORE = NodeId("the durable store")

Order = Mapping[NodeId, tuple[UnitId, ...]]
"""By server: its units, in the order in which it ships them."""


def shipping_order(units: Sequence[HaUnit], config: ScheduleConfig, turn: RoundRobinTurn = FIRST) -> tuple[Order, RoundRobinTurn]:
    """By server, the order of its units; and the memory of round-robin for the next checkpoint. No unit is left out.

    >>> units = [HaUnit("u", "a", STORE, redo_s=3, capture_s=1), HaUnit("v", "a", STORE, redo_s=4, capture_s=2)]
    >>> shipping_order(units, ScheduleConfig())[0]
    {'a': ('u', 'v')}
    """
    servers = sorted({unit.primary for unit in units})
    nodes = [Node(each) for each in (*servers, STORE)]
    found = {server: _of_server(server, units, nodes, config, turn) for server in servers}
    # The next checkpoint begins with the unit after the one that this one began with, on the first server.
    return {server: names for server, (names, _) in found.items()}, next((first for _, first in found.values()), turn)


def _of_server(
    server: NodeId, units: Sequence[HaUnit], nodes: Sequence[Node], config: ScheduleConfig, turn: RoundRobinTurn
) -> tuple[tuple[UnitId, ...], RoundRobinTurn]:
    """The order of a server's units, and the turn after its first unit."""
    left, found, firsts = list(units), list[UnitId](), list[RoundRobinTurn]()
    while mine := [unit for unit in left if unit.primary == server and unit.name not in found]:
        task, turn = next_task(server, left, nodes, config, turn)
        firsts.append(turn)
        # A schedule of captures may leave out what hardly changed. A checkpoint needs all units, so these come last.
        names = _captured(task) or [unit.name for unit in sorted(mine, key=lambda unit: unit.name)]
        found += names
        left = [replace(unit, redo_s=0.0, capture_s=0.0, age_s=0.0) if unit.name in names else unit for unit in left]
    return tuple(found), firsts[0]


def _captured(task: Task | None) -> list[UnitId]:
    return list(task.units) if task is not None and task.kind == "capture" else []
