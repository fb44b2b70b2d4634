"""Queues of flows against a list of (birth, amount) for each instance, the slow and obvious way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from headrace.sim.flow import Flow, Queues, born, joined


class Plain:
    """One instance: rows by birth."""

    def __init__(self) -> None:
        self.rows: dict[int, float] = {}

    def take(self, able: float) -> dict[int, float]:
        out = {}
        for tick in sorted(self.rows):
            taken = min(self.rows[tick], able)
            able -= taken
            out[tick] = taken
            self.rows[tick] -= taken
        self.rows = {tick: rows for tick, rows in self.rows.items() if rows > 1e-12}
        return out


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(1, 4))
def test_the_oldest_rows_leave_first_as_from_plain_lists(seed: int, instances: int) -> None:
    rng = np.random.default_rng(seed)
    queues, plain = Queues(instances), [Plain() for _ in range(instances)]
    for tick in range(1, 60):
        queues.advance(tick)
        ages = np.unique(rng.integers(0, min(tick, 30), rng.integers(1, 4)))[::-1]
        flow = Flow(tick - ages, rng.uniform(0, 10, len(ages)))
        shares = rng.dirichlet(np.ones(instances))
        if rng.random() < 0.9:
            queues.add(flow, flow.total, shares)
            for each, share in zip(plain, shares, strict=True):
                for birth, amount in zip(flow.ticks.tolist(), flow.amounts.tolist(), strict=True):
                    each.rows[birth] = each.rows.get(birth, 0.0) + amount * share
        able = rng.uniform(0, 12, instances) * (rng.random(instances) < 0.8)
        done, out = queues.take(able)
        expected = np.zeros(tick + 1)
        for each, limit in zip(plain, able, strict=True):
            for birth, amount in each.take(float(limit)).items():
                expected[birth] += amount
        seen = np.bincount(out.ticks, weights=out.amounts, minlength=tick + 1) if len(out.ticks) else np.zeros(tick + 1)
        np.testing.assert_allclose(seen, expected, atol=1e-8)
        np.testing.assert_allclose(done.sum(), expected.sum(), atol=1e-8)
        np.testing.assert_allclose(queues.waiting, [sum(each.rows.values()) for each in plain], atol=1e-8)


def test_rows_that_wait_longer_than_the_ring_keep_their_mean_birth_and_none_is_lost() -> None:
    queues = Queues(1, ticks_kept=8)
    for tick in range(1, 21):
        queues.advance(tick)
        queues.add(born(tick, 1.0), 1.0, np.ones(1))
    queues.advance(21)
    assert queues.waiting.tolist() == [20.0]
    _, out = queues.take(np.array([100.0]))
    # Ticks 1 to 13 have left the ring.
    assert (out.old, out.old_born, out.total) == (13.0, sum(range(1, 14)), 20.0)
    assert out.ticks.tolist() == list(range(14, 21))


def test_the_oldest_of_all_leave_before_those_still_told_apart() -> None:
    queues = Queues(1, ticks_kept=4)
    for tick in range(1, 9):
        queues.advance(tick)
        queues.add(born(tick, 1.0), 1.0, np.ones(1))
    _, out = queues.take(np.array([5.5]))
    assert (out.old, out.ticks.tolist(), out.amounts.tolist()) == (4.0, [5, 6], [1.0, 0.5])


def test_rows_go_where_their_slots_go() -> None:
    queues = Queues(2)
    queues.advance(1)
    queues.add(born(1, 10.0), 10.0, np.array([0.4, 0.6]))
    queues.rerouted(sparse.csr_array(np.array([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0]])), 3)
    assert queues.waiting.tolist() == pytest.approx([2.0, 6.0, 2.0])
    queues.advance(2)
    done, out = queues.take(np.full(3, 100.0))
    assert (done.tolist(), out.ticks.tolist(), out.amounts.tolist()) == (pytest.approx([2, 6, 2]), [1], pytest.approx([10.0]))


def test_inputs_join_by_birth() -> None:
    both = joined([Flow(np.array([1, 3]), np.ones(2), 2.0, 4.0), Flow(np.array([3]), np.ones(1), 1.0, 1.0)])
    assert (both.ticks.tolist(), both.amounts.tolist(), both.old, both.old_born) == ([1, 3], [1.0, 2.0], 3.0, 5.0)
