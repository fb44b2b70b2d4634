"""A small model of a query that runs in micro-batches. It reports progress as a real one does, and does what a policy decides."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headrace.control.batch_report import sources_of
from headrace.control.decisions import MoveSlots, Rescale
from headrace.control.elastic import Elastic
from headrace.control.governor import Entry, Governor, Outcome, entry_of, logged
from headrace.control.observing import Batch, observe
from headrace.ids import SLOTS, OperatorId
from headrace.runtime.autoscale import decided
from headrace.runtime.progress import BatchProgress, Waiting
from headrace.runtime.reports import InstanceReport
from headrace.state.manifest import Manifest
from headrace.state.routing import Routing
from headrace.state.run import RunRef

NAME = OperatorId("sum")
STRIDE = 64
"""One slot in so many has rows; more would only cost time."""


@dataclass
class Engine:
    """One operator. A batch takes what has come, or a portion of it; what it does besides the instances' work takes ``overhead_s``."""

    rate: Callable[[float], float]
    trigger_s: float = 0.0
    overhead_s: float = 0.3
    task_s: float = 0.02
    row_s: float = 20e-6
    portion: float | None = None
    noise: float = 0.1
    cores: int = 64
    routing: Routing = field(default_factory=lambda: Routing.even(1))
    now_s: float = 0.0
    begun_s: float = -1e9
    came: float = 0.0
    left: float = 0.0
    version: int = 0
    record: list[BatchProgress] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    weights: Any = field(default_factory=lambda: (np.arange(SLOTS) % STRIDE == 0) * STRIDE / SLOTS)

    def wait(self, seconds: float) -> None:
        steps = max(1, int(seconds / 0.1))
        for _ in range(steps):
            self.came += self.rate(self.now_s) * seconds / steps
            self.now_s += seconds / steps

    def batch(self) -> BatchProgress:
        """Run one batch."""
        self.wait(max(0.0, self.begun_s + self.trigger_s - self.now_s))
        while self.came < 1:
            self.wait(0.05)
        waited = self.left
        self.begun_s = self.now_s
        rows = self.came if self.portion is None else min(self.came, self.portion)
        self.came -= rows
        per_slot = self.random.multinomial(round(rows), self.weights)
        of = np.bincount(self.routing.table(), weights=per_slot, minlength=self.routing.instances)
        jitter = 1 + self.noise * self.random.uniform(-1, 1, len(of))
        busy = (self.task_s + of * self.row_s) * jitter
        self.wait(self.overhead_s * (1 + self.noise * self.random.uniform(-1, 1)) + max(busy.max(), busy.sum() / self.cores))
        # What was there when the batch before ended and is there still.
        rows_left = max(0.0, waited - rows)
        self.left = self.came
        progress = BatchProgress(
            version=self.version,
            times_s=(self.begun_s, self.now_s, self.begun_s),
            replayed=False,
            routing={NAME: self.routing},
            phases_ms={},
            reports={NAME: [self.report(at, of[at], busy[at], per_slot) for at in range(len(of))]},
            manifest=Manifest(self.version, "7x1a2b3c4d", {}),
            readers=(NAME,),
            changes=(),
            backlog=Waiting(rows_left=round(rows_left)),
            inputs={NAME: (sources_of(NAME),)},
            trigger_s=self.trigger_s,
        )
        self.version += 1
        self.record.append(progress)
        return progress

    @property
    def lines(self) -> list[str]:
        """The progress as a user would have recorded it."""
        return [json.dumps({"batchId": progress.version, "headrace": progress.headrace()}) for progress in self.record]

    def report(self, at: int, rows: float, busy_s: float, per_slot: Any) -> InstanceReport:
        mine = np.flatnonzero((self.routing.table() == at) & (per_slot > 0))
        return InstanceReport(
            instance=at,
            operator=NAME,
            runs={NAME: (RunRef(f"{self.version}-{at}", bytes=1000, crc=0, rows=10, seq=self.version),)},
            rows=int(rows),
            rows_out=int(rows) // 10,
            rows_per_slot=tuple((int(slot), int(per_slot[slot])) for slot in mine),
            wall_s=float(busy_s),
            host="here",
        )


@dataclass
class Scaled:
    """An engine under a policy: what the autoscaler does, without its thread."""

    engine: Engine
    settings: Elastic
    batches: list[Batch] = field(default_factory=list)
    log: tuple[Entry, ...] = ()
    seen: list[tuple[float, int, float]] = field(default_factory=list)
    """Per observation: when, instances, average utilisation."""

    def run(self, seconds: float) -> Scaled:
        """Run for this many seconds."""
        policy, governor = self.settings.on(self.engine.cores).chosen(), Governor(self.settings)
        memory, end_s = policy.first, self.engine.now_s + seconds
        while self.engine.now_s < end_s:
            self.batches = [*self.batches[-200:], Batch.of(self.engine.batch().report())]
            at_s = self.batches[-1].end_s
            observation = observe(self.batches, at_s, self.settings.period_s)
            if observation is None:
                continue
            count = self.engine.routing.instances
            self.seen.append((at_s, count, float(observation.operators[0].cpu.mean())))
            decisions, memory = policy.decide(observation, memory)
            for decision in decisions:
                outcome = governor.judge(decision, at_s)
                self.log = logged(self.log, entry_of(decision, outcome, count, at_s))
                if outcome is Outcome.PERFORMED and isinstance(decision, Rescale | MoveSlots):
                    governor = governor.changed(decision.operator, at_s)
                    before, work = self.engine.routing, observation.operators[0].rows_per_slot
                    self.engine.routing = decided(before, decision, before.epoch, lambda n, r=before, w=work: r.rescaled(n, w))
        return self

    @property
    def changes(self) -> list[Entry]:
        return [entry for entry in self.log if entry.outcome is Outcome.PERFORMED]
