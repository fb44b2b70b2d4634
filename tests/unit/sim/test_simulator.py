from __future__ import annotations

import numpy as np
import pytest

from headrace.control.decisions import Move, MoveSlots, Nothing, ScaleIn, ScaleOut, Shed, moves_between
from headrace.errors import QueryError
from headrace.ids import SLOTS, InstanceId, OperatorId
from headrace.sim import workload
from headrace.sim.model import Fault, MachineModel, SimulatedOperator, SimulatedQuery, SimulatedState, SimulationPlan, SimulationSettings
from headrace.sim.policies import balancer, constant_pool, pool_of, rate_based, seep, streamcloud, three_tiers
from headrace.sim.simulator import Simulator
from headrace.sim.trace import Trace
from tests.unit.sim.build import MAP, SUM, plan

FAULTS = (Fault(20.0, operator=SUM, count=1), Fault(30.0, zone=1))


def busy(seed: int) -> Trace:
    rate = workload.bursts(workload.ramp(2000, 20_000, 60), seed=3, every_s=20, length_s=5)
    return Simulator(plan(rate, 90, faults=FAULTS, jitter=0.3, tick_s=0.25), [seep()], constant_pool(4, 20), seed).run()


def test_the_same_seed_gives_the_same_trace_and_another_one_another() -> None:
    assert busy(1).digest() == busy(1).digest() != busy(2).digest()


def test_nothing_breaks_a_rule_while_machines_fail_and_the_load_grows() -> None:
    trace = busy(5)
    assert trace.violations == ()
    assert len(trace.values("recovered")) == sum(trace.values("failed")) > 0
    assert trace["instances.sum"][-1] > trace["instances.sum"][0]


def test_below_full_load_rows_take_as_long_as_the_way() -> None:
    trace = Simulator(plan(4000.0)).run()
    assert trace.latencies.percentile(99) == pytest.approx(2 * 0.01, rel=0.02)
    assert trace["rows_out_per_s"][-1] == pytest.approx(4000)


def test_above_full_load_the_queue_grows_by_what_is_too_much() -> None:
    trace = Simulator(plan(6000.0, 50, spare=0)).run()
    assert trace["rows_waiting"][-1] == pytest.approx(1000 * 50, rel=1e-6)
    # The last row out waited behind all that were too much: 50 s of 6,000 a second take 60 s.
    assert trace["latency_p99_s"][-1] == pytest.approx(50 - 50 * 5000 / 6000, abs=0.3)


def test_the_network_limits_rows_too() -> None:
    slow = MachineModel(network_bytes_per_s=100_000)
    trace = Simulator(plan(3000.0, 20, machines=slow, spare=0)).run()
    assert trace["rows_out_per_s"][-1] == pytest.approx(1000)


def test_machines_shared_by_operators_are_shared_by_what_there_is_to_do() -> None:
    both = SimulationPlan(plan().query, 60, hosts={MAP: (0,), SUM: (0,)})
    assert Simulator(both).run()["rows_out_per_s"][-1] == pytest.approx(1000)
    # 0.3 ms a row for both together: 3,333 rows a second at most.
    full = SimulationPlan(plan(5000.0).query, 60, hosts={MAP: (0,), SUM: (0,)})
    trace = Simulator(full).run()
    assert trace["rows_out_per_s"][30:].mean() == pytest.approx(3333, rel=0.1)
    assert trace.violations == ()


def test_parts_of_a_stream_go_to_different_operators() -> None:
    left = SimulatedOperator(OperatorId("left"), {"map": 0.25}, 1e-4)
    right = SimulatedOperator(OperatorId("right"), {"map": 0.75}, 1e-4)
    both = SimulatedOperator(OperatorId("both"), {"left": 1.0, "right": 1.0}, 1e-4)
    query = SimulatedQuery({"in": workload.constant(1000)}, (both, left, right, SimulatedOperator(MAP, {"in": 1.0}, 1e-4, selectivity=2.0)))
    sim = Simulator(SimulationPlan(query, 10))
    assert sim.run().violations == ()
    assert [round(sim.stages[OperatorId(name)].rows_done) for name in ("map", "left", "right", "both")] == [10_000, 5_000, 15_000, 20_000]


def test_a_pool_that_is_empty_makes_scale_out_wait_for_a_start() -> None:
    def scaled_s(spare: int) -> float:
        pool = constant_pool(spare, 40)
        trace = Simulator(plan(6000.0, 120, spare=spare, machines=MachineModel(start_s=40), tick_s=0.5), [seep()], pool).run()
        return next(event.at_s for event in trace.events if event.what == "scaled out")

    assert scaled_s(0) - scaled_s(2) == pytest.approx(40, abs=0.6)


def test_after_a_scale_out_the_rows_since_the_checkpoint_are_processed_again() -> None:
    def delay_s(handover: str) -> float:
        state = SimulatedState(bytes_per_row=10, bytes_max=1e6, checkpoint_s=30)
        trace = Simulator(plan(4000.0, 60, state=state, handover=handover, deploy_s=0.5), [seep()], pool_of()).run()
        return float(np.nanmax(trace["latency_p99_s"]))

    assert delay_s("checkpoint") > 1.0 > 0.1 > delay_s("fetch")


def test_state_that_is_shipped_with_a_pause_holds_up_rows_for_the_transfer() -> None:
    # 40 MB by 10 MB a second, half of it moved.
    state = SimulatedState(bytes_per_row=1e6, bytes_max=40e6)
    slow = MachineModel(network_bytes_per_s=10e6, start_s=20)
    trace = Simulator(plan(4000.0, 60, state=state, machines=slow, handover="pause"), [seep()], pool_of()).run()
    assert float(np.nanmax(trace["latency_p99_s"])) == pytest.approx(2.0, abs=0.8)


def test_instances_that_go_leave_their_machines_to_the_pool() -> None:
    trace = Simulator(plan(1000.0, 60, instances=(2, 6)), [streamcloud()]).run()
    assert trace["instances.sum"][-1] == 1
    assert trace["working"][-1] == 2
    assert trace["ready"][-1] == 4 + 6
    assert trace.violations == ()


@pytest.mark.parametrize("policy", [streamcloud, rate_based, three_tiers, balancer, seep])
def test_every_policy_drives_a_run(policy) -> None:  # type: ignore[no-untyped-def]
    skewed = {"keys": workload.normal(0.3, 0.2)}
    trace = Simulator(plan(8000.0, 90, instances=(2, 3), sum_keys=skewed, spare=8, tick_s=0.25), [policy()], pool_of()).run()
    assert [each for each in trace.violations if each.checker != "overload"] == []
    assert any(not isinstance(decision, Nothing) for _, decision in trace.decisions)


def test_shedding_discards_on_purpose_and_is_counted() -> None:
    shed = Shed(operator=SUM, instance=InstanceId(0), keep=0.5, why="asked for")
    sim = Simulator(plan(4000.0, 40), listeners=[lambda sim, seen: sim.perform(shed)])
    trace = sim.run()
    assert trace["rows_discarded"][-1] == pytest.approx(4000 * 35 / 2, rel=0.01)
    assert trace.violations == ()


def test_an_open_loop_discards_what_does_not_fit_into_the_queue() -> None:
    sim = Simulator(plan(8000.0, 40, sum_keys={"queue_rows_max": 1000.0}, spare=0))
    trace = sim.run()
    assert trace["waiting.sum"].max() <= 1000
    assert trace["rows_discarded"][-1] == pytest.approx(3000 * 40, rel=0.02)
    assert trace.violations == ()


def test_keys_that_shift_move_the_load() -> None:
    moving = {"keys": workload.shifting(workload.ramp(0.1, 0.9, 60), workload.constant(0.1)), "keys_change": True}
    sim = Simulator(plan(4000.0, 60, instances=(1, 2), sum_keys=moving), listeners=[lambda sim, seen: seen_cpu.append(sim.loads[SUM].cpu)])
    seen_cpu: list[np.ndarray] = []
    sim.run()
    assert seen_cpu[0][0] > 0.7 > 0.1 > seen_cpu[0][1]
    assert seen_cpu[-1][1] > 0.7 > 0.1 > seen_cpu[-1][0]


def test_a_machine_that_fails_while_it_is_to_take_over_aborts_the_change() -> None:
    sim = Simulator(plan(6000.0, 40, spare=1, deploy_s=5.0, machines=MachineModel(start_s=100)), [seep()])
    sim.clock.at(12.0, lambda: sim.fail(Fault(12.0, machines=(2,))))
    trace = sim.run()
    assert "change aborted" in [event.what for event in trace.events]
    assert trace["instances.sum"][-1] == 1
    assert trace.violations == ()


@pytest.mark.parametrize(
    ("dies", "aborted"), [("the holder of the backup", True), ("the old owner", False), ("another instance", False), ("nobody", False)]
)
def test_a_change_is_aborted_if_the_holder_of_the_backup_dies_and_goes_on_if_another_does(dies: str, aborted: bool) -> None:
    """SEEP, Algorithm 3: the state comes from the holder. The others recover with the new routing."""
    sim = Simulator(plan(1000.0, 40, instances=(2, 2), spare=4, deploy_s=5.0))
    grow = ScaleOut(operator=SUM, instances=3, moves=(Move(((0, 1000),), InstanceId(2)),), why="test")
    stage = sim.stages[SUM]
    giver = int(stage.owners[0])
    machines = {"the holder of the backup": int(stage.holders[giver, 0]), "the old owner": int(stage.hosts[giver])}
    machines["another instance"] = int(stage.hosts[1 - giver])
    assert len(set(machines.values())) == 3
    sim.clock.at(10.0, lambda: sim.perform(grow))
    if dies in machines:
        sim.clock.at(12.0, lambda: sim.fail(Fault(12.0, machines=(machines[dies],))))
    trace = sim.run()
    assert ("change aborted" in [event.what for event in trace.events]) is aborted
    assert trace["instances.sum"][-1] == (2 if aborted else 3)
    assert trace.violations == ()


def test_parallel_recovery_splits_the_failed_instance() -> None:
    trace = Simulator(plan(4000.0, 40, faults=[Fault(20.0, operator=SUM, count=1)], recovery_parts=2)).run()
    assert trace["instances.sum"][-1] == 2
    assert len(trace.values("recovered")) == 1


def test_when_owner_and_backup_die_together_the_loss_is_told() -> None:
    trace = Simulator(plan(1000.0, 40, instances=(3, 3), faults=[Fault(20.0, machines=tuple(range(6)))], spare=8)).run()
    assert sum(trace.values("state lost")) == SLOTS
    assert {violation.checker for violation in trace.violations} == {"state"}
    one = Simulator(plan(1000.0, 40, instances=(3, 3), faults=[Fault(20.0, machines=(3,))], spare=8)).run()
    assert one.values("state lost") == []
    assert one.violations == ()


def test_a_backup_lies_in_another_zone_that_has_a_machine_whichever_that_is() -> None:
    sim = Simulator(plan(1000.0, 10, instances=(1, 1), spare=0, machines=MachineModel(zones=3)))
    # Machines 0 and 1 are in the first two zones, and the third is empty.
    assert sim.stages[SUM].holders.tolist() == [[int(sim.stages[MAP].hosts[0])]]


def test_moves_and_scale_in_of_a_listener_are_performed() -> None:
    owners = np.arange(SLOTS) * 3 // SLOTS
    merged = ScaleIn(operator=SUM, instances=2, moves=moves_between(owners, np.minimum(owners, 1)), why="quiet")
    swapped = MoveSlots(operator=SUM, moves=moves_between(np.minimum(owners, 1), 1 - np.minimum(owners, 1)), why="fun")
    sim = Simulator(plan(1000.0, 40, instances=(1, 3)))
    sim.clock.at(10.0, lambda: sim.perform(merged))
    sim.clock.at(20.0, lambda: sim.perform(swapped))
    assert sim.run().violations == ()
    assert np.bincount(sim.stages[SUM].owners).tolist() == [SLOTS - (owners == 0).sum(), (owners == 0).sum()]


def test_impossible_settings_are_refused_where_they_are_made() -> None:
    with pytest.raises(QueryError, match="handover of checkpoint, fetch, pause; found 'magic'"):
        SimulationSettings(handover="magic")
    with pytest.raises(QueryError, match="inputs among in, sum; found nowhere"):
        Simulator(SimulationPlan(SimulatedQuery({"in": workload.constant(1)}, (SimulatedOperator(SUM, {"nowhere": 1.0}, 1e-4),)), 1))
    with pytest.raises(QueryError, match="ascending moments"):
        workload.recorded([3, 1], [1, 1])
