"""Which executor ships which parcels of a checkpoint, and in which order.

An executor can ship a run if it has a whole copy of it, and a merged delta if it has all runs that are merged. Of several such executors,
the one with the least to ship does it. `control/availability/ordering.py` decides the order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.control.availability.ordering import STORE, shipping_order
from headrace.control.availability.scheduling import RoundRobinTurn, ScheduleConfig
from headrace.control.availability.units import HaUnit, UnitId
from headrace.control.network import NodeId
from headrace.runtime.safety.copies import Copies
from headrace.runtime.safety.portions import Portion
from headrace.runtime.safety.shipping import Parcel, Shipped
from headrace.spark.executors import Executor

PARCEL_S = 0.01
"""About how long a parcel takes however small it is: opening runs, forcing a file to disk."""


@dataclass
class Loads:
    """What is left to ship, given what has arrived."""

    copies: Copies
    live: Mapping[str, Executor]
    shipped: Shipped
    parcels: dict[str, tuple[Parcel, Executor, float]] = field(default_factory=dict)
    """By name: the parcel, who ships it, and the processing that it saves from being done again, in seconds."""
    lost: list[str] = field(default_factory=list)
    """Runs that no living executor has."""
    _sizes: dict[str, int] = field(default_factory=dict)

    def add(self, portion: Portion, name: str, redo_s: float) -> None:
        """Add what is left to ship of a portion. ``name`` is that of its merged run."""
        raw = [each for each in portion.raw(self.copies) if each.name not in self.shipped.refs]
        if not raw or name in self.shipped.refs:
            return
        merged = portion.merged(name)
        # If the runs of a portion are on several executors, none can merge them.
        parcels = [merged] if merged is not None and self._holder(merged) is not None else raw
        for parcel in parcels:
            holder = self._holder(parcel)
            if holder is None:
                self.lost.append(parcel.name)
                continue
            self._sizes[holder.id] = self._sizes.get(holder.id, 0) + parcel.bytes
            self.parcels.setdefault(parcel.name, (parcel, holder, redo_s / len(parcels)))

    def in_order(self, config: ScheduleConfig, turn: RoundRobinTurn, speed: float) -> tuple[dict[Executor, list[Parcel]], RoundRobinTurn]:
        """By executor: its parcels, in the order in which it ships them; and the memory of round-robin. ``speed`` is bytes per second."""
        numbers: Counter[UnitId] = Counter()
        by_name, units = {}, []
        for parcel, holder, redo_s in self.parcels.values():
            # The name of a unit is the same in every checkpoint, so that units can take turns.
            name = UnitId(f"{parcel.unit} {numbers[parcel.unit]:06d}")
            numbers[parcel.unit] += 1
            by_name[name] = parcel
            units.append(HaUnit(name, NodeId(holder.id), STORE, redo_s, PARCEL_S + parcel.bytes / speed, age_s=config.interval_s))
        order, turn = shipping_order(units, config, turn)
        return {self.live[server]: [by_name[name] for name in names] for server, names in order.items()}, turn

    def _holder(self, parcel: Parcel) -> Executor | None:
        """The executor that ships a parcel: of those that have its runs, the one with the least to ship."""
        wanted = [ref.file for ref in parcel.refs if not self.copies.is_durable(ref.file)]
        able = [each for id, each in self.live.items() if all(id in self.copies.holders_of(file) for file in wanted)]
        return min(able, key=lambda each: (self._sizes.get(each.id, 0), each.id), default=None)
