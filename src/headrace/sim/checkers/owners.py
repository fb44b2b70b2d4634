"""Each slot is owned by an existing instance, each instance lives on an existing machine, and each has one queue."""

from __future__ import annotations

from headrace.ids import SLOTS
from headrace.sim.world import World


def owners(world: World) -> None:
    """The checker: record a violation for each operator with a slot, instance or queue out of place."""
    for name, stage in world.stages.items():
        table = stage.owners
        if len(table) != SLOTS or table.min() < 0 or table.max() >= stage.instances:
            world.violate("owners", f"{name}: slots are owned by instances {table.min()} to {table.max()}, of {stage.instances}")
        machines = len(world.machines.speed)
        if stage.hosts.min() < 0 or stage.hosts.max() >= machines:
            world.violate("owners", f"{name}: instances live on machines {stage.hosts.min()} to {stage.hosts.max()}, of {machines}")
        if len(stage.queues.waiting) != stage.instances:
            world.violate("owners", f"{name}: {len(stage.queues.waiting)} queues for {stage.instances} instances")
