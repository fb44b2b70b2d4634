"""How decisions and failures change a simulation: slots change owners, machines die, instances recover.

Scale out follows SEEP's Algorithm 3. Machines come from the pool, and the state is sent to them while the old owner goes on. Then the
routing switches, and the new owners process again the rows that the checkpoint did not contain:

    decision ─> machines taken ─> operator deployed, state restored ─> routing switched ─> rows since the checkpoint replayed
                (waits if the pool is empty)    deploy_s + bytes / network

Recovery works the same way, except that the old owner is dead (4.2). If the holder of a backup fails before its state has been sent, or a
new machine fails, the change is aborted. If any other machine fails, the change goes on, even if it is the old owner's: the state comes
from the backup.
"""

from __future__ import annotations

import numpy as np

from headrace.control import bottleneck
from headrace.control.decisions import MoveSlots, Rescale, owners_after
from headrace.control.observation import Floats, OperatorLoad, Owners, loads_of
from headrace.errors import require
from headrace.ids import OperatorId
from headrace.sim.stage import SimulatedStage
from headrace.sim.world import World
from headrace.state.routing import Routing
from headrace.state.slots import ranges_of


def perform(world: World, decision: Rescale | MoveSlots) -> None:
    """Start a change of an operator's routing. Does nothing if one is in progress or nothing would change."""
    stage = world.stages[decision.operator]
    if stage.changing:
        return
    after, instances = _owners_after(stage, decision)
    if instances == stage.instances and (after == stage.owners).all():
        return
    stage.changing = True
    new = max(0, instances - stage.instances)
    world.machines.take(new, lambda machines: _bring(world, stage, after, instances, machines))


def _owners_after(stage: SimulatedStage, decision: Rescale | MoveSlots) -> tuple[Owners, int]:
    instances = decision.instances if isinstance(decision, Rescale) else stage.instances
    if decision.moves:
        return owners_after(stage.owners, decision.moves), instances
    routing = Routing(tuple(ranges_of(np.flatnonzero(stage.owners == at)) for at in range(stage.instances)))
    return routing.rescaled(instances, stage.weights).table(), instances


def _bring(world: World, stage: SimulatedStage, after: Owners, instances: int, machines: list[int]) -> None:
    """Send the state to its new owners; they own the slots when it has arrived."""
    stage.grow_state()
    going = after != stage.owners
    # The backup holder of each old owner sends what leaves it; holders send in parallel.
    leaving = np.bincount(stage.owners[going], weights=stage.state_bytes[going], minlength=stage.instances)
    transfer_s = float(leaving.max(initial=0.0)) / world.machines.model.network_bytes_per_s
    before_s = world.settings.deploy_s if machines else 0.0
    if world.settings.handover != "pause":
        before_s += transfer_s
    senders = _senders(world, stage, np.unique(stage.owners[going]))
    world.clock.after(before_s, lambda: _switch(world, stage, after, instances, machines, transfer_s, senders))


def _senders(world: World, stage: SimulatedStage, givers: Owners) -> list[Owners]:
    """Per instance that gives slots away: the machines that can send its state, one of which must live until it is sent."""
    if stage.operator.state is None:
        return []
    if world.settings.handover != "checkpoint" or not stage.holders.shape[1]:
        return [stage.hosts[[giver]] for giver in givers.tolist()]
    # An instance without a holder sends its state itself.
    held = ((giver, stage.holders[giver]) for giver in givers.tolist())
    return [each[each >= 0] if (each >= 0).any() else stage.hosts[[giver]] for giver, each in held]


def _switch(
    world: World, stage: SimulatedStage, after: Owners, instances: int, machines: list[int], transfer_s: float, senders: list[Owners]
) -> None:
    alive = world.machines.alive
    if not alive[machines].all() or not all(alive[each].any() for each in senders):
        # Algorithm 3 aborts and keeps the old routing; the policy sees the load again and decides again.
        world.machines.release(machines)
        stage.changing = False
        world.note("change aborted", stage)
        return
    owners, count = stage.owners, stage.instances
    going = after != owners
    replay: Floats = np.zeros(instances)
    if world.settings.handover == "checkpoint" and stage.operator.state is not None:
        part = going * stage.weights / np.maximum(stage.per_instance(stage.weights), 1e-300)[owners]
        replay = loads_of(after, part * stage.since[owners], instances)
    hosts = [*stage.hosts.tolist(), *machines]
    stage.reroute(world.clock.now_s, after, hosts[:instances])
    stage.replay_more(replay)
    if world.settings.switch_s:
        stage.pause(np.arange(instances), world.clock.now_s + world.settings.switch_s)
    if world.settings.handover == "pause":
        stage.pause(np.unique(after[going]), world.clock.now_s + transfer_s)
    stage.changing = False
    world.machines.release([machine for machine in hosts[instances:] if not world.is_host(machine)])
    world.topology_changed()
    world.note("scaled out" if instances > count else "scaled in" if instances < count else "slots moved", stage, instances)


# Failures.


def fail(world: World, machines: list[int]) -> None:
    """Kill machines and start recovery of their instances."""
    hit: list[tuple[SimulatedStage, Owners]] = []
    for machine in machines:
        world.machines.fail(machine)
    for stage in world.stages.values():
        lost = np.flatnonzero(np.isin(stage.hosts, machines))
        if len(lost):
            hit.append((stage, lost))
            world.note("failed", stage, len(lost))
    for stage, lost in hit:
        _count_lost(world, stage, lost)
        if world.settings.recovery != "none":
            failed_s = world.clock.now_s
            for instance in lost.tolist():
                _later(world, world.settings.detect_s, stage, instance, failed_s)
    world.topology_changed()


def _count_lost(world: World, stage: SimulatedStage, lost: Owners) -> None:
    """Record lost state: all backups died together with the owner. SEEP does not treat this case (3.2)."""
    if stage.operator.state is None or not stage.holders.shape[1]:
        return
    held = stage.holders[lost]
    safe = ((held >= 0) & world.machines.alive[held]).any(axis=1)
    for instance in lost[~safe].tolist():
        slots = int((stage.owners == instance).sum())
        world.note("state lost", stage, float(slots))
        world.violate("state", f"{stage.operator.name}: instance {instance}, with {slots} slots, and all its backups died together")


def _later(world: World, delay_s: float, stage: SimulatedStage, instance: int, failed_s: float) -> None:
    world.clock.after(delay_s, lambda: _recover(world, stage, instance, failed_s))


def _recover(world: World, stage: SimulatedStage, instance: int, failed_s: float) -> None:
    if instance >= stage.instances or world.machines.alive[stage.hosts[instance]]:
        return
    parts = min(world.settings.recovery_parts, int((stage.owners == instance).sum()))
    if parts > 1:
        if stage.changing:
            # Another change of this routing is in progress. Try again later.
            _later(world, 1.0, stage, instance, failed_s)
            return
        stage.changing = True
    world.machines.take(parts, lambda machines: _restore(world, stage, instance, machines, failed_s))


def _restore(world: World, stage: SimulatedStage, instance: int, machines: list[int], failed_s: float) -> None:
    bytes_lost = float(stage.per_instance(stage.state_bytes)[instance]) if world.settings.recovery == "checkpoint" else 0.0
    # All parts are deployed in parallel. The holder of the backup partitions the state, and sends all parts over one network link.
    partition_s = world.settings.partition_s * (len(machines) - 1)
    delay_s = world.settings.deploy_s + partition_s + bytes_lost / world.machines.model.network_bytes_per_s
    world.clock.after(delay_s, lambda: _restored(world, stage, instance, machines, failed_s))


def _restored(world: World, stage: SimulatedStage, instance: int, machines: list[int], failed_s: float) -> None:
    if not world.machines.alive[machines].all():
        world.machines.release(machines)
        stage.changing = stage.changing and len(machines) == 1
        _recover(world, stage, instance, failed_s)
        return
    rows = _rows_to_replay(world, stage, instance)
    instances = [instance, *range(stage.instances, stage.instances + len(machines) - 1)]
    stage.move_to(instance, machines[0])
    if len(machines) > 1:
        stage.reroute(world.clock.now_s, _split(stage, instance, len(machines)), [*stage.hosts.tolist(), *machines[1:]])
        stage.changing = False
    weights = stage.per_instance(stage.weights)
    replay = np.zeros(stage.instances)
    replay[instances] = rows * weights[instances] / max(weights[instances].sum(), 1e-300)
    _replay(world, stage, instance, replay)
    world.topology_changed()
    _watch(world, stage, instances, failed_s)


def _split(stage: SimulatedStage, instance: int, parts: int) -> Owners:
    load = OperatorLoad(stage.operator.name, np.ones(stage.instances), stage.owners, stage.weights)
    each = np.ones(stage.instances, dtype=np.int64)
    each[instance] = parts
    owners = bottleneck.split_owners(load, each)
    require(int(owners.max()) == stage.instances + parts - 2, "an instance has at least one slot per part")
    return owners


def _rows_to_replay(world: World, stage: SimulatedStage, instance: int) -> float:
    if stage.operator.state is None:
        return 0.0
    rows: Floats = stage.since if world.settings.recovery == "checkpoint" else stage.recent()
    return float(rows[instance])


def _replay(world: World, stage: SimulatedStage, instance: int, replay: Floats) -> None:
    """Schedule rows to be processed again: from upstream buffers, or from the source through all operators."""
    if world.settings.recovery == "upstream backup":
        # Upstream sends new rows while it replays old ones, as fast as its CPU allows, so the two arrive mixed.
        before = [world.stages[OperatorId(name)] for name in stage.operator.inputs if name in world.stages]
        stage.interleave = min(0.95, max((world.expected_load(each) for each in before), default=0.0))
    stage.replay_more(replay)
    if world.settings.recovery == "source replay":
        world.hold_sources(stage)
        for upstream in world.upstream(stage):
            rows = float(replay.sum()) / world.rows_per_row(upstream, stage)
            upstream.replay_more(np.asarray(upstream.per_instance(upstream.weights) * rows))


def _watch(world: World, stage: SimulatedStage, instances: list[int], failed_s: float) -> None:
    """Record the recovery when all replayed rows have been processed."""

    def look() -> None:
        upstream = world.upstream(stage) if world.settings.recovery == "source replay" else []
        if any(index < stage.instances and stage.replay[index] > 0 for index in instances) or any(each.replay.any() for each in upstream):
            world.clock.after(world.settings.tick_s, look)
            return
        stage.interleave = 0.0
        world.release_sources()
        world.note("recovered", stage, world.clock.now_s - failed_s)

    world.clock.after(world.settings.tick_s, look)
