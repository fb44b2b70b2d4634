"""The input of a simulation, as frozen values: the query, the machines, and how both behave.

source ──> Operator ──> Operator ──> (end)            an operator has instances; each lives on a machine and owns slots
"""

from __future__ import annotations

import graphlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.control.checks import between
from headrace.errors import QueryError
from headrace.ids import OperatorId
from headrace.sim import workload
from headrace.sim.workload import Keys, Rate


@dataclass(frozen=True)
class SimulatedState:
    """An operator's state. It grows with every row until all keys are stored."""

    bytes_per_row: float = 0.0
    """Bytes that each row adds, until ``bytes_max`` is reached."""
    bytes_max: float = math.inf
    """The size of the state with all keys."""
    checkpoint_s: float = 5.0
    """The interval between checkpoints, SEEP's c. Infinite means no checkpoints."""
    checkpoint_cpu_s_per_byte: float = 0.0
    """CPU seconds per byte that a checkpoint takes to freeze and ship the state (SEEP 6.3)."""
    window_s: float = 0.0
    """The window of rows that the state depends on; 0 if it depends on all rows. Upstream backup replays this window."""


@dataclass(frozen=True)
class SimulatedOperator:
    """An operator of the query: its inputs, what a row costs, and the state that it keeps."""

    name: OperatorId
    inputs: Mapping[str, float]
    """The sources or operators that it reads, each with the share of their rows that it gets."""
    cost_s: float
    """CPU seconds per row, on a machine of capacity 1."""
    selectivity: float = 1.0
    state: SimulatedState | None = None
    keys: Keys = workload.even
    keys_change: bool = False
    """True if the distribution of keys changes over time, so that it is evaluated at every sample."""
    row_bytes: float = 100.0
    """The size of a row on the network."""
    queue_rows_max: float = math.inf
    """The most rows that may wait at an instance. Further rows are discarded, as in SEEP's open loop (6.1). By default none are."""
    elastic: bool = True
    """True if policies see this operator and may scale it. SEEP's source and sink cannot be split."""

    def __post_init__(self) -> None:
        where = f"Operator {self.name!r}"
        between(where, "cost_s", self.cost_s, 1e-12)
        between(where, "selectivity", self.selectivity, 0)
        if not self.inputs:
            raise QueryError(where=where, wanted="an input", found="none")


@dataclass(frozen=True)
class SimulatedQuery:
    """The sources with their rates, and the operators that read them."""

    sources: Mapping[str, Rate]
    operators: tuple[SimulatedOperator, ...]

    def downstream(self) -> tuple[SimulatedOperator, ...]:
        """The operators in topological order: each one after its inputs."""
        by_name = {operator.name: operator for operator in self.operators}
        for operator in self.operators:
            unknown = [name for name in operator.inputs if name not in by_name and name not in self.sources]
            if unknown:
                known = ", ".join([*self.sources, *by_name])
                raise QueryError(where=f"Operator {operator.name!r}", wanted=f"inputs among {known}", found=", ".join(unknown))
        graph = {operator.name: [OperatorId(name) for name in operator.inputs if name in by_name] for operator in self.operators}
        return tuple(by_name[name] for name in graphlib.TopologicalSorter(graph).static_order())

    def ends(self) -> frozenset[OperatorId]:
        """The last operators, whose output no other operator reads. Latency is measured there."""
        read = {name for operator in self.operators for name in operator.inputs}
        return frozenset(operator.name for operator in self.operators if operator.name not in read)

    def depth(self) -> dict[OperatorId, int]:
        """For each operator, the number of operators on the longest path from a source to it, itself included."""
        depth: dict[str, int] = dict.fromkeys(self.sources, 0)
        for operator in self.downstream():
            depth[operator.name] = 1 + max(depth[name] for name in operator.inputs)
        return {OperatorId(name): hops for name, hops in depth.items() if name not in self.sources}


@dataclass(frozen=True)
class MachineModel:
    """How simulated machines behave: speed, network, start-up time and zones."""

    capacity: float = 1.0
    speed_deviation: float = 0.0
    """The standard deviation of machine speeds, as a share of the capacity. With 0, all machines become overloaded, and are split, at the
    same moment."""
    network_bytes_per_s: float = 50e6
    """About half a gigabit per second, as EC2's small machines had."""
    start_s: float = 90.0
    """Time from the request of a machine until it is ready. SEEP speaks of minutes."""
    zones: int = 3
    count_max: int = 100_000

    def __post_init__(self) -> None:
        between("machines", "capacity", self.capacity, 1e-9)
        between("machines", "speed_deviation", self.speed_deviation, 0, 0.5)
        between("machines", "network_bytes_per_s", self.network_bytes_per_s, 1)
        between("machines", "start_s", self.start_s, 0)
        between("machines", "zones", self.zones, 1)


HANDOVERS = ("checkpoint", "fetch", "pause")
RECOVERIES = ("checkpoint", "upstream backup", "source replay", "none")


@dataclass(frozen=True)
class SimulationSettings:
    """How the simulation runs: its time steps, how slots change owners, and how failures are recovered."""

    tick_s: float = 0.1
    """The time step in which rows flow. Queues, latencies and pauses are exact to about a tick."""
    report_s: float = 5.0
    """The interval at which policies decide, SEEP's r."""
    sample_s: float = 1.0
    """The interval at which a row of the trace is written."""
    jitter: float = 0.0
    """How unevenly rows arrive: the standard deviation over the mean of the rows per second at one instance. It is larger over shorter
    times, as for independent arrivals. With 0, no rows wait below full load."""
    hop_s: float = 0.01
    """Latency that each operator adds to a row even with empty queues: network and serialisation."""
    handover: str = "checkpoint"
    """How slots get a new owner. *checkpoint*: it restores the checkpoint and replays the rows since (SEEP, Algorithm 3). *fetch*: it
    fetches the state while the old owner continues (Headrace's state recreation). *pause*: it waits until the state has arrived
    (StreamCloud, Fig. 11)."""
    deploy_s: float = 1.0
    """Time to deploy an operator on a ready machine."""
    switch_s: float = 0.0
    """How long an operator gets no rows when its routing switches. SEEP stops the upstream operators meanwhile (Algorithm 3)."""
    recovery: str = "checkpoint"
    """What happens after a failure. *checkpoint*: restore it and replay the rows since (SEEP's R+SM). *upstream backup* or *source replay*:
    replay the whole window. *none*: a listener recovers."""
    recovery_parts: int = 1
    """The number of machines that recover one failed instance together; above 1 for parallel recovery."""
    partition_s: float = 0.0
    """Time that each part after the first adds to a parallel recovery: partitioning the state, and another restore."""
    detect_s: float = 1.0
    """Time until a failure is detected."""
    replicas: int = 1
    """The number of backups of each instance's state on other machines."""
    grace_s: float = 120.0
    """How long an overload may last while capacity is free, before the checker reports a violation."""

    def __post_init__(self) -> None:
        between("simulation", "tick_s", self.tick_s, 1e-6)
        between("simulation", "report_s", self.report_s, self.tick_s)
        between("simulation", "sample_s", self.sample_s, self.tick_s)
        between("simulation", "recovery_parts", self.recovery_parts, 1)
        between("simulation", "partition_s", self.partition_s, 0)
        between("simulation", "jitter", self.jitter, 0)
        for name, value, known in (("handover", self.handover, HANDOVERS), ("recovery", self.recovery, RECOVERIES)):
            if value not in known:
                raise QueryError(where="simulation", wanted=f"{name} of {', '.join(known)}", found=repr(value))


@dataclass(frozen=True)
class Fault:
    """Machines that die at one moment: those in ``machines``, ``count`` random working ones, or a whole zone."""

    at_s: float
    machines: tuple[int, ...] = ()
    operator: OperatorId | None = None
    """With ``count``: draw only machines that run this operator."""
    count: int = 0
    zone: int | None = None


@dataclass(frozen=True)
class SimulationPlan:
    """A whole simulation, except its policies and its seed."""

    query: SimulatedQuery
    duration_s: float
    instances: Mapping[OperatorId, int] = field(default_factory=dict)
    """The number of instances at the start, 1 by default. Each has a machine of its own."""
    hosts: Mapping[OperatorId, tuple[int, ...]] = field(default_factory=dict)
    """Instead of ``instances``: the machine number of each instance. Several instances may share a machine."""
    machines: MachineModel = field(default_factory=MachineModel)
    settings: SimulationSettings = field(default_factory=SimulationSettings)
    faults: tuple[Fault, ...] = ()
    spare: int = 0
    """The number of ready machines in the pool at the start."""
