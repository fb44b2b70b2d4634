"""What policies see: for each operator one array per quantity, with an entry for each instance or slot.

There are arrays instead of an object per instance, so that a decision about a thousand instances takes a few numpy calls. Instances are
numbered 0, 1, ... as in `headrace.state.routing`, and the owner of a slot is such a number. Times are seconds since any fixed moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.errors import require
from headrace.ids import SLOTS, InputId, OperatorId, SourceId

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Owners = npt.NDArray[np.int64]
"""The owner of each slot, as from `Routing.table`."""


def _unknown() -> Floats:
    return np.zeros(0)


@dataclass(frozen=True, eq=False)
class OperatorLoad:
    """One operator during the last reporting period. A quantity that is left out is 0 everywhere."""

    operator: OperatorId
    cpu: Floats
    """Per instance: utilisation, the share of its time slice that it used. Above 1 if it would have needed more than there was."""
    owners: Owners
    rows_per_slot: Floats = field(default_factory=_unknown)
    """Per slot: rows that arrived per second."""
    rows_in_per_s: Floats = field(default_factory=_unknown)
    """Per instance: rows processed per second; fewer than arrived if the instance is overloaded."""
    rows_out_per_s: Floats = field(default_factory=_unknown)
    queue_rows: Floats = field(default_factory=_unknown)
    """Per instance: rows that wait to be processed."""
    state_bytes: Floats = field(default_factory=_unknown)
    hosts: tuple[str, ...] = ()
    """Per instance: the executor it runs on."""
    zones: tuple[str, ...] = ()
    """Per instance: its fault zone. Hosts of one zone may fail together."""

    def __post_init__(self) -> None:
        instances = len(self.cpu)
        require(instances > 0, f"operator {self.operator} has at least one instance")
        for name in ("cpu", "rows_in_per_s", "rows_out_per_s", "queue_rows", "state_bytes"):
            self._freeze(name, instances)
        self._freeze("rows_per_slot", SLOTS)
        owners = np.asarray(self.owners, dtype=np.int64)
        known = len(owners) == SLOTS and owners.min() >= 0 and owners.max() < instances
        require(known, f"every slot has an owner from 0 to {instances - 1}")
        object.__setattr__(self, "owners", _read_only(owners))
        for name in ("hosts", "zones"):
            each = getattr(self, name) or ("",) * instances
            require(len(each) == instances, f"{name} has an entry for each of {instances} instances, not {len(each)}")
            object.__setattr__(self, name, each)

    @property
    def instances(self) -> int:
        return len(self.cpu)

    def slot_cpu(self) -> Floats:
        """The CPU that each slot costs: a share of its owner's CPU in proportion to rows, or an even share if no rows were counted.

        >>> load = OperatorLoad(OperatorId("sum"), np.array([0.8, 0.2]), np.arange(SLOTS) % 2, np.arange(SLOTS) % 4 + 1.0)
        >>> (load.slot_cpu()[:4] * 1024).round(3).tolist()
        [0.2, 0.067, 0.6, 0.133]
        >>> load.per_instance(load.slot_cpu()).round(3).tolist()
        [0.8, 0.2]
        """
        rows = self.rows_per_slot
        of_owner = self.per_instance(rows)
        slots = np.bincount(self.owners, minlength=self.instances)
        # An instance without rows still costs something, such as timers. Its slots share that evenly.
        weight = np.where(of_owner[self.owners] > 0, rows, 1.0)
        total = np.where(of_owner > 0, of_owner, np.maximum(slots, 1))
        return weight * (self.cpu / total)[self.owners]

    def per_instance(self, per_slot: Floats) -> Floats:
        """The sum of a per-slot quantity over the slots of each instance."""
        return loads_of(self.owners, per_slot, self.instances)

    def _freeze(self, name: str, entries: int) -> None:
        values = np.asarray(getattr(self, name), dtype=np.float64)
        values = values if len(values) else np.zeros(entries)
        require(len(values) == entries, f"{name} has {entries} entries, not {len(values)}")
        require(bool(np.isfinite(values).all()) and values.min() >= 0, f"{name} of operator {self.operator} is finite and not negative")
        object.__setattr__(self, name, _read_only(values))


@dataclass(frozen=True)
class Path:
    """What the time of a query's batches goes into. Its stages run one after another, so the shares of the time available add up."""

    around: float
    """The share of scanning, combining and delivering: what no operator's instances do."""
    operators: Mapping[OperatorId, float]
    """By operator: the share of its busiest instance."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "operators", MappingProxyType(dict(self.operators)))

    @property
    def utilisation(self) -> float:
        """The utilisation of the query. Above 1 it falls behind."""
        return self.around + sum(self.operators.values())

    def with_loads(self, loads: Iterable[OperatorLoad]) -> Path:
        """The path if the operators had these loads."""
        return Path(self.around, {load.operator: float(load.cpu.max()) for load in loads})


@dataclass(frozen=True, eq=False)
class Observation:
    """All operators of a query during the last reporting period."""

    at_s: float
    operators: tuple[OperatorLoad, ...]
    inputs: Mapping[OperatorId, tuple[InputId, ...]] = field(default_factory=dict)
    """Per operator: the operators and sources that it reads."""
    source_rows_per_s: Mapping[SourceId, float] = field(default_factory=dict)
    """Per source: rows that it offers per second, even if the query cannot keep up."""
    path: Path | None = None
    """The critical path of the batches. None if operators work at the same time, as in the simulator."""

    def __post_init__(self) -> None:
        names = [load.operator for load in self.operators]
        require(len(set(names)) == len(names), f"operators have distinct names; found {names}")
        object.__setattr__(self, "inputs", MappingProxyType(dict(self.inputs)))
        object.__setattr__(self, "source_rows_per_s", MappingProxyType(dict(self.source_rows_per_s)))


def loads_of(owners: Owners, per_slot: Floats, instances: int) -> Floats:
    """The sum of a per-slot quantity over the slots of each instance.

    >>> loads_of(np.array([0, 2, 2]), np.array([1.0, 2.0, 3.0]), 4).tolist()
    [1.0, 0.0, 5.0, 0.0]
    """
    return np.bincount(owners, weights=per_slot, minlength=instances).astype(np.float64, copy=False)


def _read_only(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A read-only view. The caller's own array stays writeable."""
    view = values.view()
    view.flags.writeable = False
    return view
