"""The simulator: a heap of events. The most frequent event is the tick, in which rows flow.

| event       | when             | what                                                                                 |
| ----------- | ---------------- | ------------------------------------------------------------------------------------ |
| tick        | every tick_s     | sources emit, operators process in the order of the graph, latencies are measured     |
| report      | every report_s   | an `Observation` of the last period is made; policies decide; decisions are performed |
| sample      | every sample_s   | a row of the trace is written                                                        |
| fault       | as planned       | machines die, recovery begins                                                        |
| others      | when due         | a machine has started, state has arrived, a routing switches                         |

Checkers run at every report and at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from headrace.control.decisions import Decision, MoveSlots, Nothing, ReleaseExecutors, RequestExecutors, Rescale, Shed
from headrace.control.observation import Floats, Observation
from headrace.errors import InvariantError
from headrace.ids import InputId, OperatorId, SourceId
from headrace.sim import changes
from headrace.sim.checkers import CHECKERS, Checker
from headrace.sim.flow import NO_FLOW, Flow, born, joined
from headrace.sim.model import Fault, SimulationPlan
from headrace.sim.policies import Policy, PoolPolicy
from headrace.sim.stage import SimulatedStage
from headrace.sim.trace import Trace
from headrace.sim.world import World

_WITHIN, _PARTS = np.array([-0.75, -0.25, 0.25, 0.75]), np.array([0.125, 0.375, 0.375, 0.125])
"""The difference of two random moments, each within a tick: four values in ticks, and their probabilities."""

Listener = Callable[["Simulator", Observation], None]
"""Called after every report. It may use all public members of the simulator."""


class Simulator(World):
    """One run of a plan, with the policies that control it. Call `run` once."""

    def __init__(
        self,
        plan: SimulationPlan,
        policies: Sequence[Policy] = (),
        pool: PoolPolicy | None = None,
        seed: int = 0,
        listeners: Sequence[Listener] = (),
        checkers: Sequence[Callable[[], Checker]] = CHECKERS,
    ) -> None:
        super().__init__(plan, seed)
        self.tick = 0
        self._policies, self._pool, self._listeners = policies, pool, listeners
        self._checkers = [make() for make in checkers]
        ends, depth = plan.query.ends(), plan.query.depth()
        self._ends = {name: depth[name] * self.settings.hop_s for name in ends}
        self._offered_before = self._done_before = 0.0

    def run(self) -> Trace:
        """Simulate the whole duration of the plan, and return the trace."""
        settings = self.settings
        # The order within one moment: rows flow, due events happen, the sample is taken, the policies decide.
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
        cpu_s = self.cpu_s()
        for operator in self.operators:
            stage = self.stages[operator.name]
            stage.queues.advance(self.tick)
            stage.checkpoint_due(now_s, self.machines.alive)
            flow = joined([flows[name].times(part) for name, part in operator.inputs.items()])
            noise = self._noise(stage.instances) if settings.jitter and stage.instances > 1 else None
            able = self.machines.model.network_bytes_per_s * settings.tick_s / operator.row_bytes
            out = stage.step(now_s, flow, cpu_s[operator.name], able, noise)
            flows[operator.name] = out
            if operator.name in self._ends and out is not NO_FLOW:
                self._measure_latency(out, self._ends[operator.name])

    def _emitted(self, name: str, now_s: float) -> Flow:
        if self.sources_held:
            return NO_FLOW
        rows = self.plan.query.sources[name](now_s) * self.settings.tick_s
        if self.settings.jitter:
            # A source emits the rows of all instances together. Their sum varies less than the rows of one instance.
            readers = [stage.instances for stage in self.stages.values() if name in stage.operator.inputs]
            rows *= float(self._noise(1, max(readers, default=1))[0])
        self.rows_offered[name] += rows
        return born(self.tick, rows)

    def _noise(self, entries: int, joined_from: int = 1) -> Floats:
        """Random factors with mean 1. ``settings.jitter`` is their deviation over a second for one instance; several joined vary less."""
        shape = joined_from * self.settings.tick_s / self.settings.jitter**2
        return np.asarray(self.rng.standard_gamma(shape, entries) / shape)

    def _measure_latency(self, out: Flow, way_s: float) -> None:
        sample, tick_s = self.recorder.sample, self.settings.tick_s
        ages = np.asarray(self.tick - out.ticks, dtype=np.float64)
        # A row that waited was born and left at random moments of its ticks, so its age is spread around the difference of the ticks.
        apart = _WITHIN * (ages > 0)[:, None]
        sample.add(((ages[:, None] + apart) * tick_s + way_s).ravel(), (out.amounts[:, None] * _PARTS).ravel())
        if out.old:
            sample.add(np.array([(self.tick - out.old_born / out.old) * tick_s + way_s]), np.array([out.old]))

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
        """The load since the last report. Operators that are being changed or recovered are left out, because their load is not stable."""
        period_s = self.settings.report_s
        loads = [self.load(stage, period_s) for stage in self.stages.values() if stage.operator.elastic]
        self.loads = {load.operator: load for load in loads}
        shown = tuple(load for load in loads if self._settled(self.stages[load.operator]))
        rates = {SourceId(name): rate(self.clock.now_s) for name, rate in self.plan.query.sources.items()}
        inputs: dict[OperatorId, tuple[InputId, ...]] = {
            operator.name: tuple(SourceId(name) if name in rates else OperatorId(name) for name in operator.inputs)
            for operator in self.operators
        }
        return Observation(self.clock.now_s, shown, inputs, rates)

    def _settled(self, stage: SimulatedStage) -> bool:
        return not stage.changing and bool(self.machines.alive[stage.hosts].all())

    def perform(self, decision: Decision) -> None:
        """Carry out a policy's decision, as the runtime does with Spark in real queries."""
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
        """Kill the machines that a fault names or draws."""
        changes.fail(self, self._struck(fault))

    def _struck(self, fault: Fault) -> list[int]:
        alive = self.machines.alive
        if fault.zone is not None:
            return np.flatnonzero(alive & (self.machines.zone == fault.zone)).tolist()
        if fault.machines:
            return [machine for machine in fault.machines if alive[machine]]
        hosts = self.all_hosts if fault.operator is None else self.stages[fault.operator].hosts
        hosts = np.unique(hosts[alive[hosts]])
        return sorted(self.rng.choice(hosts, min(fault.count, len(hosts)), replace=False).tolist())

    # Records.

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
