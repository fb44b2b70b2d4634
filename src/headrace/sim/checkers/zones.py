"""An instance and its backups are in distinct zones, so that the failure of one zone cannot destroy all copies (Floe VII)."""

from __future__ import annotations

import numpy as np

from headrace.sim.world import World


def zones(world: World) -> None:
    """The checker: record a violation for each stateful operator with two copies in one zone."""
    zone = world.machines.zone
    for name, stage in world.stages.items():
        if stage.operator.state is None or not stage.holders.shape[1]:
            continue
        copies = np.where(stage.holders >= 0, zone[stage.holders], -1 - np.arange(stage.holders.shape[1]))
        each = np.sort(np.c_[zone[stage.hosts], copies], axis=1)
        doubled = np.flatnonzero((np.diff(each, axis=1) == 0).any(axis=1))
        if len(doubled):
            at = int(doubled[0])
            machines = [int(stage.hosts[at]), *stage.holders[at].tolist()]
            world.violate("zones", f"{name}: {len(doubled)} instances have copies in one zone, such as {at} on machines {machines}")
