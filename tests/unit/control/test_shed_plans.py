"""The model of what batches cost, and the plans of drops that are made with it."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from headrace.control.shedding.costs import COLD, Costs, ShedBatch, fitted
from headrace.control.shedding.table import STEP, Goals, planned, probed_place
from headrace.ids import OperatorId
from headrace.state.drops import Drop, Drops, ShedId

A, B = ShedId("shed"), ShedId("shed-2")
SUM, JOIN = OperatorId("sum"), OperatorId("join")
READS = {SUM: (A,), JOIN: (B,)}
TRUE = Costs(0.25, 1.5e-6, {A: 4e-6, B: 1.2e-5})


def batch(rows: float, keep: tuple[float, float], kernel: float = 0.5, instances: int = 2, noise: float = 0.0) -> ShedBatch:
    """A batch as the true costs make it. The kernels do half of the work behind each place."""
    kept = {A: rows * keep[0], B: rows * keep[1]}
    seconds = TRUE.seconds(rows, kept) * (1 + noise)
    busiest = {SUM: kernel * TRUE.kept_s[A] * kept[A], JOIN: kernel * TRUE.kept_s[B] * kept[B]}
    return ShedBatch(seconds, seconds - 0.1, rows, {A: rows, B: rows}, kept, busiest, {SUM: instances, JOIN: instances})


def test_costs_are_found_once_drops_tell_scan_and_combine_apart() -> None:
    random = np.random.default_rng(1)
    keeps = [(1.0, 1.0), (0.5, 1.0), (0.3, 0.6), (1.0, 0.2), (0.1, 0.1), (0.8, 0.3)]
    batches = [batch(rows, keep, noise=random.normal(0, 0.02)) for rows, keep in itertools.product((40_000, 90_000, 150_000), keeps)]
    found = fitted(batches, READS, {SUM: 2, JOIN: 2})
    assert found is not None
    assert found.fixed_s == pytest.approx(TRUE.fixed_s, abs=0.06)
    assert found.scan_s == pytest.approx(TRUE.scan_s, rel=0.6)
    assert found.kept_s[A] == pytest.approx(TRUE.kept_s[A], rel=0.15)
    assert found.kept_s[B] == pytest.approx(TRUE.kept_s[B], rel=0.15)


def test_before_anything_was_dropped_the_whole_is_right_even_if_its_parts_are_assumed() -> None:
    batches = [batch(rows, (1.0, 1.0)) for rows in (50_000, 80_000, 100_000, 140_000)]
    found = fitted(batches, READS, {SUM: 2, JOIN: 2})
    assert found is not None
    for each in batches:
        assert found.seconds(each.scanned, each.kept) == pytest.approx(each.seconds, rel=0.1)


def test_the_first_batch_which_compiles_code_only_gives_about_the_least() -> None:
    cold = batch(1000, (1.0, 1.0))
    cold = ShedBatch(9.0, 8.5, cold.scanned, cold.arrived, cold.kept, cold.busiest_s, cold.instances, cold=True)
    found = fitted([cold], READS, {SUM: 2, JOIN: 2})
    assert found == Costs(0.0, 0.0, {A: pytest.approx(2e-6 / COLD), B: pytest.approx(6e-6 / COLD)})
    assert fitted([], READS, {}) is None


def test_after_scaling_out_earlier_batches_count_as_if_there_had_been_as_many_instances() -> None:
    batches = [batch(rows, (1.0, 1.0), kernel=0.9, instances=1) for rows in (50_000, 80_000, 100_000, 140_000)]
    one, four = (fitted(batches, READS, {SUM: count, JOIN: count}) for count in (1, 4))
    assert one is not None
    assert four is not None
    rows = {A: 100_000.0, B: 100_000.0}
    assert four.seconds(100_000, rows) < 0.5 * one.seconds(100_000, rows)


def goals(loss: float = 0.9, budget_s: float = 1.0, weights: tuple[float, float] = (1.0, 2.0)) -> Goals:
    return Goals({A: loss, B: loss}, {"0": (weights[0], (A,)), "1": (weights[1], (B,))}, budget_s, 2.0)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 2.0), (1.0, 10.0)])
def test_plans_deliver_the_most_weight_that_the_time_allows(weights: tuple[float, float]) -> None:
    table = planned(TRUE, goals(weights=weights), 100_000, {A: 100_000, B: 100_000})
    for rows in (50_000, 90_000, 150_000, 200_000):
        found = table.look_up(rows)
        keep = {A: 1.0, B: 1.0} if found is None else found[1]
        assert table.seconds(rows, keep) < 1.03
        best = max(
            (weights[0] * a + weights[1] * b, a, b)
            for a, b in itertools.product(np.linspace(0.1, 1, 181), repeat=2)
            if TRUE.seconds(rows, {A: rows * a, B: rows * b}) <= 1.0
        )
        assert weights[0] * keep[A] + weights[1] * keep[B] > 0.97 * best[0]


def test_nothing_is_dropped_while_the_time_suffices_and_never_more_than_allowed() -> None:
    table = planned(TRUE, goals(loss=0.3), 100_000, {A: 100_000, B: 100_000})
    bearable = (1.0 - TRUE.fixed_s) / (TRUE.scan_s + TRUE.kept_s[A] + TRUE.kept_s[B])
    assert table.look_up(0.99 * bearable) is None
    found = table.look_up(1.01 * bearable)
    assert found is not None
    assert found[2]
    for rows in (60_000, 100_000, 10_000_000):
        found = table.look_up(rows)
        assert found is not None
        assert min(found[1].values()) >= 0.7 - 1e-9
        assert found[2] == (rows < 60_001)


def test_a_place_whose_rows_are_worth_little_for_what_they_cost_is_dropped_first() -> None:
    table = planned(TRUE, goals(weights=(1.0, 1.0)), 100_000, {A: 100_000, B: 100_000})
    found = table.look_up(70_000)
    assert found is not None
    assert found[1][A] > 0.99 * (1 / STEP) > found[1][B], "b costs three times as much and is worth the same"


def test_a_lookup_takes_less_than_100_microseconds() -> None:
    table = planned(TRUE, goals(), 100_000, {A: 100_000, B: 100_000})
    took = []
    for rows in np.linspace(10_000, 500_000, 500):
        began = time.perf_counter()
        table.look_up(float(rows))
        took.append(time.perf_counter() - began)
    assert np.median(took) < 100e-6


def test_drops_are_read_as_they_were_written() -> None:
    drops = Drops(17, {A: Drop(640_000), B: Drop(5_000, -2.5)})
    assert Drops.from_json(drops.to_json()) == drops
    assert drops.at(ShedId("shed-3")).keeps_all


@pytest.mark.parametrize("factor", [2.0, pytest.param(5.0, marks=pytest.mark.extra)])
def test_a_steady_overload_is_borne_within_the_deadline_and_near_the_optimum(factor: float) -> None:
    """Batch after batch: what came during the last one, dropped by the plan of the moment, and learned from."""
    random, deadline_s = np.random.default_rng(5), 2.0
    asked = goals(loss=0.95, budget_s=0.92 * deadline_s / 2)
    room = 1 - TRUE.fixed_s / asked.budget_s
    capacity = room / (TRUE.scan_s + TRUE.kept_s[A] + TRUE.kept_s[B])
    rate, table, costs, batches, took, shares, shed = factor * capacity, None, None, [], 0.3, [], 0
    for number in range(100):
        rows = rate * took
        found = None if table is None else table.look_up(rows)
        keep = {A: 1.0, B: 1.0} if found is None else found[1]
        if found is not None:
            probed, shed = probed_place(shed, [A, B]), shed + 1
            keep = keep if probed is None else table.probe(rows, probed)
        kept = {place: rows * share for place, share in keep.items()}
        before, took = took, TRUE.seconds(rows, kept) * (1 + random.normal(0, 0.04))
        busiest = {SUM: 0.3 * TRUE.kept_s[A] * kept[A], JOIN: 0.3 * TRUE.kept_s[B] * kept[B]}
        batches.append(ShedBatch(took, took - 0.1, rows, {A: rows, B: rows}, kept, busiest, {SUM: 2, JOIN: 2}, cold=number == 0))
        costs = fitted(batches[-40:], READS, {SUM: 2, JOIN: 2}, costs)
        assert costs is not None
        table = planned(costs, asked, rows, {A: rows, B: rows})
        if number >= 15:
            assert before + took < 1.15 * deadline_s
            shares.append((keep[A], keep[B], before + took))
    a, b, late = np.array(shares).T
    assert np.percentile(late, 95) < deadline_s
    best = max(
        x + 2 * y
        for x, y in itertools.product(np.linspace(0.05, 1, 191), repeat=2)
        if rate * (TRUE.scan_s + TRUE.kept_s[A] * x + TRUE.kept_s[B] * y) <= room
    )
    assert (a + 2 * b).mean() > 0.95 * best
    assert (a + 2 * b).std() < 0.15 * best, "it settles"
