"""No instance stays overloaded for longer than the grace period while capacity is free.

An instance is overloaded if it used all of its CPU and more than a second of work is waiting. Capacity is free if a machine is ready, or if
another instance of the operator is less than half busy. Instances in which a single slot has nearly all the load are left out, as in the
policies: moving slots cannot help them.
"""

from __future__ import annotations

import numpy as np

from headrace.control.observation import OperatorLoad
from headrace.ids import OperatorId
from headrace.sim.world import World

BUSY, IDLE, HOT_SHARE, WAITING_S = 0.98, 0.5, 0.9, 1.0


class Overload:
    """The checker. It remembers since when each operator has been overloaded."""

    def __init__(self) -> None:
        self._since_s: dict[OperatorId, float] = {}

    def __call__(self, world: World) -> None:
        for name, load in world.loads.items():
            stage = world.stages[name]
            ready = len(world.machines.ready) > 0
            if stage.changing or not _overloaded(load, stage.operator.cost_s) or not (ready or bool((load.cpu < IDLE).any())):
                self._since_s.pop(name, None)
                continue
            since_s = self._since_s.setdefault(name, world.clock.now_s)
            if world.clock.now_s - since_s > world.settings.grace_s:
                free = f"{len(world.machines.ready)} machines are ready" if ready else f"an instance is {load.cpu.min():.0%} busy"
                world.violate("overload", f"{name}: overloaded since {since_s:g} s, and {free}")
                self._since_s[name] = world.clock.now_s


def _overloaded(load: OperatorLoad, cost_s: float) -> bool:
    """True if an instance is overloaded and could give slots away."""
    behind = (load.cpu >= BUSY) & (load.queue_rows * cost_s > WAITING_S)
    if not behind.any():
        return False
    heaviest = np.zeros(load.instances)
    np.maximum.at(heaviest, load.owners, load.rows_per_slot)
    hot = heaviest > HOT_SHARE * np.maximum(load.per_instance(load.rows_per_slot), 1e-300)
    return bool((behind & ~hot).any())
