"""Policies on a model of micro-batches, live and replayed: they follow the load, and rest when it does."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from headrace.control.elastic import Elastic
from headrace.control.governor import Outcome
from headrace.errors import QueryError
from headrace.sim.replay import moments, read_batches, replay
from headrace.state.routing import Routing
from tests.unit.control.engine import NAME, Engine, Scaled

POLICIES = [Elastic(policy="elastic-manager", max=16), Elastic(policy="bottleneck", max=16), Elastic(policy="rates", max=16)]
IDS = [each.policy for each in POLICIES]
ROWS_OF_ONE = 50_000
"""What an instance of the model can do at most in a second."""


@pytest.mark.parametrize("settings", POLICIES, ids=IDS)
@pytest.mark.parametrize("trigger_s", [0.0, 1.0])
@pytest.mark.parametrize("load", [2.6, *(pytest.param(load, marks=pytest.mark.extra) for load in (0.3, 1.1))])
def test_a_steady_load_comes_to_rest(settings: Elastic, trigger_s: float, load: float) -> None:
    """With a tenth of noise in everything that is measured; from one instance and from many.

    A detector that wants two reports in a row waits for two batches, and in an overload those are long.
    """
    for instances in (1, 8):
        engine = Engine(lambda _: load * ROWS_OF_ONE, trigger_s=trigger_s, routing=Routing.even(instances))
        scaled = Scaled(engine, settings).run(200.0)
        late = [entry for entry in scaled.changes if entry.at_s > 100.0]
        # At the very edge of a threshold noise alone may split an instance, once.
        edge = [entry for entry in late if entry.what == "scale out" and settings.policy == "bottleneck"]
        assert late == edge[:1], [(round(e.at_s), e.instances_before, e.instances, e.why) for e in scaled.changes]
        assert engine.routing.instances > load, "instances keep up"
        # SEEP's detector never gives up an instance.
        if settings.policy != "bottleneck":
            assert engine.routing.instances <= load / 0.4 + 1


@pytest.mark.parametrize("settings", POLICIES, ids=IDS)
@pytest.mark.parametrize("trigger_s", [0.0, 1.0])
def test_instances_follow_a_burst_and_what_follows_it(settings: Elastic, trigger_s: float) -> None:
    engine = Engine(lambda at: ROWS_OF_ONE * (2.5 if 40 < at < 100 else 0.2), trigger_s=trigger_s)
    scaled = Scaled(engine, settings).run(160.0)
    by_time = [(at, count) for at, count, _ in scaled.seen]
    assert max(count for at, count in by_time if at < 40) == 1
    assert max(count for at, count in by_time if 60 < at < 100) >= 3
    assert engine.routing.instances == (1 if settings.policy != "bottleneck" else max(count for _, count in by_time))


def test_portions_of_a_backlog_make_the_manager_grow() -> None:
    """Batches of at most 10,000 rows cannot grow, and so instances never look busy; that rows are left behind tells."""
    settings = POLICIES[0]
    engine = Engine(lambda _: 25_000, overhead_s=0.05, row_s=60e-6, portion=10_000)
    scaled = Scaled(engine, settings).run(60.0)
    assert engine.routing.instances >= 2
    assert scaled.changes[0].instances_before == 1
    # 10,000 rows take 0.05 s and 0.6 s at first, 15,000 rows/s; the rest is worked off in the end.
    assert engine.came < 25_000


def test_the_load_balancer_levels_skew_and_rests() -> None:
    engine = Engine(lambda _: 60_000, trigger_s=1.0, routing=Routing.even(2))
    engine.weights[:1024] *= 5
    engine.weights /= engine.weights.sum()
    scaled = Scaled(engine, Elastic(policy="load-balancer")).run(120.0)
    assert scaled.changes[0].what.startswith("move")
    assert all(entry.at_s < 60 for entry in scaled.changes)
    assert engine.routing.instances == 2
    shares = engine.routing.loads(engine.weights)
    assert max(shares) < 0.6


def test_a_replay_with_the_settings_of_then_decides_as_then_until_the_first_change() -> None:
    settings = POLICIES[0]
    engine = Engine(lambda at: ROWS_OF_ONE * (2.5 if at > 30 else 0.2), trigger_s=1.0)
    scaled = Scaled(engine, settings).run(60.0)
    batches = read_batches(engine.lines)
    assert len(batches) == engine.version
    first, then = replay(batches, settings).performed[0], scaled.changes[0]
    assert (first.at_s, first.instances, first.why) == (then.at_s, then.instances, then.why)


def test_a_replay_follows_its_own_decisions() -> None:
    """A record of one instance: with the policy there would have been more, each less busy, and then one again."""
    engine = Engine(lambda at: ROWS_OF_ONE * (0.95 if 30 < at < 90 else 0.2), trigger_s=1.0)
    for _ in range(140):
        engine.batch()
    found = replay(read_batches(engine.lines), Elastic(max=4))
    assert [(entry.instances_before, entry.instances) for entry in found.performed] == [(1, 2), (2, 1)]
    grown = next(moment for moment in found.moments if moment.observation.operators[0].instances == 2)
    assert grown.observation.operators[0].cpu.mean() == pytest.approx(0.5, abs=0.1)
    dry = replay(read_batches(engine.lines), Elastic(max=4, dry_run=True))
    assert not dry.performed
    assert {entry.outcome for entry in dry.log} == {Outcome.DRY_RUN, Outcome.STEADY}


def test_silence_is_observed_once_a_period() -> None:
    engine = Engine(lambda at: 1000 if at < 10 or at > 30 else 0, trigger_s=1.0)
    for _ in range(20):
        engine.batch()
    batches = read_batches(engine.lines)
    quiet = [at for count, at in moments(batches, 5.0) if at != batches[count - 1].end_s]
    assert len(quiet) == 3
    assert all(10 < at <= 30.5 for at in quiet)
    counts = {moment.at_s: moment.instances[NAME] for moment in replay(batches, Elastic(min=1, max=4)).moments}
    assert counts[quiet[-1]] == 1


def test_what_spark_does_between_batches_is_no_silence() -> None:
    """Our part of two batches lies ten seconds apart; Spark was busy with them all the time."""
    engine = Engine(lambda _: 1000)
    lines = []
    for _ in range(2):
        progress = engine.batch()
        begin_s = progress.report().begin_s
        spark = {"timestamp": datetime.fromtimestamp(begin_s, UTC).isoformat(), "durationMs": {"triggerExecution": 10_000}}
        lines.append(json.dumps({**spark, "headrace": progress.headrace()}))
        engine.wait(begin_s + 10 - engine.now_s)
    batches = read_batches(lines)
    assert len(list(moments(batches, 2.0))) == 2
    assert len(list(moments([replace(batch, spark_s=None) for batch in batches], 2.0))) > 2


def test_the_record_may_be_headrace_s_part_alone_and_has_blank_lines() -> None:
    engine = Engine(lambda _: 1000)
    parts = [json.dumps(engine.batch().headrace()) for _ in range(3)]
    assert [batch.version for batch in read_batches([parts[2], "", parts[0], parts[1]])] == [0, 1, 2]


@pytest.mark.parametrize("line", ["{", "[]", '{"headrace": {}}', '{"batchId": 7}'])
def test_what_is_no_progress_of_headrace_is_refused(line: str) -> None:
    with pytest.raises(QueryError, match="line 1: wanted the progress of a Headrace query, as JSON"):
        read_batches([line])
