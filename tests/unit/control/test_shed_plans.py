"""The model of what batches cost, and the plans of drops that are made with it."""

from __future__ import annotations

import itertools
import json
import time

import numpy as np
import pytest

from headrace.control.shedding.costs import COLD_LEAST, SCAN, Costs, Shape, ShedBatch, assumed, fitted, remembered
from headrace.control.shedding.pacing import Pacing
from headrace.control.shedding.table import Goals, Mix, Origin, planned, probed_place
from headrace.ids import OperatorId
from headrace.state.drops import Drop, Drops, ShedId

A, B = ShedId("shed"), ShedId("shed-2")
SUM, JOIN = OperatorId("sum"), OperatorId("join")
CORES = 2
SHAPE = Shape({SUM: (A,), JOIN: (B,)}, {SUM: SUM, JOIN: JOIN}, True, CORES)
TRUE = Costs(0.25, 0.5e-6, 1e-6, {A: 4e-6, B: 1.2e-5})
NOW = {SUM: 2, JOIN: 2}
APART = Origin(((A,), (B,)))
MIX = Mix(((1.0, APART),), {A: 1.0, B: 1.0})


def handed(rows: float, keep: tuple[float, float]) -> float:
    """Rows that one of two places that are independent of each other keeps."""
    return rows * (1 - (1 - keep[0]) * (1 - keep[1]))


def true_s(rows: float, keep: tuple[float, float]) -> float:
    return TRUE.seconds(rows, handed(rows, keep), {A: rows * keep[0], B: rows * keep[1]})


def batch(
    rows: float, keep: tuple[float, float], kernel: float = 0.5, instances: int = 2, noise: float = 0.0, cold: bool = False
) -> ShedBatch:
    """A batch as the true costs make it. The kernels do a part of the work behind each place, as busy as each other."""
    kept = {A: rows * keep[0], B: rows * keep[1]}
    around = {SUM: TRUE.kept_s[A] * kept[A], JOIN: TRUE.kept_s[B] * kept[B]}
    busiest = {op: kernel * work * 2 / instances for op, work in around.items()}
    busy = {op: instances * each for op, each in busiest.items()}
    tasks = {op: CORES * (1 - kernel) * work + busy[op] for op, work in around.items()}
    tasks[SCAN] = CORES * (TRUE.scan_s * rows + TRUE.handed_s * handed(rows, keep))
    seconds = TRUE.fixed_s + tasks[SCAN] / CORES + sum((1 - kernel) * work for work in around.values()) + sum(busiest.values())
    tasks, busy, busiest = ({name: took * (1 + noise) for name, took in each.items()} for each in (tasks, busy, busiest))
    counts = {SUM: instances, JOIN: instances}
    return ShedBatch(seconds * (1 + noise), rows, handed(rows, keep), kept, tasks, busy, busiest, counts, cold)


def test_costs_are_found_once_drops_tell_scan_hand_over_and_the_rest_apart() -> None:
    random = np.random.default_rng(1)
    keeps = [(1.0, 1.0), (0.5, 1.0), (0.3, 0.6), (1.0, 0.2), (0.1, 0.1), (0.8, 0.3)]
    batches = [batch(rows, keep, noise=random.normal(0, 0.02)) for rows, keep in itertools.product((40_000, 90_000, 150_000), keeps)]
    found = fitted(batches, SHAPE, NOW)
    assert found is not None
    assert found.fixed_s == pytest.approx(TRUE.fixed_s, abs=0.06)
    assert found.scan_s == pytest.approx(TRUE.scan_s, rel=0.3)
    assert found.handed_s == pytest.approx(TRUE.handed_s, rel=0.3)
    assert found.kept_s[A] == pytest.approx(TRUE.kept_s[A], rel=0.1)
    assert found.kept_s[B] == pytest.approx(TRUE.kept_s[B], rel=0.1)


def test_what_places_cost_is_known_before_anything_is_dropped_because_their_jobs_are_measured() -> None:
    found = fitted([batch(rows, (1.0, 1.0)) for rows in (50_000, 80_000, 100_000)], SHAPE, NOW)
    assert found is not None
    assert found.kept_s[A] == pytest.approx(TRUE.kept_s[A], rel=0.1)
    assert found.kept_s[B] == pytest.approx(TRUE.kept_s[B], rel=0.1)


def test_costs_stay_while_all_batches_keep_the_same_share_and_one_slow_batch_changes_little() -> None:
    random = np.random.default_rng(2)
    batches = [batch(rows, keep) for rows in (60_000, 90_000) for keep in ((1.0, 1.0), (0.5, 0.8), (0.9, 0.3))]
    costs = fitted(batches, SHAPE, NOW)
    for number in range(60):
        batches.append(batch(random.uniform(80_000, 120_000), (0.05, 0.6), noise=1.5 if number == 40 else random.normal(0, 0.05)))
        costs = fitted(batches[-40:], SHAPE, NOW, costs)
        assert costs is not None
        assert 0.7 < costs.kept_s[A] / TRUE.kept_s[A] < 1.4, number
        assert 0.8 < costs.kept_s[B] / TRUE.kept_s[B] < 1.25, number
        assert 0.8 < costs.seconds(100_000, 62_000, {A: 5_000, B: 60_000}) / true_s(100_000, (0.05, 0.6)) < 1.25, number


def test_before_anything_was_dropped_the_whole_is_right_even_if_its_parts_are_assumed() -> None:
    batches = [batch(rows, (1.0, 1.0)) for rows in (50_000, 80_000, 100_000, 140_000)]
    found = fitted(batches, SHAPE, NOW)
    assert found is not None
    for each in batches:
        assert found.seconds(each.scanned, each.handed, each.kept) == pytest.approx(each.seconds, rel=0.1)


def test_the_first_batch_which_compiles_code_is_believed_as_far_as_it_is_long() -> None:
    short, long = (fitted([batch(rows, (1.0, 1.0), kernel=0.0, cold=True)], SHAPE, NOW) for rows in (1000, 10_000_000))
    assert short is not None
    assert short.kept_s[B] == pytest.approx(COLD_LEAST * TRUE.kept_s[B], rel=0.3)
    assert long is not None
    assert long.kept_s[B] == pytest.approx(TRUE.kept_s[B], rel=0.3)
    assert fitted([], SHAPE, {}) is None


def test_after_scaling_out_earlier_batches_count_as_if_there_had_been_as_many_instances() -> None:
    batches = [batch(rows, (1.0, 1.0), kernel=0.9, instances=1) for rows in (50_000, 80_000, 100_000, 140_000)]
    one, four = (fitted(batches, SHAPE, {SUM: count, JOIN: count}) for count in (1, 4))
    assert one is not None
    assert four is not None
    rows = {A: 100_000.0, B: 100_000.0}
    assert four.seconds(100_000, 100_000, rows) < 0.5 * one.seconds(100_000, 100_000, rows)


def test_a_restart_goes_on_with_the_costs_of_the_last_start() -> None:
    costs = fitted([batch(rows, (1.0, 0.5)) for rows in (50_000, 80_000)], SHAPE, NOW)
    assert costs is not None
    written = json.loads(json.dumps(costs.to_json()))
    assert remembered(written, SHAPE) == costs
    with pytest.raises(ValueError, match="costs of sum, join, scan, not of sum"):
        remembered(written, Shape({SUM: (A,)}, {SUM: SUM}, False, CORES))
    assert assumed(SHAPE, [A, B]).kept_s[A] > 0


BUDGET_S = 1.0


def goals(loss: float = 0.9, weights: tuple[float, float] = (1.0, 2.0)) -> Goals:
    return Goals({A: loss, B: loss}, {"0": (weights[0], (A,)), "1": (weights[1], (B,))}, 2.0)


@pytest.mark.parametrize("handed_s", [0.0, 1e-6, 8e-6])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (1.0, 2.0), (1.0, 10.0)])
@pytest.mark.parametrize("origin", [APART, Origin(((A, B),)), Origin(((A,), (B,)), always=True)])
def test_plans_deliver_the_most_weight_that_the_time_allows(weights: tuple[float, float], origin: Origin, handed_s: float) -> None:
    """Compared with all plans of a grid, whether places keep the same rows, others, or the batch has all rows anyway."""
    costs, mix = Costs(TRUE.fixed_s, TRUE.scan_s, handed_s, TRUE.kept_s), Mix(((1.0, origin),), MIX.arrived)
    table = planned(costs, goals(weights=weights), mix)
    for rows in (50_000, 90_000, 150_000, 200_000):
        found = table.look_up(rows, BUDGET_S)
        keep = {A: 1.0, B: 1.0} if found is None else found[1]
        least_s = table.seconds(rows, {A: 0.1, B: 0.1})
        assert table.seconds(rows, keep) < max(1.03 * BUDGET_S, 1.001 * least_s)
        grid = [(a, b) for a, b in itertools.product(np.linspace(0.1, 1, 91), repeat=2) if table.seconds(rows, {A: a, B: b}) <= BUDGET_S]
        best = max((weights[0] * a + weights[1] * b for a, b in grid), default=0.0)
        assert weights[0] * keep[A] + weights[1] * keep[B] > 0.96 * best


def test_nothing_is_dropped_while_the_time_suffices_and_never_more_than_allowed() -> None:
    table = planned(TRUE, goals(loss=0.3), MIX)
    bearable = (BUDGET_S - TRUE.fixed_s) / (TRUE.scan_s + TRUE.handed_s + TRUE.kept_s[A] + TRUE.kept_s[B])
    assert table.look_up(0.99 * bearable, BUDGET_S) is None
    found = table.look_up(1.01 * bearable, BUDGET_S)
    assert found is not None
    assert found[2]
    for rows in (50_000, 100_000, 10_000_000):
        found = table.look_up(rows, BUDGET_S)
        assert found is not None
        assert min(found[1].values()) >= 0.7 - 1e-9
        assert found[2] == (true_s(rows, (0.7, 0.7)) <= BUDGET_S)


def test_a_place_whose_rows_are_worth_little_for_what_they_cost_is_dropped_first() -> None:
    found = planned(TRUE, goals(weights=(1.0, 1.0)), MIX).look_up(60_000, BUDGET_S)
    assert found is not None
    assert found[1][A] > 0.95 > found[1][B], "b costs three times as much and is worth the same"


def test_a_lookup_takes_less_than_100_microseconds() -> None:
    many = [ShedId(f"shed-{at}") for at in range(20)]
    costs = Costs(0.25, 1e-6, 1e-6, {place: 1e-6 * (1 + at) for at, place in enumerate(many)})
    asked = Goals(dict.fromkeys(many, 0.9), {str(at): (1.0, (place,)) for at, place in enumerate(many)})
    table = planned(costs, asked, Mix(((1.0, Origin((tuple(many),))),), dict.fromkeys(many, 1.0)))
    took = []
    for rows in np.linspace(1_000, 50_000, 500):
        began = time.perf_counter()
        table.look_up(float(rows), BUDGET_S)
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
    asked, pacing = goals(loss=0.95), Pacing(deadline_s, deadline_s / 2)
    room = 1 - TRUE.fixed_s / (0.9 * deadline_s / 2)
    capacity = room / (TRUE.scan_s + TRUE.handed_s + TRUE.kept_s[A] + TRUE.kept_s[B])
    rate, table, costs, batches, shares = factor * capacity, None, None, [], []
    looked, now = 0.0, 0.3
    for number in range(100):
        rows, budget_s = rate * (now - looked), pacing.budget_s(now)
        found = None if table is None else table.look_up(rows, budget_s)
        keep = {A: 1.0, B: 1.0} if found is None else found[1]
        if found is not None and table is not None and (probed := probed_place(number, [A, B])) is not None:
            keep = table.probe(rows, budget_s, probed)
        pair = keep[A], keep[B]
        ended = batch(rows, pair, kernel=0.3, noise=random.normal(0, 0.04), cold=number == 0)
        oldest, looked, now = looked, now, now + ended.seconds
        pacing.ended(looked, now)
        if table is not None:
            pacing.judge(ended.seconds, table.seconds(rows, keep))
        batches.append(ended)
        costs = fitted(batches[-40:], SHAPE, NOW, costs)
        assert costs is not None
        table = planned(costs, asked, MIX)
        if number >= 15:
            shares.append((*pair, now - oldest))
    a, b, late = np.array(shares).T
    assert np.percentile(late, 95) < deadline_s
    best = max(
        x + 2 * y for x, y in itertools.product(np.linspace(0.05, 1, 191), repeat=2) if rate * (true_s(1, (x, y)) - TRUE.fixed_s) <= room
    )
    assert (a + 2 * b).mean() > 0.95 * best
    assert (a + 2 * b).std() < 0.15 * best, "it settles"
