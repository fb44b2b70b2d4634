"""What decisions and failures do to a running simulation: slots change hands, machines die, instances recover.

Scale out as in SEEP's Algorithm 3. Machines are taken from the pool; the state is brought to them while the old owner goes on; then the
routing switches, and the new owners process once more what the checkpoint did not have yet:

    decision ─> machines taken ─> operator deployed, state restored ─> routing switched ─> rows since the checkpoint replayed
                (waits if the pool is empty)    deploy_s + bytes / network

Recovery is the same with an owner that does not go on (4.2). A failure of a machine that was to take part starts the change again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace.control import bottleneck
from headrace.control.decisions import MoveSlots, Rescale, moved
from headrace.control.observation import Floats, OperatorLoad, Owners, loads_of
from headrace.errors import require
from headrace.ids import OperatorId
from headrace.sim.stage import Stage
from headrace.state.routing import Routing
from headrace.state.slots import ranges_of

if TYPE_CHECKING:
    from headrace.sim.simulator import Simulator


def perform(sim: Simulator, decision: Rescale | MoveSlots) -> None:
    """Begin a change of an operator's routing, unless one is under way."""
    stage = sim.stages[decision.operator]
    if stage.changing:
        return
    after, instances = _owners_after(stage, decision)
    if instances == stage.instances and (after == stage.owners).all():
        return
    stage.changing = True
    new = max(0, instances - stage.instances)
    sim.machines.take(new, lambda machines: _bring(sim, stage, after, instances, machines))


def _owners_after(stage: Stage, decision: Rescale | MoveSlots) -> tuple[Owners, int]:
    instances = decision.instances if isinstance(decision, Rescale) else stage.instances
    if decision.moves:
        return moved(stage.owners, decision.moves), instances
    routing = Routing(tuple(ranges_of(np.flatnonzero(stage.owners == at)) for at in range(stage.instances)))
    return routing.rescaled(instances, stage.weights).table(), instances


def _bring(sim: Simulator, stage: Stage, after: Owners, instances: int, machines: list[int]) -> None:
    """The state goes to its new owners; then they own."""
    stage.grow_state()
    going = after != stage.owners
    # Each giver's backup holder sends what leaves it; holders send side by side.
    leaving = np.bincount(stage.owners[going], weights=stage.state_bytes[going], minlength=stage.instances)
    transfer_s = float(leaving.max(initial=0.0)) / sim.machines.model.network_bytes_per_s
    before_s = sim.settings.deploy_s if machines else 0.0
    if sim.settings.handover != "pause":
        before_s += transfer_s
    sim.clock.after(before_s, lambda: _switch(sim, stage, after, instances, machines, transfer_s))


def _switch(sim: Simulator, stage: Stage, after: Owners, instances: int, machines: list[int], transfer_s: float) -> None:
    alive = sim.machines.alive
    if not alive[machines].all() or not alive[stage.hosts].all():
        # Algorithm 3 aborts and leaves the old routing; the policy sees the load again and decides anew.
        sim.machines.release(machines)
        stage.changing = False
        sim.note("change aborted", stage)
        return
    owners, count = stage.owners, stage.instances
    going = after != owners
    replay: Floats = np.zeros(instances)
    if sim.settings.handover == "checkpoint" and stage.operator.state is not None:
        part = going * stage.weights / np.maximum(stage.per_instance(stage.weights), 1e-300)[owners]
        replay = loads_of(after, part * stage.since[owners], instances)
    hosts = [*stage.hosts.tolist(), *machines]
    stage.reroute(sim.clock.now_s, after, hosts[:instances])
    stage.replay_more(replay)
    if sim.settings.switch_s:
        stage.pause(np.arange(instances), sim.clock.now_s + sim.settings.switch_s)
    if sim.settings.handover == "pause":
        stage.pause(np.unique(after[going]), sim.clock.now_s + transfer_s)
    stage.changing = False
    sim.machines.release([machine for machine in hosts[instances:] if not sim.is_host(machine)])
    sim.topology_changed()
    sim.note("scaled out" if instances > count else "scaled in" if instances < count else "slots moved", stage, instances)


# Failures.


def fail(sim: Simulator, machines: list[int]) -> None:
    """Machines die; what they did is taken up by others after a while."""
    hit: list[tuple[Stage, Owners]] = []
    for machine in machines:
        sim.machines.fail(machine)
    for stage in sim.stages.values():
        lost = np.flatnonzero(np.isin(stage.hosts, machines))
        if len(lost):
            hit.append((stage, lost))
            sim.note("failed", stage, len(lost))
    for stage, lost in hit:
        _count_lost(sim, stage, lost)
        if sim.settings.recovery != "none":
            failed_s = sim.clock.now_s
            for instance in lost.tolist():
                _later(sim, sim.settings.detect_s, stage, instance, failed_s)
    sim.topology_changed()


def _count_lost(sim: Simulator, stage: Stage, lost: Owners) -> None:
    """Where all backups died with the owner, state is gone; SEEP leaves that case out (3.2)."""
    if stage.operator.state is None or not stage.holders.shape[1]:
        return
    held = stage.holders[lost]
    safe = ((held >= 0) & sim.machines.alive[held]).any(axis=1)
    for instance in lost[~safe].tolist():
        sim.note("state lost", stage, float((stage.owners == instance).sum()))


def _later(sim: Simulator, delay_s: float, stage: Stage, instance: int, failed_s: float) -> None:
    sim.clock.after(delay_s, lambda: _recover(sim, stage, instance, failed_s))


def _recover(sim: Simulator, stage: Stage, instance: int, failed_s: float) -> None:
    if instance >= stage.instances or sim.machines.alive[stage.hosts[instance]]:
        return
    parts = min(sim.settings.recovery_parts, int((stage.owners == instance).sum()))
    if parts > 1:
        if stage.changing:
            # Two changes of one routing do not go together.
            _later(sim, 1.0, stage, instance, failed_s)
            return
        stage.changing = True
    sim.machines.take(parts, lambda machines: _restore(sim, stage, instance, machines, failed_s))


def _restore(sim: Simulator, stage: Stage, instance: int, machines: list[int], failed_s: float) -> None:
    bytes_lost = float(stage.per_instance(stage.state_bytes)[instance]) if sim.settings.recovery == "checkpoint" else 0.0
    # One holder has the backup and sends it all; each further part is one more operator to deploy.
    delay_s = sim.settings.deploy_s * len(machines) + bytes_lost / sim.machines.model.network_bytes_per_s
    sim.clock.after(delay_s, lambda: _restored(sim, stage, instance, machines, failed_s))


def _restored(sim: Simulator, stage: Stage, instance: int, machines: list[int], failed_s: float) -> None:
    if not sim.machines.alive[machines].all():
        sim.machines.release(machines)
        stage.changing = stage.changing and len(machines) == 1
        _recover(sim, stage, instance, failed_s)
        return
    rows = _rows_to_replay(sim, stage, instance)
    instances = [instance, *range(stage.instances, stage.instances + len(machines) - 1)]
    stage.move_to(instance, machines[0])
    if len(machines) > 1:
        stage.reroute(sim.clock.now_s, _split(stage, instance, len(machines)), [*stage.hosts.tolist(), *machines[1:]])
        stage.changing = False
    weights = stage.per_instance(stage.weights)
    replay = np.zeros(stage.instances)
    replay[instances] = rows * weights[instances] / max(weights[instances].sum(), 1e-300)
    _replay(sim, stage, instance, replay)
    sim.topology_changed()
    _watch(sim, stage, instances, failed_s)


def _split(stage: Stage, instance: int, parts: int) -> Owners:
    load = OperatorLoad(stage.operator.name, np.ones(stage.instances), stage.owners, stage.weights)
    each = np.ones(stage.instances, dtype=np.int64)
    each[instance] = parts
    owners = bottleneck.split(load, each)
    require(int(owners.max()) == stage.instances + parts - 2, "an instance has as many slots as parts")
    return owners


def _rows_to_replay(sim: Simulator, stage: Stage, instance: int) -> float:
    if stage.operator.state is None:
        return 0.0
    rows: Floats = stage.since if sim.settings.recovery == "checkpoint" else stage.recent()
    return float(rows[instance])


def _replay(sim: Simulator, stage: Stage, instance: int, replay: Floats) -> None:
    """Rows to be processed again come from the buffers upstream, or all the way from the source."""
    if sim.settings.recovery == "upstream backup":
        # Upstream goes on with new rows while it replays old ones, as quickly as its own CPU allows: the two arrive mixed.
        before = [sim.stages[OperatorId(name)] for name in stage.operator.inputs if name in sim.stages]
        stage.interleave = min(0.95, max((sim.expected_load(each) for each in before), default=0.0))
    stage.replay_more(replay)
    if sim.settings.recovery == "source replay":
        sim.hold_sources(stage)
        for upstream in sim.upstream(stage):
            rows = float(replay.sum()) / sim.rows_per_row(upstream, stage)
            upstream.replay_more(np.asarray(upstream.per_instance(upstream.weights) * rows))


def _watch(sim: Simulator, stage: Stage, instances: list[int], failed_s: float) -> None:
    """Notice when all has been processed again."""

    def look() -> None:
        upstream = sim.upstream(stage) if sim.settings.recovery == "source replay" else []
        if any(index < stage.instances and stage.replay[index] > 0 for index in instances) or any(each.replay.any() for each in upstream):
            sim.clock.after(sim.settings.tick_s, look)
            return
        stage.interleave = 0.0
        sim.let_sources_go()
        sim.note("recovered", stage, sim.clock.now_s - failed_s)

    sim.clock.after(sim.settings.tick_s, look)
