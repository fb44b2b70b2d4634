"""One simulated operator: an array per quantity, with an entry for each instance.

In a tick each instance gets some CPU. It is spent on checkpoints first, then on replayed rows, then on waiting rows. Replayed rows cost
CPU but yield no new rows: their results were sent before, and downstream drops them by their timestamps (SEEP 3.2).
"""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from headrace.control.observation import Flags, Floats, OperatorLoad, Owners, loads_of
from headrace.errors import require
from headrace.ids import SLOTS
from headrace.sim.flow import Flow, Queues
from headrace.sim.model import Operator

GOLDEN = 0.6180339887498949
"""Moments of checkpoints, as parts of the interval, are spread evenly by multiples of this, however many instances there are."""


class Stage:
    def __init__(self, operator: Operator, hosts: list[int], recent_s: float = 0.0) -> None:
        instances = len(hosts)
        self.operator = operator
        self.owners: Owners = np.arange(SLOTS) * instances // SLOTS
        self.hosts: Owners = np.array(hosts, dtype=np.int64)
        self.queues = Queues(instances)
        self.weights: Floats = operator.keys(0.0)
        self.replay: Floats = np.zeros(instances)
        """Rows that are to be processed once more."""
        self.since: Floats = np.zeros(instances)
        """Rows processed since the last checkpoint: what the buffers upstream hold."""
        self.debt_s: Floats = np.zeros(instances)
        """CPU that checkpoints still take."""
        self.paused_until_s: Floats = np.zeros(instances)
        self.keep: Floats = np.ones(instances)
        """What part of its rows an instance keeps; the rest is shed."""
        self.holders: Owners = np.full((instances, 0), -1)
        """Per instance, the machines with backups of its state; -1 for none."""
        self.changing = False
        """Whether slots are about to change hands."""
        self.interleave = 0.0
        """The part of CPU that new rows get beside replayed ones; 0 if those go first."""
        self.state_bytes: Floats = np.zeros(SLOTS)
        self.rows_arrived = self.rows_done = self.rows_discarded = self.rows_out = 0.0
        self._arrived_last = 0.0
        self._checkpointed_s = self._phases(0.0, 0, instances)
        self._recent = np.zeros((math.ceil(recent_s), instances))
        self._grown: Floats = np.zeros(instances)
        self._paused, self._due_s = False, math.inf
        self._routed()
        self.begin_period()

    @property
    def instances(self) -> int:
        return len(self.hosts)

    # The flow of rows.

    def step(self, now_s: float, flow: Flow, cpu_s: Floats, network_rows: float, noise: Floats | None) -> Flow:
        """One tick: rows arrive, rows are processed; what comes out."""
        self._arrive(flow, noise)
        if self._paused:
            cpu_s = np.where(self.paused_until_s <= now_s, cpu_s, 0.0)
            self._paused = bool((self.paused_until_s > now_s).any())
        offered_s = cpu_s
        if self._indebted:
            cpu_s = self._pay(cpu_s)
        if self._replaying:
            cpu_s = self._replayed(cpu_s)
        done, taken = self.queues.take(np.minimum(cpu_s / self.operator.cost_s, network_rows))
        self._done += done
        self.since += done
        self._used_s += done * self.operator.cost_s if cpu_s is offered_s else (offered_s - cpu_s) + done * self.operator.cost_s
        total = float(done.sum())
        self.rows_done += total
        self.rows_out += total * self.operator.selectivity
        if len(self._recent):
            self._recent[int(now_s) % len(self._recent)] += done
        return taken.times(self.operator.selectivity)

    def _arrive(self, flow: Flow, noise: Floats | None) -> None:
        self._arrived_last = total = flow.total
        if total <= 0:
            return
        shares = self._shares
        if noise is not None and len(shares) > 1:
            shares = shares * noise
            shares = shares / shares.sum()
        self.rows_arrived += total
        self._offered += total
        if self._limited:
            kept = shares * self.keep
            room = np.maximum(self.operator.queue_rows_max - self.queues.waiting, 0.0)
            kept = np.minimum(kept, room / total)
            self.rows_discarded += total * float(shares.sum() - kept.sum())
            shares = kept
        self.queues.add(flow, total, shares)

    def _pay(self, cpu_s: Floats) -> Floats:
        paid = np.minimum(self.debt_s, cpu_s)
        self.debt_s = self.debt_s - paid
        self._indebted = bool(self.debt_s.any())
        return cpu_s - paid

    def _replayed(self, cpu_s: Floats) -> Floats:
        able = cpu_s * np.where(self.replay > 0, 1.0 - self.interleave, 1.0) / self.operator.cost_s
        done = np.minimum(self.replay, able)
        self.replay = np.where(self.replay - done < 1e-9, 0.0, self.replay - done)
        self._replaying = bool(self.replay.any())
        return cpu_s - done * self.operator.cost_s

    def replay_more(self, rows: Floats) -> None:
        self.replay = self.replay + rows
        self._replaying = bool(self.replay.any())

    def pause(self, instances: Owners, until_s: float) -> None:
        self.paused_until_s[instances] = until_s
        self._paused = True

    def owe(self, cpu_s: Floats) -> None:
        self.debt_s = self.debt_s + cpu_s
        self._indebted = bool(self.debt_s.any())

    def expected(self) -> Floats:
        """Rows of the next tick, per instance, if as many come as in the last one."""
        return self._shares * self._arrived_last

    # State and checkpoints.

    def grow_state(self) -> None:
        """State as of now, from the rows that were processed since this was last called."""
        state = self.operator.state
        if state is not None and state.bytes_per_row:
            grown = self.state_bytes + state.bytes_per_row * self._per_slot(self._done - self._grown)
            self.state_bytes = np.minimum(grown, state.bytes_max * np.maximum(self.weights, 1e-12))
        self._grown = self._done.copy()

    def checkpoint_due(self, now_s: float, alive: Flags) -> None:
        """Checkpoints of instances whose time has come and who are at work: the buffers upstream are trimmed."""
        state = self.operator.state
        if now_s < self._due_s or state is None:
            return
        due = (now_s - self._checkpointed_s >= state.checkpoint_s) & (self.replay == 0) & alive[self.hosts]
        if due.any():
            self.grow_state()
            self.owe(due * self.per_instance(self.state_bytes) * state.checkpoint_cpu_s_per_byte)
            self.since = np.where(due, 0.0, self.since)
            self._checkpointed_s = np.where(due, now_s, self._checkpointed_s)
        self._due_s = float(self._checkpointed_s.min()) + state.checkpoint_s

    def forget_second(self, second: int) -> None:
        """A new second of what was processed lately begins."""
        if len(self._recent):
            self._recent[second % len(self._recent)] = 0.0

    def recent(self) -> Floats:
        """Rows of the last window, per instance: what upstream backup has to replay."""
        return np.asarray(self._recent.sum(axis=0))

    # Routing.

    def reroute(self, now_s: float, owners: Owners, hosts: list[int]) -> None:
        """Slots get other owners, and what belongs to them goes along."""
        require(len(owners) == SLOTS and owners.min() >= 0 and owners.max() < len(hosts), "every slot goes to an instance that is there")
        self.grow_state()
        parts = self.parts_to(owners, len(hosts))
        self.queues.rerouted(parts, len(hosts))
        for name in ("replay", "since", "_done", "_used_s"):
            setattr(self, name, parts.T @ getattr(self, name))
        self._grown = self._done.copy()
        self._recent = np.asarray((parts.T @ self._recent.T).T).reshape(len(self._recent), len(hosts))
        before, after = self.instances, len(hosts)
        for name, fresh in (("debt_s", 0.0), ("paused_until_s", 0.0), ("keep", 1.0)):
            setattr(self, name, _resized(getattr(self, name), after, fresh))
        self._checkpointed_s = np.r_[self._checkpointed_s[:after], self._phases(now_s, before, after)]
        self.holders = np.r_[self.holders[:after], np.full((max(0, after - before), self.holders.shape[1]), -1)]
        self.owners, self.hosts = owners, np.array(hosts, dtype=np.int64)
        self._routed()

    def move_to(self, instance: int, machine: int) -> None:
        """An instance lives elsewhere from now on, with all that is its own."""
        self.hosts[instance] = machine

    def parts_to(self, owners: Owners, instances: int) -> sparse.csr_array:
        """The part of each instance's rows that each of the new ones gets, by the weight of the slots."""
        weights = self.weights + 1e-15
        values = weights / loads_of(self.owners, weights, self.instances)[self.owners]
        return sparse.csr_array(sparse.coo_array((values, (self.owners, owners)), shape=(self.instances, instances)))

    def look_at_keys(self, now_s: float) -> None:
        if self.operator.keys_change:
            self.weights = self.operator.keys(now_s)
            self._routed()

    def _routed(self) -> None:
        self._shares = self.per_instance(self.weights)
        self._replaying, self._indebted = bool(self.replay.any()), bool(self.debt_s.any())
        self._paused = True
        state = self.operator.state
        self._due_s = math.inf if state is None else float(self._checkpointed_s.min()) + state.checkpoint_s
        self.limit()

    def limit(self) -> None:
        """After a change of what is kept."""
        self._limited = math.isfinite(self.operator.queue_rows_max) or bool((self.keep < 1).any())

    def _phases(self, now_s: float, first: int, last: int) -> Floats:
        """For new instances a last checkpoint, so that not all of them make one at the same time."""
        state = self.operator.state
        interval_s = state.checkpoint_s if state is not None and math.isfinite(state.checkpoint_s) else 0.0
        return np.asarray(now_s - interval_s * (1.0 - np.arange(first, last) * GOLDEN % 1.0), dtype=np.float64)

    def per_instance(self, per_slot: Floats) -> Floats:
        return loads_of(self.owners, per_slot, self.instances)

    def _per_slot(self, per_instance: Floats) -> Floats:
        weights = self.weights + 1e-15
        per_weight: Floats = per_instance / np.maximum(loads_of(self.owners, weights, self.instances), 1e-300)
        per_slot: Floats = weights * per_weight[self.owners]
        return per_slot

    # Reports.

    def load(self, period_s: float, slice_s: Floats, zones: Owners) -> OperatorLoad:
        """The last period as policies see it; ``slice_s`` is the CPU that each instance might have used."""
        self.grow_state()
        used = np.minimum(self._used_s / np.maximum(slice_s, 1e-12), 1.0)
        return OperatorLoad(
            self.operator.name,
            used,
            self.owners,
            self.weights * self._offered / period_s,
            self._done / period_s,
            self._done * self.operator.selectivity / period_s,
            self.queues.waiting,
            self.per_instance(self.state_bytes),
            tuple(str(host) for host in self.hosts.tolist()),
            tuple(f"z{zone}" for zone in zones[self.hosts].tolist()),
        )

    def begin_period(self) -> None:
        self._used_s = np.zeros(self.instances)
        self._done = np.zeros(self.instances)
        self._grown = np.zeros(self.instances)
        self._offered = 0.0


def _resized(values: Floats, entries: int, fresh: float) -> Floats:
    return np.concatenate([values[:entries], np.full(max(0, entries - len(values)), fresh)])
