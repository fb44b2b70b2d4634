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
from headrace.sim.model import SimulatedOperator

GOLDEN = 0.6180339887498949
"""The golden ratio. Its multiples, modulo 1, spread the checkpoints of any number of instances evenly over the interval."""


class SimulatedStage:
    """The instances of one operator: their slots, machines, queues and state."""

    def __init__(self, operator: SimulatedOperator, hosts: list[int], recent_s: float = 0.0) -> None:
        instances = len(hosts)
        self.operator = operator
        self.owners: Owners = np.arange(SLOTS) * instances // SLOTS
        self.hosts: Owners = np.array(hosts, dtype=np.int64)
        self.queues = Queues(instances)
        self.weights: Floats = operator.keys(0.0)
        self.replay: Floats = np.zeros(instances)
        """Rows that each instance still has to replay."""
        self.since: Floats = np.zeros(instances)
        """Rows processed since the last checkpoint. The upstream buffers hold them."""
        self.debt_s: Floats = np.zeros(instances)
        """CPU seconds that checkpoints still need."""
        self.paused_until_s: Floats = np.zeros(instances)
        self.keep: Floats = np.ones(instances)
        """The share of its rows that each instance keeps; the rest is shed."""
        self.holders: Owners = np.full((instances, 0), -1)
        """The machines that hold backups of each instance's state; -1 for none."""
        self.changing = False
        """True while a change of the routing is in progress."""
        self.interleave = 0.0
        """The share of CPU that new rows get during a replay; 0 if replayed rows go first."""
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
        """Simulate one tick: rows arrive and are processed. Returns the output.

        ``cpu_s`` is the CPU of each instance in this tick, ``network_rows`` the most rows that an instance can receive, and ``noise`` a
        random factor for each instance's share of rows.
        """
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
        """Spend CPU on checkpoints; returns what is left."""
        paid = np.minimum(self.debt_s, cpu_s)
        self.debt_s = self.debt_s - paid
        self._indebted = bool(self.debt_s.any())
        return cpu_s - paid

    def _replayed(self, cpu_s: Floats) -> Floats:
        """Spend CPU on replayed rows; returns what is left."""
        able = cpu_s * np.where(self.replay > 0, 1.0 - self.interleave, 1.0) / self.operator.cost_s
        done = np.minimum(self.replay, able)
        self.replay = np.where(self.replay - done < 1e-9, 0.0, self.replay - done)
        self._replaying = bool(self.replay.any())
        return cpu_s - done * self.operator.cost_s

    def replay_more(self, rows: Floats) -> None:
        """Let each instance process this many rows once more."""
        self.replay = self.replay + rows
        self._replaying = bool(self.replay.any())

    def pause(self, instances: Owners, until_s: float) -> None:
        """Let these instances process nothing until a moment."""
        self.paused_until_s[instances] = until_s
        self._paused = True

    def owe(self, cpu_s: Floats) -> None:
        """Add CPU that each instance must spend on checkpoints before it processes rows."""
        self.debt_s = self.debt_s + cpu_s
        self._indebted = bool(self.debt_s.any())

    def expected(self) -> Floats:
        """Rows that each instance gets in the next tick, if as many arrive as in the last one."""
        return self._shares * self._arrived_last

    # State and checkpoints.

    def grow_state(self) -> None:
        """Grow the state by the rows that were processed since the last call."""
        state = self.operator.state
        if state is not None and state.bytes_per_row:
            grown = self.state_bytes + state.bytes_per_row * self._per_slot(self._done - self._grown)
            self.state_bytes = np.minimum(grown, state.bytes_max * np.maximum(self.weights, 1e-12))
        self._grown = self._done.copy()

    def checkpoint_due(self, now_s: float, alive: Flags) -> None:
        """Take the checkpoints that are due, and trim the upstream buffers. Dead and replaying instances take none."""
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
        """Drop the second that leaves the window of `recent`."""
        if len(self._recent):
            self._recent[second % len(self._recent)] = 0.0

    def recent(self) -> Floats:
        """Rows that each instance processed in the last window. Upstream backup replays them."""
        return np.asarray(self._recent.sum(axis=0))

    # Routing.

    def reroute(self, now_s: float, owners: Owners, hosts: list[int]) -> None:
        """Give slots to other owners. Their waiting rows, rows to replay and counts move with them.

        ``hosts`` are the machines of the instances after the change.
        """
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
        """Move an instance to another machine. It keeps its slots, state and queue."""
        self.hosts[instance] = machine

    def parts_to(self, owners: Owners, instances: int) -> sparse.csr_array:
        """A matrix with the share of each old instance's rows (row) that each new instance (column) gets, by the weights of the slots."""
        weights = self.weights + 1e-15
        values = weights / loads_of(self.owners, weights, self.instances)[self.owners]
        return sparse.csr_array(sparse.coo_array((values, (self.owners, owners)), shape=(self.instances, instances)))

    def look_at_keys(self, now_s: float) -> None:
        """Update the weights of the slots, if the distribution of keys changes over time."""
        if self.operator.keys_change:
            self.weights = self.operator.keys(now_s)
            self._routed()

    def _routed(self) -> None:
        """Recompute what depends on the routing or the weights. Call it after they have changed."""
        self._shares = self.per_instance(self.weights)
        self._replaying, self._indebted = bool(self.replay.any()), bool(self.debt_s.any())
        self._paused = True
        state = self.operator.state
        self._due_s = math.inf if state is None else float(self._checkpointed_s.min()) + state.checkpoint_s
        self.limit()

    def limit(self) -> None:
        """Recompute whether arriving rows may be discarded. Call it after ``keep`` has changed."""
        self._limited = math.isfinite(self.operator.queue_rows_max) or bool((self.keep < 1).any())

    def _phases(self, now_s: float, first: int, last: int) -> Floats:
        """Made-up times of the last checkpoint for new instances, so that their next checkpoints are spread over the interval."""
        state = self.operator.state
        interval_s = state.checkpoint_s if state is not None and math.isfinite(state.checkpoint_s) else 0.0
        return np.asarray(now_s - interval_s * (1.0 - np.arange(first, last) * GOLDEN % 1.0), dtype=np.float64)

    def per_instance(self, per_slot: Floats) -> Floats:
        """Sums of a quantity per slot, for each instance."""
        return loads_of(self.owners, per_slot, self.instances)

    def _per_slot(self, per_instance: Floats) -> Floats:
        """A quantity of each instance, distributed over its slots by their weights."""
        weights = self.weights + 1e-15
        per_weight: Floats = per_instance / np.maximum(loads_of(self.owners, weights, self.instances), 1e-300)
        per_slot: Floats = weights * per_weight[self.owners]
        return per_slot

    # Reports.

    def load(self, period_s: float, slice_s: Floats, zones: Owners) -> OperatorLoad:
        """The load of the last period as policies see it. ``slice_s`` is the CPU time that was available to each instance."""
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
        """Reset the counts of the period. Call it after every report."""
        self._used_s = np.zeros(self.instances)
        self._done = np.zeros(self.instances)
        self._grown = np.zeros(self.instances)
        self._offered = 0.0


def _resized(values: Floats, entries: int, fresh: float) -> Floats:
    return np.concatenate([values[:entries], np.full(max(0, entries - len(values)), fresh)])
