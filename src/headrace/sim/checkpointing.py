"""Servers that back each other up in small units (Borealis 5.2), simulated task by task: recovery time and intrusion (Fig. 9).

Every server processes tuples with a part of its CPU, and what is left goes to captures and pastes. A task is not interrupted: meanwhile
tuples wait, and after it the server catches up before it is idle again.

    backlog of tuples          /\\                         a task of length L at a load of rho: the server is idle again after
                              /   `--.__                   L / (1 - rho); the tuples that come in that time wait, all together,
                     --------/          `---------         L^2 / (2 (1 - rho)) seconds per tuple and second: long tasks hurt most
                             | task | catching up |

Where it departs from the paper: state is not simulated tuple by tuple. What a capture takes follows what was processed since the last
one: groups of an aggregate get dirty ever more slowly, up to all of them (delta checkpointing).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.control.availability.backups import BackupConfig, reassign
from headrace.control.availability.scheduling import FIRST, ScheduleConfig, Task, Turn, next_task
from headrace.control.availability.units import HaUnit, UnitId, recovery_times_s
from headrace.control.network import Node, NodeId, expect
from headrace.ids import OperatorId
from headrace.sim.clock import Clock
from headrace.sim.workload import Rate


@dataclass(frozen=True)
class Aggregates:
    """The cluster of Fig. 9: so many servers with so many aggregates each; every aggregate is a unit."""

    servers: int = 5
    units: int = 16
    load: Rate = field(default=lambda at_s: 0.6)
    """Of every server: the part of its CPU that tuples take."""
    capture_s: tuple[float, float] = (0.02, 0.06)
    """What it takes to capture a whole unit, from the smallest to the largest."""
    overhead_s: float = 0.005
    """What any capture takes, however little has changed: a message, and its acknowledgement."""
    dirty_per_s: float = 3.0
    """How quickly groups get dirty: after a second of processing 1 - exp(-3) of them are."""
    skew: float = 0.7
    """Of the units of a server; the smaller, the more of the load a few of them have."""
    one_backup: bool = False
    """Whether all units of a server have the same backup at first, or the others in turn."""

    def __post_init__(self) -> None:
        expect(self.servers > 1 and self.units > 0, "Aggregates", "two servers or more with units", (self.servers, self.units))


@dataclass
class _Unit:
    name: UnitId
    primary: NodeId
    backup: NodeId
    share: float
    size_s: float
    captured_s: float = 0.0
    """When."""
    redo_s: float = 0.0
    paste_s: float = 0.0
    """What captured messages take to paste; together they are never more than the whole state."""


@dataclass(frozen=True)
class Checkpointed:
    """What was seen."""

    at_s: np.ndarray
    recovery_s: np.ndarray
    """At each moment, the time that the worst failure would take."""
    waited_s: np.ndarray
    """In the time up to each moment, what a tuple waited for tasks on average."""
    task_s_max: float
    tasks: int
    reassigned: int


class Cluster:
    def __init__(self, about: Aggregates, config: ScheduleConfig, seed: int = 0, backups: BackupConfig | None = None) -> None:
        self.about, self.config, self.backups = about, config, backups
        self.clock = Clock()
        self.nodes = [Node(NodeId(f"s{at}")) for at in range(about.servers)]
        self._units = self._deployed(np.random.default_rng(seed))
        self._turns: dict[NodeId, Turn] = {node.name: FIRST for node in self.nodes}
        self._grown_s = self._waited = self._task_s_max = 0.0
        self._tasks = self._reassigned = 0

    def _deployed(self, rng: np.random.Generator) -> dict[UnitId, _Unit]:
        found = {}
        count = self.about.servers
        for server in range(count):
            shares = rng.dirichlet(np.full(self.about.units, self.about.skew))
            for at in range(self.about.units):
                backup = (server + 1 + (0 if self.about.one_backup else at % (count - 1))) % count
                name = UnitId(OperatorId(f"s{server}.{at:02}"))
                size_s = float(rng.uniform(*self.about.capture_s))
                found[name] = _Unit(name, NodeId(f"s{server}"), NodeId(f"s{backup}"), float(shares[at]), size_s)
        return found

    def run(self, duration_s: float, sample_s: float = 1.0, step_s: float = 0.05) -> Checkpointed:
        """Loads are looked at every step; a server that found nothing to do looks again then."""
        rows: list[tuple[float, float, float]] = []

        def sample() -> None:
            rows.append((self.clock.now_s, max(recovery_times_s(self.units(), self.nodes).values()), self._waited))
            # Per tuple: of all servers, and of the time since the last sample.
            self._waited = 0.0

        self.clock.every(step_s, self._grow)
        self.clock.every(sample_s, sample)
        for node in self.nodes:
            self.clock.after(step_s, lambda name=node.name: self._idle(name, step_s))  # type: ignore[misc]
        if self.backups is not None:
            self.clock.every(10 * sample_s, self._reassign)
        self.clock.run(duration_s)
        at_s, recovery_s, waited = (np.array(column) for column in zip(*rows, strict=True))
        return Checkpointed(at_s, recovery_s, waited / (sample_s * self.about.servers), self._task_s_max, self._tasks, self._reassigned)

    def units(self) -> list[HaUnit]:
        return [self._seen(unit) for unit in self._units.values()]

    def _seen(self, unit: _Unit) -> HaUnit:
        # Groups get dirty one by one, and more and more of those that a tuple falls into are dirty already.
        capture_s = self.about.overhead_s + unit.size_s * -math.expm1(-self.about.dirty_per_s * unit.redo_s)
        return HaUnit(unit.name, unit.primary, unit.backup, unit.redo_s, capture_s, unit.paste_s, self.clock.now_s - unit.captured_s)

    def _grow(self) -> None:
        """What was processed since the last step would have to be done again."""
        now_s = self.clock.now_s
        work_s = self.about.load(now_s) * (now_s - self._grown_s)
        self._grown_s = now_s
        for unit in self._units.values():
            unit.redo_s += unit.share * work_s

    def _idle(self, server: NodeId, step_s: float) -> None:
        mine = [self._seen(unit) for unit in self._units.values() if server in (unit.primary, unit.backup)]
        task, self._turns[server] = next_task(server, mine, self.nodes, self.config, self._turns[server])
        if task is None:
            self.clock.after(step_s, lambda: self._idle(server, step_s))
            return
        seen = {unit.name: unit for unit in mine}
        length_s = sum(seen[name].capture_s if task.kind == "capture" else seen[name].paste_s for name in task.units)
        load = min(self.about.load(self.clock.now_s), 0.99)
        self._tasks += 1
        self._task_s_max = max(self._task_s_max, length_s)
        self._waited += length_s**2 / (2 * (1 - load))
        self.clock.after(length_s, lambda: self._finish(task, [seen[name] for name in task.units]))
        self.clock.after(length_s / (1 - load), lambda: self._idle(server, step_s))

    def _finish(self, task: Task, began: Sequence[HaUnit]) -> None:
        for before in began:
            unit = self._units[before.name]
            if task.kind == "paste":
                unit.paste_s = max(unit.paste_s - before.paste_s, 0.0)
            else:
                # What was processed meanwhile is not in the message.
                unit.redo_s = max(unit.redo_s - before.redo_s, 0.0)
                unit.captured_s = self.clock.now_s
                unit.paste_s = min(self.about.overhead_s + unit.size_s, unit.paste_s + before.capture_s)

    def _reassign(self) -> None:
        """A new backup begins with nothing: the whole state has to be pasted."""
        for change in reassign(self.units(), self.nodes, self.backups):
            unit = self._units[change.unit]
            unit.backup, unit.paste_s = change.target, self.about.overhead_s + unit.size_s
            self._reassigned += 1
