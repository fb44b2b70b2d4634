"""No overload is left while capacity is free: within the grace period it is gone, or there was nothing to mend it with.

Overloaded is an instance that used all of its CPU and has rows waiting for more than a second of its work. Free is a ready machine, or an
instance of the operator that is less than half busy. An instance with a single slot, or one slot with nearly all the load, cannot be
helped and is left out, as the policies do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.control.observation import OperatorLoad
from headrace.ids import OperatorId

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator

BUSY, IDLE, HOT_SHARE, WAITING_S = 0.98, 0.5, 0.9, 1.0


class Overload:
    def __init__(self) -> None:
        self._since_s: dict[OperatorId, float] = {}

    def __call__(self, sim: Simulator) -> None:
        for name, load in sim.loads.items():
            stage = sim.stages[name]
            ready = len(sim.machines.ready) > 0
            if stage.changing or not _overloaded(load, stage.operator.cost_s) or not (ready or bool((load.cpu < IDLE).any())):
                self._since_s.pop(name, None)
                continue
            since_s = self._since_s.setdefault(name, sim.clock.now_s)
            if sim.clock.now_s - since_s > sim.settings.grace_s:
                free = f"{len(sim.machines.ready)} machines are ready" if ready else f"an instance is {load.cpu.min():.0%} busy"
                sim.violate("overload", f"{name}: overloaded since {since_s:g} s, and {free}")
                self._since_s[name] = sim.clock.now_s


def _overloaded(load: OperatorLoad, cost_s: float) -> bool:
    """Whether there is an instance with too much to do that could give some of it away."""
    behind = (load.cpu >= BUSY) & (load.queue_rows * cost_s > WAITING_S)
    if not behind.any():
        return False
    heaviest = np.zeros(load.instances)
    np.maximum.at(heaviest, load.owners, load.rows_per_slot)
    hot = heaviest > HOT_SHARE * np.maximum(load.per_instance(load.rows_per_slot), 1e-300)
    return bool((behind & ~hot).any())
