"""Each checker is made to fail on purpose: one that cannot fail checks nothing."""

from __future__ import annotations

from headrace.control.observation import Observation
from headrace.sim.simulator import Listener, Simulator
from tests.unit.sim.build import SUM, plan


def violated(listener: Listener, **options: object) -> set[str]:
    trace = Simulator(plan(**options), listeners=[listener]).run()  # type: ignore[arg-type]
    return {violation.checker for violation in trace.violations}


def test_a_row_that_vanishes_is_noticed() -> None:
    def steal(sim: Simulator, seen: Observation) -> None:
        sim.stages[SUM].queues.waiting = sim.stages[SUM].queues.waiting * 0.5

    assert violated(steal, rate=6000.0, spare=0) == {"tuples"}
    assert violated(lambda sim, seen: None, rate=6000.0, spare=0) == set()


def test_a_row_that_is_counted_twice_is_noticed() -> None:
    def double(sim: Simulator, seen: Observation) -> None:
        sim.stages[SUM].rows_done += 100

    assert violated(double) == {"tuples"}


def test_rows_that_get_lost_between_operators_are_noticed() -> None:
    def forget(sim: Simulator, seen: Observation) -> None:
        sim.rows_offered["in"] += 100

    assert violated(forget) == {"tuples"}


def test_a_slot_of_nobody_is_noticed() -> None:
    def give_away(sim: Simulator, seen: Observation) -> None:
        owners = sim.stages[SUM].owners.copy()
        owners[7] = 1
        sim.stages[SUM].owners = owners

    # One report only: with such owners nothing further could be observed.
    assert violated(give_away, duration_s=6.0) == {"owners"}


def test_copies_in_one_zone_are_noticed() -> None:
    def together(sim: Simulator, seen: Observation) -> None:
        stage = sim.stages[SUM]
        stage.holders[0, 0] = stage.hosts[0]

    assert violated(together) == {"zones"}


def test_an_overload_beside_a_ready_machine_is_noticed_after_the_grace_period() -> None:
    overloaded = {"rate": 6000.0, "duration_s": 60.0, "spare": 1}
    assert violated(lambda sim, seen: None, grace_s=30.0, **overloaded) == {"overload"}
    assert violated(lambda sim, seen: None, grace_s=100.0, **overloaded) == set()
    assert violated(lambda sim, seen: None, grace_s=30.0, **overloaded | {"spare": 0}) == set()


def test_an_overload_beside_an_idle_instance_is_noticed() -> None:
    from headrace.sim import workload

    skewed = {"keys": workload.normal(0.2, 0.05)}
    options = {"rate": 6000.0, "spare": 0, "instances": (1, 2), "sum_keys": skewed, "grace_s": 30.0}
    assert violated(lambda sim, seen: None, **options) == {"overload"}
