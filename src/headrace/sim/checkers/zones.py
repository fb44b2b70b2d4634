"""Backups of a slot lie in zones other than its owner's and each other's; else one failure takes them all (Floe VII)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator


def zones(sim: Simulator) -> None:
    zone = sim.machines.zone
    for name, stage in sim.stages.items():
        if stage.operator.state is None or not stage.holders.shape[1]:
            continue
        copies = np.where(stage.holders >= 0, zone[stage.holders], -1 - np.arange(stage.holders.shape[1]))
        each = np.sort(np.c_[zone[stage.hosts], copies], axis=1)
        doubled = np.flatnonzero((np.diff(each, axis=1) == 0).any(axis=1))
        if len(doubled):
            at = int(doubled[0])
            machines = [int(stage.hosts[at]), *stage.holders[at].tolist()]
            sim.violate("zones", f"{name}: {len(doubled)} instances have copies in one zone, such as {at} on machines {machines}")
