"""What a batch says is told once, when it is new: losses and recoveries, copies, checkpoints, drops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.runtime.history_events import Seen, events_of


def told(seen: Seen, end_s: float = 100.0, **more: Any) -> list[dict[str, Any]]:
    """The events of a batch that took two seconds, without their version."""
    quiet: dict[str, Any] = {"batchMs": 2000.0, "decisions": [], "changes": [], "interruptions": [], "versionsRebuilt": 0, "gaps": []}
    quiet |= {"storeWaitMs": 0.0, "checkpoint": None, "replicas": None, "shedding": None, "routing": {"sum": {"homes": []}}}
    progress: Any = SimpleNamespace(times_s=(end_s - 2.0, end_s, end_s - 4.0), version=7)
    return events_of(progress, {**quiet, **more}, seen)


def test_a_quiet_batch_says_nothing() -> None:
    assert told(Seen()) == []


def test_a_loss_is_recovered_when_the_batch_that_ran_again_has_ended() -> None:
    (lost,) = told(Seen(), interruptions=[{"executors": ["3"], "hung": False, "afterMs": 500.0}])
    assert (lost["kind"], lost["executors"], lost["recoveredMs"], lost["t"], lost["v"]) == ("lost", ["3"], 1500.0, 98.0, 7)


def test_the_time_without_full_redundancy_is_told_when_it_ends() -> None:
    seen = Seen()
    (begin,) = told(seen, 100.0, replicas={"missing": 2, "missingMs": 1000})
    assert (begin["kind"], begin["missing"]) == ("redundancy", 2)
    assert told(seen, 102.0, replicas={"missing": 1, "missingMs": 3000}) == []
    (end,) = told(seen, 105.0, replicas={"missing": 0, "missingMs": 0})
    assert (end["missing"], end["lastedMs"]) == (0, 6000)


def test_a_checkpoint_is_told_once_and_at_its_time() -> None:
    seen = Seen()
    taken = {"version": 5, "ageMs": 4000, "tookMs": 30.0, "waitedMs": 0.0, "bytesShipped": 10, "bytesState": 20, "units": 1, "newBases": 0}
    (event,) = told(seen, checkpoint=taken)
    assert (event["kind"], event["version"], event["t"]) == ("checkpoint", 5, 96.0)
    assert told(seen, checkpoint={**taken, "ageMs": 6000}) == []
    assert len(told(seen, checkpoint={**taken, "version": 9})) == 1


def test_homes_that_come_and_go_and_waits_and_gaps_are_told() -> None:
    seen = Seen()
    (homes,) = told(seen, routing={"sum": {"homes": ["1", "2"]}})
    assert (homes["came"], homes["gone"]) == (["1", "2"], [])
    found = told(seen, routing={"sum": {"homes": ["2", "3"]}}, storeWaitMs=5000.0, versionsRebuilt=2, gaps=[{"operator": "sum"}])
    assert [each["kind"] for each in found] == ["rebuilt", "gap", "store", "homes"]
    assert (found[-1]["came"], found[-1]["gone"]) == (["3"], ["1"])
    assert told(seen, routing={"sum": {"homes": ["2", "3"]}}, storeWaitMs=50.0) == []


def test_a_new_plan_of_drops_and_its_end_are_told() -> None:
    seen = Seen()
    sinks = [{"sink": "a", "weight": 1.0, "delivered": 0.7}]
    (event,) = told(seen, shedding={"plan": 3, "sinks": sinks})
    assert (event["plan"], event["sinks"]) == (3, sinks)
    assert told(seen, shedding={"plan": 3, "sinks": sinks}) == []
    (event,) = told(seen, shedding={"plan": None, "sinks": sinks})
    assert event["plan"] is None
