"""The state of a simulation: clock, machines, operators with their instances, and the record of what happened.

`World` knows no policies, faults or checkers. `changes` moves slots and instances in it, `checkers` inspect it, and `simulator` lets time
pass.

    World ──> clock, machines, stages (one per operator), recorder
      ^
      └── changes, checkers ──> simulator (ticks, reports, faults)
"""

from __future__ import annotations

import numpy as np

from headrace.control.observation import Floats, OperatorLoad, Owners
from headrace.ids import OperatorId
from headrace.sim.clock import SimulatedClock
from headrace.sim.machines import Machines
from headrace.sim.model import SimulationPlan
from headrace.sim.stage import SimulatedStage
from headrace.sim.trace import Event, Recorder, Violation


class World:
    """A query deployed on simulated machines, at one moment of simulated time."""

    def __init__(self, plan: SimulationPlan, seed: int) -> None:
        self.plan, self.settings, self.seed = plan, plan.settings, seed
        self.rng = np.random.default_rng(seed)
        self.clock = SimulatedClock()
        self.machines = Machines(plan.machines, self.clock, self.rng)
        self.recorder = Recorder()
        self.rows_offered: dict[str, float] = dict.fromkeys(plan.query.sources, 0.0)
        """Rows that each source has emitted so far."""
        self.loads: dict[OperatorId, OperatorLoad] = {}
        """The last observation of every elastic operator."""
        self.operators = plan.query.downstream()
        self.stages: dict[OperatorId, SimulatedStage] = {}
        self.sources_held: set[int] = set()
        """Stages that replay from the source; the sources emit nothing new meanwhile."""
        self._deploy()
        self.topology_changed()

    def _deploy(self) -> None:
        """Place the first instances: on the machines that the plan names, or on one new machine each."""
        named = [host for hosts in self.plan.hosts.values() for host in hosts]
        self.machines.added(max(named, default=-1) + 1, ready=False)
        windowed = self.settings.recovery in ("upstream backup", "source replay")
        for operator in self.operators:
            hosts = list(self.plan.hosts.get(operator.name, ()))
            hosts = hosts or self.machines.added(self.plan.instances.get(operator.name, 1), ready=False)
            recent_s = operator.state.window_s if windowed and operator.state is not None else 0.0
            self.stages[operator.name] = SimulatedStage(operator, hosts, recent_s)
        self.machines.added(self.plan.spare, ready=True)

    # Where instances live.

    def topology_changed(self) -> None:
        """Recompute who shares a machine and who holds backups. Call it after instances have moved."""
        stages = list(self.stages.values())
        self.all_hosts: Owners = np.concatenate([stage.hosts for stage in stages])
        self._bounds = np.cumsum([stage.instances for stage in stages])[:-1]
        self._sharing = np.bincount(self.all_hosts, minlength=len(self.machines.speed))
        self._alone = bool(self._sharing.max(initial=0) <= 1)
        for stage in stages:
            self._choose_holders(stage)

    def _choose_holders(self, stage: SimulatedStage) -> None:
        """Backups go to machines of other zones, spread over all of them (SEEP spreads over upstream machines, by hash)."""
        zones, hosts = self.machines.zone, self.all_hosts
        count = self.machines.model.zones
        copies = min(self.settings.replicas, count - 1)
        living = [hosts[self.machines.alive[hosts] & (zones[hosts] == zone)] for zone in range(count)]
        held = np.full((stage.instances, copies), -1)
        for zone in range(count):
            mine = np.flatnonzero(zones[stage.hosts] == zone)
            # The next zones that have a machine. A zone without one is passed over.
            others = [living[(zone + step) % count] for step in range(1, count) if len(living[(zone + step) % count])]
            for copy, there in enumerate(others[:copies]):
                held[mine, copy] = there[mine % len(there)]
        stage.holders = held

    def is_host(self, machine: int) -> bool:
        """True if an instance lives on this machine."""
        return any(bool((stage.hosts == machine).any()) for stage in self.stages.values())

    def cpu_s(self) -> dict[OperatorId, Floats]:
        """CPU seconds that each instance gets in this tick: its whole machine, or a share of it in proportion to its work."""
        speed = self.machines.speed * self.settings.tick_s
        if self._alone:
            return {name: speed[stage.hosts] for name, stage in self.stages.items()}
        wanted = np.concatenate([self._wanted_s(stage) for stage in self.stages.values()])
        part = wanted / np.bincount(self.all_hosts, weights=wanted, minlength=len(speed))[self.all_hosts]
        return dict(zip(self.stages, np.split(speed[self.all_hosts] * part, self._bounds), strict=True))

    def _wanted_s(self, stage: SimulatedStage) -> Floats:
        """CPU seconds of work per instance: waiting rows, rows to replay, checkpoints, and as many new rows as in the last tick.

        A tiny amount is added, so that an instance without work gets some CPU too.
        """
        return np.asarray((stage.queues.waiting + stage.replay + stage.expected()) * stage.operator.cost_s + stage.debt_s + 1e-9)

    def load(self, stage: SimulatedStage, period_s: float) -> OperatorLoad:
        """A stage's last period as policies see it. Instances that share a machine have an equal slice of its CPU."""
        slice_s = self.machines.speed[stage.hosts] * period_s / np.maximum(self._sharing[stage.hosts], 1)
        return stage.load(period_s, slice_s, self.machines.zone)

    # The graph.

    def upstream(self, stage: SimulatedStage) -> list[SimulatedStage]:
        """All operators that rows pass on their way to this one."""
        found: dict[OperatorId, SimulatedStage] = {}
        names = [OperatorId(name) for name in stage.operator.inputs]
        while names:
            name = names.pop()
            if name in self.stages and name not in found:
                found[name] = self.stages[name]
                names += [OperatorId(each) for each in self.stages[name].operator.inputs]
        return list(found.values())

    def rows_per_row(self, upstream: SimulatedStage, stage: SimulatedStage) -> float:
        """How many rows reach a stage per row that reached an upstream stage, so far."""
        return max(stage.rows_arrived / max(upstream.rows_arrived, 1e-300), 1e-300)

    def expected_load(self, stage: SimulatedStage) -> float:
        """The share of its CPU that a stage needs for new rows, at the sources' current rates."""
        offered = sum(rate(self.clock.now_s) for rate in self.plan.query.sources.values())
        rows = offered * stage.rows_arrived / max(sum(self.rows_offered.values()), 1e-300)
        return rows * stage.operator.cost_s / (self.machines.model.capacity * stage.instances)

    def hold_sources(self, stage: SimulatedStage) -> None:
        """Stop new rows while this stage replays from the source."""
        self.sources_held.add(id(stage))

    def release_sources(self) -> None:
        """Let the sources emit again."""
        self.sources_held.clear()

    # Records.

    def note(self, what: str, stage: SimulatedStage, value: float = 0.0) -> None:
        """Record an event of a stage in the trace."""
        self.recorder.events.append(Event(self.clock.now_s, what, stage.operator.name, value))

    def violate(self, checker: str, what: str) -> None:
        """Record a violated invariant in the trace."""
        self.recorder.violations.append(Violation(self.clock.now_s, checker, what))
