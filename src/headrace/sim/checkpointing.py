"""Servers that back each other up in small units (Borealis 5.2), simulated task by task: recovery time and intrusion (Fig. 9).

A *capture* checkpoints a unit on its primary server; a *paste* applies the checkpoint on the backup server. Tuples take a part of the CPU,
and these tasks use the rest. A task is not interrupted: tuples wait until it ends, and the server then catches up.

    backlog of tuples          /\\                         a task of length L at load rho: the server is idle again after
                              /   `--.__                   L / (1 - rho). At r tuples per second, all tuples together wait
                     --------/          `---------         r L^2 / (2 (1 - rho)) seconds, so long tasks delay tuples most
                             | task | catching up |

Unlike in the paper, state is not simulated tuple by tuple. The length of a capture depends on the work done since the last one: the share
of dirty groups of an aggregate approaches 1 exponentially (delta checkpointing).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.control.availability.backups import BackupConfig, reassign
from headrace.control.availability.scheduling import FIRST, RoundRobinTurn, ScheduleConfig, Task, next_task
from headrace.control.availability.units import HaUnit, UnitId, recovery_times_s
from headrace.control.network import Node, NodeId, expect
from headrace.ids import OperatorId
from headrace.sim.clock import SimulatedClock
from headrace.sim.workload import Rate


@dataclass(frozen=True)
class Aggregates:
    """The cluster of Fig. 9: ``servers`` servers with ``units`` aggregates each. Every aggregate is a unit."""

    servers: int = 5
    units: int = 16
    load: Rate = field(default=lambda at_s: 0.6)
    """The share of every server's CPU that tuples take, over time."""
    capture_s: tuple[float, float] = (0.02, 0.06)
    """Time to capture a whole unit: the range from the smallest unit to the largest."""
    overhead_s: float = 0.005
    """Time that every capture takes at least: a message and its acknowledgement."""
    dirty_per_s: float = 3.0
    """How fast groups get dirty: after a second of processing, a share of 1 - exp(-3) is dirty."""
    skew: float = 0.7
    """How evenly the load is spread over the units of a server. The smaller, the more load a few units have."""
    one_backup: bool = False
    """True if all units of a server start with the same backup server; False if they take the other servers in turn."""

    def __post_init__(self) -> None:
        expect(self.servers > 1 and self.units > 0, "Aggregates", "two servers or more with units", (self.servers, self.units))


@dataclass
class _Unit:
    """A unit as it changes during the simulation."""

    name: UnitId
    primary: NodeId
    backup: NodeId
    share: float
    size_s: float
    captured_s: float = 0.0
    """When it was last captured."""
    redo_s: float = 0.0
    """CPU time of the tuples since the last capture. They would be processed again after a failure."""
    paste_s: float = 0.0
    """Time to paste all captured messages, at most the time for the whole state."""


@dataclass(frozen=True)
class Checkpointed:
    """The result of a run, with one entry per sample."""

    at_s: np.ndarray
    recovery_s: np.ndarray
    """The recovery time of the worst failure, if it happened at that moment."""
    waited_s: np.ndarray
    """The mean time that a tuple waited for tasks, since the sample before."""
    task_s_max: float
    tasks: int
    reassigned: int


class CheckpointingServers:
    """Servers that capture and paste units while they are idle, as a schedule decides."""

    def __init__(self, about: Aggregates, config: ScheduleConfig, seed: int = 0, backups: BackupConfig | None = None) -> None:
        self.about, self.config, self.backups = about, config, backups
        self.clock = SimulatedClock()
        self.nodes = [Node(NodeId(f"s{at}")) for at in range(about.servers)]
        self._units = self._deployed(np.random.default_rng(seed))
        self._turns: dict[NodeId, RoundRobinTurn] = {node.name: FIRST for node in self.nodes}
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
        """Simulate for a time. Redo work grows in every step, and a server without a task looks for one again after a step."""
        rows: list[tuple[float, float, float]] = []

        def sample() -> None:
            rows.append((self.clock.now_s, max(recovery_times_s(self.units(), self.nodes).values()), self._waited))
            # The next sample counts only waiting from now on.
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
        # Tuples hit random groups. The more groups are dirty already, the fewer a tuple makes dirty.
        capture_s = self.about.overhead_s + unit.size_s * -math.expm1(-self.about.dirty_per_s * unit.redo_s)
        return HaUnit(unit.name, unit.primary, unit.backup, unit.redo_s, capture_s, unit.paste_s, self.clock.now_s - unit.captured_s)

    def _grow(self) -> None:
        """Add the work since the last step to what a failure would cost."""
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
                # Tuples that were processed during the capture are not in the message.
                unit.redo_s = max(unit.redo_s - before.redo_s, 0.0)
                unit.captured_s = self.clock.now_s
                unit.paste_s = min(self.about.overhead_s + unit.size_s, unit.paste_s + before.capture_s)

    def _reassign(self) -> None:
        """Change backup servers as the policy decides. A new backup has no state, so the whole state must be pasted."""
        for change in reassign(self.units(), self.nodes, self.backups):
            unit = self._units[change.unit]
            unit.backup, unit.paste_s = change.target, self.about.overhead_s + unit.size_s
            self._reassigned += 1
