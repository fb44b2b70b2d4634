"""SEEP's pool of ready machines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.control.decisions import Nothing, ReleaseExecutors, RequestExecutors
from headrace.control.pool import PoolConfig, PoolMemory, PoolObservation, decide
from headrace.errors import InvariantError, QueryError


class Pool:
    """Executors that take time to start, and a policy that keeps some ready."""

    def __init__(self, config: PoolConfig) -> None:
        self.config, self.memory = config, PoolMemory()
        self.now_s, self.working, self.ready, self.taken = 0.0, 1, 0, 0
        self.starting: list[float] = []
        self.refused = 0
        self.acts: list[object] = []

    def second(self, need: int = 0) -> None:
        self.now_s += 1
        self.ready += sum(at <= self.now_s for at in self.starting)
        self.starting = [at for at in self.starting if at > self.now_s]
        got = min(need, self.ready)
        self.refused += need - got
        self.ready, self.working, self.taken = self.ready - got, self.working + got, got
        seen = PoolObservation(self.now_s, self.working, self.ready, len(self.starting), self.taken)
        (decision,), self.memory = decide(seen, self.config, self.memory)
        if isinstance(decision, RequestExecutors):
            missing = decision.total - self.working - self.ready - len(self.starting)
            assert missing > 0
            self.starting += [self.now_s + self.config.start_s] * missing
        elif isinstance(decision, ReleaseExecutors):
            assert 0 < decision.count <= self.ready
            self.ready -= decision.count
        if not isinstance(decision, Nothing):
            self.acts.append(decision)

    def steady(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()


def test_two_are_kept_ready_for_failures() -> None:
    pool = Pool(PoolConfig())
    pool.steady(20)
    assert pool.ready == 2
    pool.second(need=1)
    assert pool.refused == 0


def test_the_pool_grows_while_the_query_scales_out_fast_and_shrinks_after() -> None:
    pool = Pool(PoolConfig())
    pool.steady(20)
    for _ in range(30):
        pool.second(need=1)
    first_refused = pool.refused
    assert pool.ready + len(pool.starting) == 2 + 5, "one a second is taken, and a start takes five"
    for _ in range(30):
        pool.second(need=1)
    assert pool.refused == first_refused, "once it has grown nobody waits"
    pool.steady(90)
    assert pool.ready == 2


def test_what_starts_already_is_not_asked_for_again() -> None:
    (decision,), _ = decide(PoolObservation(0.0, working=3, ready=0, starting=2), PoolConfig(), PoolMemory())
    assert isinstance(decision, Nothing)


def test_a_full_cluster_keeps_nothing_ready() -> None:
    (decision,), _ = decide(PoolObservation(0.0, working=10, ready=0), PoolConfig(total_max=10), PoolMemory())
    assert isinstance(decision, Nothing)


def test_the_total_is_never_above_the_most_allowed() -> None:
    (decision,), _ = decide(PoolObservation(0.0, working=9, ready=0, taken=9), PoolConfig(total_max=10), PoolMemory())
    assert isinstance(decision, RequestExecutors)
    assert decision.total == 10


@given(st.lists(st.integers(0, 6), max_size=40), st.integers(0, 4))
def test_whatever_happened_a_steady_load_comes_to_rest(needs: list[int], for_failures: int) -> None:
    pool = Pool(PoolConfig(for_failures=for_failures))
    for need in needs:
        pool.second(need)
    pool.steady(70)
    pool.acts.clear()
    pool.steady(100)
    assert pool.acts == []
    assert (pool.ready, pool.starting) == (for_failures, [])


def test_impossible_settings_and_observations_are_refused() -> None:
    with pytest.raises(QueryError, match="for_failures <= ready_max"):
        PoolConfig(for_failures=5, ready_max=2)
    with pytest.raises(InvariantError):
        PoolObservation(0.0, working=-1, ready=0)


def test_what_is_waited_for_comes_on_top_of_what_shall_be_ready() -> None:
    # A pool of size 0 starts executors on demand; without being told it would never start any.
    on_demand = PoolConfig(for_failures=0, ready_max=0)
    (decision,), _ = decide(PoolObservation(0.0, working=3, ready=0, waiting=2), on_demand, PoolMemory())
    assert isinstance(decision, RequestExecutors)
    assert decision.total == 5
    (decision,), _ = decide(PoolObservation(0.0, working=3, ready=0, starting=2, waiting=2), on_demand, PoolMemory())
    assert isinstance(decision, Nothing)
    (decision,), _ = decide(PoolObservation(0.0, working=3, ready=1, waiting=2), PoolConfig(for_failures=1, ready_max=4), PoolMemory())
    assert isinstance(decision, RequestExecutors)
    assert decision.total == 6
