"""The pool of a running application: requests of queries go in, and Spark is asked for executors. The cluster manager is a model."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.control.pool import PoolConfig
from headrace.ids import OperatorId
from headrace.runtime.placement import Placement
from headrace.runtime.pool import Pool, PoolClient
from headrace.spark.executors import Executor
from headrace.state.routing import Routing

OPEN_LOOP = ((0, 2), (11, 3), (21, 5), (22, 6), (31, 10), (32, 12), (41, 20), (42, 22), (72, 23), (162, 24))
"""Recorded: seconds and executors needed, as SEEP's query of Fig. 8 scales out (`headrace simulate seep-fig8 --set rows_per_s=200000`)."""


@dataclass
class Cluster:
    """A cluster manager that starts what is requested, after a while, as long as it has room."""

    start_s: float = 5.0
    room: int = 1000
    total: int = 0
    now_s: float = 0.0
    ids: list[str] = field(default_factory=list)
    starting: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    made: int = 0
    slow_to_die: bool = False
    dying: list[str] = field(default_factory=list)

    def live(self) -> tuple[Executor, ...]:
        return tuple(Executor(each, "here", 1) for each in self.ids)

    def decommissioned(self) -> frozenset[str]:
        return frozenset()

    def request(self, total: int) -> bool:
        self.requests.append(total)
        self.total = total
        del self.starting[max(0, min(total, self.room) - len(self.ids)) :]
        self.fill()
        return True

    def release(self, executors: list[str]) -> bool:
        self.total -= len(executors)
        self.dying += executors
        if not self.slow_to_die:
            self.bury()
        return True

    def bury(self) -> None:
        self.ids = [each for each in self.ids if each not in self.dying]
        self.dying.clear()

    def fill(self) -> None:
        missing = min(self.total, self.room) - (len(self.ids) - len(self.dying)) - len(self.starting)
        self.starting += [self.now_s + self.start_s] * max(0, missing)

    def at(self, now_s: float) -> None:
        self.now_s = now_s
        for _ in [at for at in self.starting if at <= now_s]:
            self.made += 1
            self.ids.append(str(self.made))
        self.starting = [at for at in self.starting if at > now_s]
        self.fill()


@dataclass
class Application:
    """One application on a cluster. A query lives on the oldest executors, as many as it needs."""

    cluster: Cluster = field(default_factory=Cluster)
    late: int = 0
    """Seconds in which a query had fewer executors than it needed."""

    def __post_init__(self) -> None:
        self.pool = Pool(cast(Any, self.cluster), clock=lambda: self.cluster.now_s)

    def query(self, name: str, ready: int) -> PoolClient:
        return PoolClient(self.pool, name, ready)

    def second(self, client: PoolClient, need: int) -> None:
        self.cluster.at(self.cluster.now_s + 1)
        homes = frozenset(self.cluster.ids[:need])
        self.late += len(homes) < need
        if client.tend(need, homes):
            assert not client.tend(need, homes, between_batches=True)

    def until(self, second: float, client: PoolClient, need: int) -> None:
        while self.cluster.now_s < second:
            self.second(client, need)

    def ready(self, need: int) -> int:
        return len(self.cluster.ids) - need


def replayed(ready: int) -> tuple[Application, list[int]]:
    """The recorded requests, with a pool of this size. Returns the number of ready and starting executors after each second."""
    app, sizes = Application(), []
    client = app.query("q", ready)
    app.until(10, client, 2)
    app.late = 0
    for (_, need), (until_s, _) in zip(OPEN_LOOP, (*OPEN_LOOP[1:], (300, 0)), strict=True):
        while app.cluster.now_s < 10 + until_s:
            app.second(client, need)
            sizes.append(len(app.cluster.ids) + len(app.cluster.starting) - need)
    return app, sizes


def test_a_query_that_scales_out_fast_gets_a_larger_pool_and_a_minute_later_the_old_one() -> None:
    _, sizes = replayed(ready=2)
    assert set(sizes[:10]) == {2}, "a steady query has what was asked for"
    assert set(sizes[42:101]) == {2 + 10}, "8 and 2 more within one start time"
    assert set(sizes[102:130]) == {2 + 1}, "a minute later for the one that was taken since"
    assert set(sizes[140:160]) == {2}
    assert (sizes[165], sizes[-1]) == (2 + 1, 2)


def test_the_more_are_ready_the_shorter_a_query_waits() -> None:
    late = [replayed(ready)[0].late for ready in (0, 1, 4, 8)]
    assert late == sorted(late, reverse=True)
    assert late[0] > 2 * late[1] > 0 == late[3]


def test_with_0_executors_are_requested_when_they_are_needed_and_none_before() -> None:
    _, sizes = replayed(ready=0)
    assert set(sizes) == {0}


def test_growth_and_shrinkage_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace"):
        replayed(ready=2)
    said = [record.getMessage() for record in caplog.records]
    assert said[1] == (
        "executors requested, 6 in all: Ready executors needed: 3 (1 taken within 5 s + 2 for failures); 1 ready, 0 starting"
    )
    assert said[-1] == "executors released, 37: Ready executors needed: 2 (0 taken within 5 s + 2 for failures); 3 ready, 0 starting"


def test_an_executor_that_is_lost_is_taken_from_the_pool_and_replaced() -> None:
    app = Application()
    client = app.query("q", 1)
    app.until(20, client, 2)
    assert len(app.cluster.ids) == 3
    app.cluster.ids.remove("1")
    app.until(30, client, 2)
    assert app.ready(2) == 2, "one more while failures are recent"
    app.until(95, client, 2)
    assert app.ready(2) == 1


def test_the_time_to_start_is_learned() -> None:
    app = Application(Cluster(start_s=30.0))
    client = app.query("q", 2)
    app.until(40, client, 2)
    assert app.pool.supply.start_s == 30.0
    for at in range(6):
        app.until(42 + 4 * at, client, 3 + at)
    assert app.pool.supply.requested == 8 + 2 + 6, "all six were taken within one start time"


def test_a_cluster_without_room_is_not_asked_again_and_again() -> None:
    app = Application(Cluster(room=3))
    client = app.query("q", 2)
    app.until(40, client, 3)
    assert app.cluster.requests == [5]
    app.until(80, client, 1)
    assert app.cluster.requests == [5, 3]
    assert app.pool.supply.start_s == PoolConfig.start_s, "waiting for room is no start"


def test_what_has_not_started_is_withdrawn_when_it_is_no_longer_needed() -> None:
    app = Application(Cluster(room=2))
    client = app.query("q", 0)
    app.until(10, client, 2)
    app.until(12, client, 6)
    app.until(14, client, 2)
    assert app.cluster.requests == [2, 6, 2]


def test_only_executors_without_instances_are_released_and_between_batches() -> None:
    app = Application()
    client = app.query("q", 0)
    app.until(20, client, 4)
    app.cluster.slow_to_die = True
    assert client.tend(2, frozenset({"1", "4"}))
    assert not app.cluster.dying
    assert not client.tend(2, frozenset({"1", "4"}), between_batches=True)
    assert sorted(app.cluster.dying) == ["2", "3"]
    assert client.released == {"2", "3"}, "Spark still lists them"
    assert not client.tend(2, frozenset({"1", "4"}), between_batches=True)
    assert len(app.cluster.dying) == 2
    app.cluster.bury()
    client.tend(2, frozenset({"1", "4"}))
    assert not client.released
    assert app.cluster.total == 2, "Spark keeps as many"


def test_two_queries_share_the_pool_and_one_that_ends_gives_its_executors_back() -> None:
    app = Application()
    first, second = app.query("first", 1), app.query("second", 3)
    app.until(20, first, 2)
    for _ in range(10):
        app.cluster.at(app.cluster.now_s + 1)
        first.tend(2, frozenset({"1", "2"}))
        second.tend(1, frozenset({"3"}))
    assert app.cluster.total == 2 + 1 + 3
    assert second.homes_of_others() == {"1", "2"}
    second.leave()
    assert not second.tend(1, frozenset({"3"})), "whoever has left is not heard any more"
    app.until(100, first, 2)
    assert app.cluster.total == 3


SUM, MAX = OperatorId("sum"), OperatorId("max")


def homes_with(live: int, placement: Placement, **instances: int) -> dict[str, list[str]]:
    """The homes after operators got this many instances, with this many live executors."""
    cast(Any, placement.executors).ids = [str(at + 1) for at in range(live)]
    placement.settle({OperatorId(name): Routing.even(count) for name, count in instances.items()})
    return {name: [home.id for home in homes] for name, homes in placement.homes.items()}


def placement(pool: PoolClient | None) -> Placement:
    return Placement(
        cast(Any, Cluster()), cast(Any, None), cast(Any, None), lambda *_: [], lends=True, working=None, guard=cast(Any, None), pool=pool
    )


def test_no_instance_lives_on_an_executor_that_is_kept_ready() -> None:
    placed = placement(Application().query("q", 2))
    assert homes_with(4, placed, sum=2, max=1) == {"sum": ["1", "2"], "max": ["1"]}
    assert homes_with(5, placed, sum=3, max=1) == {"sum": ["1", "2", "3"], "max": ["1"]}, "a new one takes a ready executor at once"
    cast(Any, placed.executors).ids.remove("2")
    placed.settle({SUM: Routing.even(3), MAX: Routing.even(1)})
    assert [home.id for home in placed.homes[SUM]] == ["1", "4", "3"], "so does one that lost its executor"
    assert homes_with(5, placed, sum=1, max=1) == {"sum": ["1"], "max": ["1"]}


def test_without_a_pool_instances_use_all_executors() -> None:
    assert homes_with(4, placement(None), sum=2, max=1) == {"sum": ["1", "2"], "max": ["3"]}


def test_two_queries_live_on_executors_of_their_own() -> None:
    app = Application()
    app.cluster.ids = ["1", "2", "3"]
    app.query("first", 1).tend(2, frozenset({"1", "2"}))
    assert homes_with(4, placement(app.query("second", 1)), sum=2) == {"sum": ["3", "4"]}
    assert homes_with(3, placement(app.query("third", 1)), sum=2) == {"sum": ["1", "3"]}, "there are too few"


def test_a_flush_runs_where_the_rows_were_written_and_homes_stay() -> None:
    """Spark ran the first instance's task on executor 3, because its home was busy; the second one's executor is gone."""
    placed = placement(None)
    assert homes_with(3, placed, sum=2) == {"sum": ["1", "2"]}
    with placed.following({SUM: ["3", "9"]}):
        assert [home.id for home in placed.homes[SUM]] == ["3", "2"]
    assert [home.id for home in placed.homes[SUM]] == ["1", "2"]
