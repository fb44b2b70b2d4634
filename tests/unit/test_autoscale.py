"""The autoscaler without Spark: it gets batches of a model, changes the routing, and logs every decision."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, cast

import pytest

from headrace.control.decisions import Move, MoveSlots, ScaleOut
from headrace.control.elastic import Elastic
from headrace.control.governor import Outcome
from headrace.control.observing import FITTED
from headrace.errors import QueryError
from headrace.ids import InstanceId
from headrace.runtime.autoscale import RANGES_MAX, Autoscaler, decided, required_autoscaler
from headrace.runtime.decision_log import DecisionLog
from headrace.runtime.elastic import LiveRouting
from headrace.state.routing import Routing
from tests.unit.control.engine import NAME, Engine


class NoCheckpoint:
    """What a change of the routing needs of an operator."""

    location = "checkpoint"

    def latest(self) -> None:
        return None

    def note_routing(self, routing: Any) -> None:
        pass


@dataclass
class Bench:
    """A model of a query, and its autoscaler. Nothing happens without a call."""

    engine: Engine
    scaler: Autoscaler

    @classmethod
    def of(cls, rate: float, instances: int = 1, **settings: Any) -> Bench:
        elastic = Elastic(**settings).on(16)
        decisions = DecisionLog(elastic)
        live = LiveRouting(cast(Any, NoCheckpoint()), {NAME: Routing.even(instances)}, threading.Lock(), decisions=decisions)
        return cls(Engine(lambda _: rate, trigger_s=1.0), Autoscaler(elastic, live, decisions, lambda: True))

    def run(self, seconds: float) -> Bench:
        end_s = self.engine.now_s + seconds
        while self.engine.now_s < end_s:
            self.engine.routing = self.live.routing[NAME]
            self.scaler.offer(self.engine.batch().report())
            self.scaler.look(self.engine.now_s)
        return self

    @property
    def live(self) -> LiveRouting:
        return self.scaler.live

    @property
    def instances(self) -> int:
        return self.live.routing[NAME].instances

    @property
    def outcomes(self) -> list[Outcome]:
        return [entry.outcome for entry in self.scaler.decisions.entries]


@pytest.fixture(autouse=True)
def model_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cool-downs end at once: the model's seconds are shorter than the clock's."""
    monkeypatch.setattr(time, "time", lambda: -1e6)


def test_a_burst_makes_it_grow_and_the_routing_says_why() -> None:
    bench = Bench.of(110_000).run(20)
    assert bench.instances == 4
    (change,) = bench.live.drain_changes()
    assert change.why.startswith("elastic-manager: Utilisation 2")
    (grown,) = [entry for entry in bench.scaler.decisions.entries if entry.outcome is Outcome.PERFORMED]
    assert (grown.instances_before, grown.instances) == (1, 4)
    assert grown in bench.scaler.decisions.drain()
    # A repeated decision makes no new entry.
    bench.run(20)
    assert not [entry for entry in bench.scaler.decisions.drain() if entry.outcome is Outcome.PERFORMED]


def test_a_stream_that_went_quiet_gives_up_its_instances() -> None:
    bench = Bench.of(110_000).run(20)
    last_s = bench.scaler.batches[-1].end_s
    bench.scaler.look(last_s + 4.9)
    assert bench.instances == 4
    bench.scaler.look(last_s + 5.1)
    assert bench.instances == 1
    # No batch has run since the changes, so the earlier utilisation says nothing. The query is idle.
    bench.scaler.look(last_s + 60)
    assert bench.instances == 1
    assert bench.outcomes[-1] is Outcome.STEADY
    assert "Utilisation 0.0%" in bench.scaler.decisions.entries[-1].why


def test_a_long_batch_is_no_idleness() -> None:
    bench = Bench.of(110_000).run(20)
    with bench.live.lock:
        bench.scaler.look(bench.scaler.batches[-1].end_s + 300)
    assert bench.instances == 4
    # Nor is what Spark does between two batches.
    bench.scaler.is_idle = lambda: False
    bench.scaler.look(bench.scaler.batches[-1].end_s + 300)
    assert bench.instances == 4


def test_what_is_done_by_hand_stays_until_it_is_given_back() -> None:
    bench = Bench.of(110_000)
    bench.live.rescale(None, 2)
    bench.run(20)
    assert bench.instances == 2
    assert bench.outcomes == [Outcome.MANUAL, Outcome.OVERRIDDEN]
    assert "rescale to 2 was asked for; no automatic changes of sum until elastic_resume()" in bench.scaler.decisions.entries[0].why
    bench.scaler.resume("sum")
    bench.run(20)
    assert bench.instances == 4
    assert bench.outcomes[2:4] == [Outcome.RESUMED, Outcome.PERFORMED]
    # Nobody has taken it since; there is nothing to give back.
    bench.scaler.resume()
    assert bench.outcomes.count(Outcome.RESUMED) == 1
    with pytest.raises(QueryError, match="an operator of the query: sum"):
        bench.scaler.resume("smu")


def test_a_request_that_is_refused_overrides_nothing() -> None:
    bench = Bench.of(110_000)
    with pytest.raises(QueryError):
        bench.live.rescale("smu", 2)
    with pytest.raises(QueryError):
        bench.live.move(7, 9, None)
    assert bench.run(20).instances == 4


def test_a_change_by_hand_while_a_decision_waits_for_its_turn_wins() -> None:
    bench = Bench.of(110_000)
    perform = bench.live.perform

    def slowly(*args: Any) -> bool:
        bench.live.rescale(None, 3)
        return perform(*args)

    bench.live.perform = slowly  # type: ignore[method-assign]
    bench.run(12)
    assert bench.instances == 3
    assert Outcome.PERFORMED not in bench.outcomes
    assert "it was changed by hand meanwhile" in next(e.why for e in bench.scaler.decisions.entries if e.outcome is Outcome.OVERRIDDEN)


def test_a_dry_run_changes_nothing_and_says_what_it_would() -> None:
    bench = Bench.of(110_000, dry_run=True).run(20)
    assert bench.instances == 1
    assert set(bench.outcomes) == {Outcome.DRY_RUN}


def test_a_change_that_fails_is_logged_and_the_query_goes_on() -> None:
    bench = Bench.of(110_000)

    def refuse(*args: Any) -> bool:
        raise QueryError(where="perform", found="a full disk")

    bench.live.perform = refuse  # type: ignore[method-assign]
    bench.run(20)
    failed = next(entry for entry in bench.scaler.decisions.entries if entry.outcome is Outcome.FAILED)
    assert failed.why.endswith("perform: found a full disk")


def test_the_thread_survives_what_nobody_thought_of() -> None:
    bench = Bench.of(1000, period_s=0.1)
    # A task of an instance that the routing does not have.
    report = bench.engine.batch().report()
    bench.scaler.offer(replace(report, instances=(replace(report.instances[0], instance=9),)))
    bench.scaler.start()
    deadline = time.monotonic() + 10
    while not bench.scaler.decisions.entries and time.monotonic() < deadline:
        time.sleep(0.01)
    bench.scaler.stop()
    assert bench.scaler.decisions.entries[0].outcome is Outcome.FAILED
    assert "IndexError" in bench.scaler.decisions.entries[0].why


def test_batches_that_were_only_delivered_again_do_not_count() -> None:
    bench = Bench.of(1000)
    bench.scaler.offer(replace(bench.engine.batch().report(), replayed=True))
    bench.scaler.look(1.0)
    assert not bench.scaler.batches


def test_batches_are_forgotten_when_no_period_reaches_back_to_them() -> None:
    bench = Bench.of(1000).run(60)
    assert len(bench.scaler.batches) == FITTED


def test_moves_that_would_scatter_slots_are_dealt_out_in_ranges_instead() -> None:
    even = tuple((slot, slot + 1) for slot in range(0, 4 * RANGES_MAX, 2))
    before = Routing.even(2)
    for count, wanted in ((RANGES_MAX - 1, 1), (RANGES_MAX + 1, 0)):
        decision = MoveSlots(operator=NAME, moves=(Move(even[:count], InstanceId(1)),), why="uneven")
        after = decided(before, decision, before.epoch, lambda _: before)
        assert after.table()[0] == wanted
        assert (after.table() == 1).sum() == 2048 + count, "as many slots move, if not the same"
    grown = ScaleOut(operator=NAME, instances=3, why="busy")
    assert decided(before, grown, before.epoch, Routing.even).instances == 3


def test_who_is_not_elastic_is_told_how_to_be() -> None:
    with pytest.raises(QueryError, match=r"elastic\(hr.Elastic"):
        required_autoscaler(None)
