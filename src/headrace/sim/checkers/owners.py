"""Each slot has one owner, an instance that is there; and no two instances of an operator share their place in its arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.ids import SLOTS

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator


def owners(sim: Simulator) -> None:
    for name, stage in sim.stages.items():
        table = stage.owners
        if len(table) != SLOTS or table.min() < 0 or table.max() >= stage.instances:
            sim.violate("owners", f"{name}: slots are owned by instances {table.min()} to {table.max()}, of {stage.instances}")
        machines = len(sim.machines.speed)
        if stage.hosts.min() < 0 or stage.hosts.max() >= machines:
            sim.violate("owners", f"{name}: instances live on machines {stage.hosts.min()} to {stage.hosts.max()}, of {machines}")
        if len(stage.queues.waiting) != stage.instances:
            sim.violate("owners", f"{name}: {len(stage.queues.waiting)} queues for {stage.instances} instances")
