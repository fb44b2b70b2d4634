"""The simulator: a heap of events, of which the most frequent is the tick that lets rows flow.

| event       | when             | what                                                                                 |
| ----------- | ---------------- | ------------------------------------------------------------------------------------ |
| tick        | every tick_s     | sources emit, operators process in the order of the graph, latencies are measured     |
| report      | every report_s   | what happened becomes an `Observation`; policies decide; decisions are performed      |
| sample      | every sample_s   | a row of the trace                                                                   |
| fault       | as planned       | machines die, recovery begins                                                        |
| others      | when they are due| machines started, state arrived, routing switched                                    |

Checkers look at every report and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.control.decisions import Decision, MoveSlots, Nothing, ReleaseExecutors, RequestExecutors, Rescale, Shed
from headrace.control.observation import Floats, Observation, OperatorLoad, Owners
from headrace.errors import InvariantError
from headrace.ids import OperatorId
from headrace.sim import changes
from headrace.sim.checkers import CHECKERS, Checker
from headrace.sim.clock import Clock
from headrace.sim.flow import NO_FLOW, Flow, born, joined
from headrace.sim.machines import Machines
from headrace.sim.model import Fault, Plan
from headrace.sim.policies import Policy, PoolPolicy
from headrace.sim.stage import Stage
from headrace.sim.trace import Event, Recorder, Trace, Violation

_WITHIN, _PARTS = np.array([-0.75, -0.25, 0.25, 0.75]), np.array([0.125, 0.375, 0.375, 0.125])

Listener = Callable[["Simulator", Observation], None]


class Simulator:
    """One run. `run` gives its trace; what is public here may be used by listeners, which see every observation."""

    def __init__(
        self,
        plan: Plan,
        policies: Sequence[Policy] = (),
        pool: PoolPolicy | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        checkers: Sequence[Callable[[], Checker]] = CHECKERS,
    ) -> None:
        self.plan, self.settings, self.seed = plan, plan.settings, seed
        self.rng = np.random.default_rng(seed)
        self.clock = Clock()
        self.machines = Machines(plan.machines, self.clock, self.rng)
        self.recorder = Recorder()
        self.tick = 0
        self.rows_offered: dict[str, float] = dict.fromkeys(plan.query.sources, 0.0)
        self.loads: dict[OperatorId, OperatorLoad] = {}
        """As last observed, of all elastic operators."""
        self._policies, self._pool, self._listeners = policies, pool, listeners
        self._checkers = [make() for make in checkers]
        self._operators = plan.query.downstream()
        self.stages: dict[OperatorId, Stage] = {}
        self._deploy()
        ends, depth = plan.query.ends(), plan.query.depth()
        self._ends = {name: depth[name] * self.settings.hop_s for name in ends}
        self._held: set[int] = set()
        self._offered_before = self._done_before = 0.0
        self.topology_changed()

    def _deploy(self) -> None:
        """The first machines: those named in the plan, then one for each other instance."""
        named = [host for hosts in self.plan.hosts.values() for host in hosts]
        self.machines.added(max(named, default=-1) + 1, ready=False)
        windowed = self.settings.recovery in ("upstream backup", "source replay")
        for operator in self._operators:
            hosts = list(self.plan.hosts.get(operator.name, ()))
            hosts = hosts or self.machines.added(self.plan.instances.get(operator.name, 1), ready=False)
            recent_s = operator.state.window_s if windowed and operator.state is not None else 0.0
            self.stages[operator.name] = Stage(operator, hosts, recent_s)
        self.machines.added(self.plan.spare, ready=True)

    def run(self) -> Trace:
        settings = self.settings
        # On one moment rows flow first, then comes what was waited for, then all is looked at.
        self.clock.every(settings.tick_s, self._tick, rank=-1)
        self.clock.every(settings.sample_s, self._sample, rank=1)
        self.clock.every(settings.report_s, self._report, rank=2)
        for fault in self.plan.faults:
            self.clock.at(fault.at_s, lambda fault=fault: self.fail(fault))  # type: ignore[misc]
        self.clock.run(self.plan.duration_s)
        self._check()
        return self.recorder.finished()

    # Rows.

    def _tick(self) -> None:
        settings, now_s = self.settings, self.clock.now_s
        self.tick += 1
        flows: dict[str, Flow] = {name: self._emitted(name, now_s) for name in self.plan.query.sources}
        cpu_s = self._cpu_s()
        for operator in self._operators:
            stage = self.stages[operator.name]
            stage.queues.advance(self.tick)
            stage.checkpoint_due(now_s, self.machines.alive)
            flow = joined([flows[name].times(part) for name, part in operator.inputs.items()])
            noise = self._noise(stage.instances) if settings.jitter and stage.instances > 1 else None
            able = self.machines.model.network_bytes_per_s * settings.tick_s / operator.row_bytes
            out = stage.step(now_s, flow, cpu_s[operator.name], able, noise)
            flows[operator.name] = out
            if operator.name in self._ends and out is not NO_FLOW:
                self._arrived(out, self._ends[operator.name])

    def _emitted(self, name: str, now_s: float) -> Flow:
        if self._held:
            return NO_FLOW
        rows = self.plan.query.sources[name](now_s) * self.settings.tick_s
        if self.settings.jitter:
            # The source's rows are those of all instances together, and so less uneven.
            readers = [stage.instances for stage in self.stages.values() if name in stage.operator.inputs]
            rows *= float(self._noise(1, max(readers, default=1))[0])
        self.rows_offered[name] += rows
        return born(self.tick, rows)

    def _noise(self, entries: int, joined_from: int = 1) -> Floats:
        """Around 1, with the deviation of the settings, or that of so many together."""
        shape = joined_from * self.settings.tick_s / self.settings.jitter**2
        return np.asarray(self.rng.standard_gamma(shape, entries) / shape)

    def _arrived(self, out: Flow, way_s: float) -> None:
        sample, tick_s = self.recorder.sample, self.settings.tick_s
        ages = np.asarray(self.tick - out.ticks, dtype=np.float64)
        # Rows that waited were born and left at any moment of their ticks: the difference of two moments, as four points.
        apart = _WITHIN * (ages > 0)[:, None]
        sample.add(((ages[:, None] + apart) * tick_s + way_s).ravel(), (out.amounts[:, None] * _PARTS).ravel())
        if out.old:
            sample.add(np.array([(self.tick - out.old_born / out.old) * tick_s + way_s]), np.array([out.old]))

    def _cpu_s(self) -> dict[OperatorId, Floats]:
        """The CPU that each instance gets in this tick: all of its machine, or a part of it by what there is to do."""
        speed = self.machines.speed * self.settings.tick_s
        if self._alone:
            return {name: speed[stage.hosts] for name, stage in self.stages.items()}
        wanted = np.concatenate([self._wanted_s(stage) for stage in self.stages.values()])
        part = wanted / np.bincount(self._all_hosts, weights=wanted, minlength=len(speed))[self._all_hosts]
        return dict(zip(self.stages, np.split(speed[self._all_hosts] * part, self._bounds), strict=True))

    def _wanted_s(self, stage: Stage) -> Floats:
        """What an instance has to do: what waits, and as much as came last. A trifle more, so that nobody gets nothing."""
        return np.asarray((stage.queues.waiting + stage.replay + stage.expected()) * stage.operator.cost_s + stage.debt_s + 1e-9)

    def topology_changed(self) -> None:
        """After instances moved: who shares a machine, and who holds backups."""
        stages = list(self.stages.values())
        self._all_hosts: Owners = np.concatenate([stage.hosts for stage in stages])
        self._bounds = np.cumsum([stage.instances for stage in stages])[:-1]
        self._sharing = np.bincount(self._all_hosts, minlength=len(self.machines.speed))
        self._alone = bool(self._sharing.max(initial=0) <= 1)
        for stage in stages:
            self._choose_holders(stage)

    def _choose_holders(self, stage: Stage) -> None:
        """Backups go to machines of other zones, spread over all of them (SEEP spreads over upstream ones, by hash)."""
        zones, hosts = self.machines.zone, self._all_hosts
        copies = min(self.settings.replicas, self.machines.model.zones - 1)
        others = [hosts[self.machines.alive[hosts] & (zones[hosts] == zone)] for zone in range(self.machines.model.zones)]
        held = np.full((stage.instances, copies), -1)
        for copy in range(copies):
            zone_of = (zones[stage.hosts] + 1 + copy) % self.machines.model.zones
            for zone, there in enumerate(others):
                mine = np.flatnonzero(zone_of == zone)
                if len(there):
                    held[mine, copy] = there[mine % len(there)]
        stage.holders = held

    def is_host(self, machine: int) -> bool:
        return any(bool((stage.hosts == machine).any()) for stage in self.stages.values())

    # Control.

    def _report(self) -> None:
        observation = self.observe()
        for stage in self.stages.values():
            stage.begin_period()
        for policy in self._policies:
            for decision in policy(observation):
                self.perform(decision)
        if self._pool is not None:
            for decision in self._pool(self.machines.observe()):
                self.perform(decision)
        for listener in self._listeners:
            listener(self, observation)
        self._check()

    def observe(self) -> Observation:
        """The period since the last report. Operators that are being changed or recovered are left out: what they show is soon over."""
        period_s = self.settings.report_s
        loads = [self._load(stage, period_s) for stage in self.stages.values() if stage.operator.elastic]
        self.loads = {load.operator: load for load in loads}
        shown = tuple(load for load in loads if self._settled(self.stages[load.operator]))
        inputs = {operator.name: tuple(OperatorId(name) for name in operator.inputs) for operator in self._operators}
        rates = {OperatorId(name): rate(self.clock.now_s) for name, rate in self.plan.query.sources.items()}
        return Observation(self.clock.now_s, shown, inputs, rates)

    def _settled(self, stage: Stage) -> bool:
        return not stage.changing and bool(self.machines.alive[stage.hosts].all())

    def _load(self, stage: Stage, period_s: float) -> OperatorLoad:
        slice_s = self.machines.speed[stage.hosts] * period_s / np.maximum(self._sharing[stage.hosts], 1)
        return stage.load(period_s, slice_s, self.machines.zone)

    def perform(self, decision: Decision) -> None:
        """What a policy decided; the runtime of real queries does the same with Spark."""
        if isinstance(decision, Nothing):
            return
        self.recorder.decisions.append((self.clock.now_s, decision))
        if isinstance(decision, Rescale | MoveSlots):
            changes.perform(self, decision)
        elif isinstance(decision, Shed):
            stage = self.stages[decision.operator]
            stage.keep[decision.instance] = decision.keep
            stage.limit()
        elif isinstance(decision, RequestExecutors):
            self.machines.request(decision.total)
        elif isinstance(decision, ReleaseExecutors):
            self.machines.give_back(decision.count)
        else:
            raise InvariantError(f"the simulator performs {type(decision).__name__}")

    # Failures.

    def fail(self, fault: Fault) -> None:
        """Let machines die."""
        changes.fail(self, self._struck(fault))

    def _struck(self, fault: Fault) -> list[int]:
        alive = self.machines.alive
        if fault.zone is not None:
            return np.flatnonzero(alive & (self.machines.zone == fault.zone)).tolist()
        if fault.machines:
            return [machine for machine in fault.machines if alive[machine]]
        hosts = self._all_hosts if fault.operator is None else self.stages[fault.operator].hosts
        hosts = np.unique(hosts[alive[hosts]])
        return sorted(self.rng.choice(hosts, min(fault.count, len(hosts)), replace=False).tolist())

    def hold_sources(self, stage: Stage) -> None:
        self._held.add(id(stage))

    def let_sources_go(self) -> None:
        self._held.clear()

    def upstream(self, stage: Stage) -> list[Stage]:
        """All operators that rows pass on their way to this one."""
        found: dict[OperatorId, Stage] = {}
        names = [OperatorId(name) for name in stage.operator.inputs]
        while names:
            name = names.pop()
            if name in self.stages and name not in found:
                found[name] = self.stages[name]
                names += [OperatorId(each) for each in self.stages[name].operator.inputs]
        return list(found.values())

    def rows_per_row(self, upstream: Stage, stage: Stage) -> float:
        """How many rows of a stage come of one row of a stage before it, as seen so far."""
        return max(stage.rows_arrived / max(upstream.rows_arrived, 1e-300), 1e-300)

    def expected_load(self, stage: Stage) -> float:
        """The part of the CPU that new rows take, from what arrives now."""
        offered = sum(rate(self.clock.now_s) for rate in self.plan.query.sources.values())
        rows = offered * stage.rows_arrived / max(sum(self.rows_offered.values()), 1e-300)
        return rows * stage.operator.cost_s / (self.machines.model.capacity * stage.instances)

    # Records.

    def note(self, what: str, stage: Stage, value: float = 0.0) -> None:
        self.recorder.events.append(Event(self.clock.now_s, what, stage.operator.name, value))

    def violate(self, checker: str, what: str) -> None:
        self.recorder.violations.append(Violation(self.clock.now_s, checker, what))

    def _check(self) -> None:
        for checker in self._checkers:
            checker(self)

    def _sample(self) -> None:
        now_s, sample_s = self.clock.now_s, self.settings.sample_s
        for stage in self.stages.values():
            stage.look_at_keys(now_s)
            stage.forget_second(int(now_s))
        offered, done = sum(self.rows_offered.values()), sum(self.stages[name].rows_done for name in self._ends)
        stages = self.stages.values()
        figures = {
            "at_s": now_s,
            "rows_in_per_s": (offered - self._offered_before) / sample_s,
            "rows_out_per_s": (done - self._done_before) / sample_s,
            "rows_waiting": float(sum(stage.queues.waiting.sum() for stage in stages)),
            "rows_discarded": sum(stage.rows_discarded for stage in stages),
            "working": float(len(self.machines.working)),
            "ready": float(len(self.machines.ready)),
            "starting": float(self.machines.starting),
        }
        self._offered_before, self._done_before = offered, done
        for stage in stages:
            figures[f"instances.{stage.operator.name}"] = float(stage.instances)
            figures[f"waiting.{stage.operator.name}"] = float(stage.queues.waiting.sum())
        self.recorder.sampled(figures)
