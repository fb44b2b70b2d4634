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
class State:
    """An operator's state. It grows with every row up to what its keys take."""

    bytes_per_row: float = 0.0
    """What a row adds, until all keys are there."""
    bytes_max: float = math.inf
    """All keys together."""
    checkpoint_s: float = 5.0
    """SEEP's c; infinite for none."""
    checkpoint_cpu_s_per_byte: float = 0.0
    """CPU that freezing and shipping takes from the rows (SEEP 6.3)."""
    window_s: float = 0.0
    """How far back the state reaches; 0 if it depends on all rows. Upstream backup has to replay so much."""


@dataclass(frozen=True)
class Operator:
    name: OperatorId
    inputs: Mapping[str, float]
    """Sources or operators, each with the part of its rows that comes here."""
    cost_s: float
    """CPU seconds per row, on a machine of capacity 1."""
    selectivity: float = 1.0
    state: State | None = None
    keys: Keys = workload.even
    keys_change: bool = False
    """Whether the distribution of keys has to be looked at again and again."""
    row_bytes: float = 100.0
    """A row on the network."""
    queue_rows_max: float = math.inf
    """Rows that wait at an instance; what comes on top is discarded: an open loop (SEEP 6.1). Without it nothing is."""
    elastic: bool = True
    """Whether policies are shown this operator. SEEP's source and sink cannot be split."""

    def __post_init__(self) -> None:
        where = f"Operator {self.name!r}"
        between(where, "cost_s", self.cost_s, 1e-12)
        between(where, "selectivity", self.selectivity, 0)
        if not self.inputs:
            raise QueryError(where=where, wanted="an input", found="none")


@dataclass(frozen=True)
class Query:
    sources: Mapping[str, Rate]
    operators: tuple[Operator, ...]

    def downstream(self) -> tuple[Operator, ...]:
        """The operators, each after those that feed it."""
        by_name = {operator.name: operator for operator in self.operators}
        for operator in self.operators:
            unknown = [name for name in operator.inputs if name not in by_name and name not in self.sources]
            if unknown:
                known = ", ".join([*self.sources, *by_name])
                raise QueryError(where=f"Operator {operator.name!r}", wanted=f"inputs among {known}", found=", ".join(unknown))
        graph = {operator.name: [OperatorId(name) for name in operator.inputs if name in by_name] for operator in self.operators}
        return tuple(by_name[name] for name in graphlib.TopologicalSorter(graph).static_order())

    def ends(self) -> frozenset[OperatorId]:
        """Operators whose rows nobody reads: there latency is measured."""
        read = {name for operator in self.operators for name in operator.inputs}
        return frozenset(operator.name for operator in self.operators if operator.name not in read)

    def depth(self) -> dict[OperatorId, int]:
        """How many operators a row has passed behind each, on the longest way."""
        depth: dict[str, int] = dict.fromkeys(self.sources, 0)
        for operator in self.downstream():
            depth[operator.name] = 1 + max(depth[name] for name in operator.inputs)
        return {OperatorId(name): hops for name, hops in depth.items() if name not in self.sources}


@dataclass(frozen=True)
class MachineModel:
    capacity: float = 1.0
    speed_deviation: float = 0.0
    """How much machines of one kind differ, as part of their capacity. Machines that are quite alike become overloaded all at once, and so
    are split all at once."""
    network_bytes_per_s: float = 50e6
    """About half of a gigabit: what EC2's small machines had."""
    start_s: float = 90.0
    """From the request until it is ready. SEEP: in the order of minutes."""
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
class Settings:
    tick_s: float = 0.1
    """The step of flows. Queues, latencies and pauses are known to about a tick."""
    report_s: float = 5.0
    """How often policies are asked; SEEP's r."""
    sample_s: float = 1.0
    """How often the trace is written."""
    jitter: float = 0.0
    """How uneven rows arrive: the deviation, by the mean, of the rows of a second at one instance; more in a shorter time, as
    for independent arrivals. Flows would otherwise have no queues at all below full load."""
    hop_s: float = 0.01
    """What an operator adds to the latency of a row when nothing waits: network, serialisation."""
    handover: str = "checkpoint"
    """How slots change hands: from the *checkpoint*, with the rows since replayed (SEEP, Algorithm 3); by a *fetch* of the state while
    the old owner goes on (Headrace's state recreation); with a *pause* of the new owner until the state has come (StreamCloud, Fig. 11)."""
    deploy_s: float = 1.0
    """To bring an operator onto a ready machine."""
    switch_s: float = 0.0
    """For how long an operator gets no rows when its routing switches: SEEP stops what is upstream of it meanwhile (Algorithm 3)."""
    recovery: str = "checkpoint"
    """After a failure: restore the *checkpoint* and replay the rows since (SEEP's R+SM); *upstream backup* or *source replay* of the
    whole window; or *none*, where something else takes care of it."""
    recovery_parts: int = 1
    """More than 1: parallel recovery."""
    partition_s: float = 0.0
    """What each further part of a parallel recovery costs: partitioning the state, and another restore."""
    detect_s: float = 1.0
    """Until a failure is noticed."""
    replicas: int = 1
    """Backups of an instance's state on other machines."""
    grace_s: float = 120.0
    """For how long an overload may last beside free capacity before the checker complains."""

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
    """Machines that die: those named, or ``count`` working ones drawn by the seed, or all of a zone."""

    at_s: float
    machines: tuple[int, ...] = ()
    operator: OperatorId | None = None
    """Only machines of this operator are drawn."""
    count: int = 0
    zone: int | None = None


@dataclass(frozen=True)
class Plan:
    """A whole simulation but for its policies and its seed."""

    query: Query
    duration_s: float
    instances: Mapping[OperatorId, int] = field(default_factory=dict)
    """At the beginning; 1 where not said. Each has a machine of its own."""
    hosts: Mapping[OperatorId, tuple[int, ...]] = field(default_factory=dict)
    """Or: the machines, by number, that the operator's instances live on; several may share one."""
    machines: MachineModel = field(default_factory=MachineModel)
    settings: Settings = field(default_factory=Settings)
    faults: tuple[Fault, ...] = ()
    spare: int = 0
    """Machines that are ready at the beginning."""
