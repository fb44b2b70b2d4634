"""StreamCloud's figures, small: what the paper claims comes out."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.sim.scenario import Result
from headrace.sim.scenarios import streamcloud_balance, streamcloud_provisioning
from headrace.sim.scenarios.streamcloud_provisioning import LOWER, TARGET, UPPER, ProvisioningWatch, SizeChange


def assert_claims(result: Result) -> None:
    assert [(claim.what, claim.seen) for claim in result.claims if claim.holds is False] == []
    assert result.violations == ()
    assert all(len(row) == len(result.columns) for row in result.rows)


@pytest.fixture(scope="module")
def fig_20() -> Result:
    return streamcloud_balance.run(dict(streamcloud_balance.OPTIONS, period_s=20.0, report_s=2.0), seed=1)


def test_fig_20_balancing_keeps_the_deviation_below_its_threshold_and_without_it_is_above(fig_20: Result) -> None:
    assert_claims(fig_20)
    assert fig_20.figures["a.on.worst"] < 0.1 < fig_20.figures["a.off.least"]


def test_fig_20b_fewer_numbers_make_more_imbalance(fig_20: Result) -> None:
    off = [float(row[2]) for row in fig_20.rows if row[0] == "20b"]
    assert off[0] == min(off), "all numbers alike are balanced best"
    assert off[1:] == sorted(off[1:])


def test_fig_20_the_same_seed_gives_the_same_figures() -> None:
    options = dict(streamcloud_balance.OPTIONS, period_s=12.0, report_s=3.0, instances=4)
    shapes = (None, (5_000.0, 25.0))
    digests = {seed: [streamcloud_balance.simulate(shapes, options, True, seed)[0].digest() for _ in range(2)] for seed in (1, 2)}
    assert digests[1][0] == digests[1][1]
    assert digests[1][0] != digests[2][0]


@pytest.fixture(scope="module")
def fig_21() -> Result:
    """Five times as steep, and up to 7 and to 11 instances."""
    options = dict(streamcloud_provisioning.OPTIONS, rows_per_s_per_s=375.0, instances_until=7, instances_top=11, report_s=1.0)
    return streamcloud_provisioning.run(options, seed=1)


def test_fig_21_load_aware_provisioning_meets_the_target_with_fewer_steps(fig_21: Result) -> None:
    seen = fig_21.figures
    assert seen["individual.met"] == 1, "only from 1 to 2"
    assert seen["individual.after.last"] > (TARGET + UPPER) / 2
    assert seen["load-aware.met"] == seen["load-aware.steps"]
    assert [row[3] for row in fig_21.rows if row[0] == "load-aware"] == ["2", "4", "7", "11"]
    assert seen["individual.steps"] == 6


def test_fig_21c_every_step_down_leaves_the_load_between_the_thresholds(fig_21: Result) -> None:
    seen = fig_21.figures
    assert seen["decommissioning.steps"] >= 5
    assert seen["decommissioning.after.worst"] <= TARGET + 0.02
    assert seen["decommissioning.after.least"] > LOWER - 0.05


def test_fig_21_no_row_is_lost_and_none_is_held_up(fig_21: Result) -> None:
    assert fig_21.violations == ()
    for run in ("individual", "load-aware", "decommissioning"):
        assert fig_21.figures[f"{run}.throughput"] > 0.98


def test_steps_are_told_from_sizes() -> None:
    watch = ProvisioningWatch()
    watch.at_s, watch.cpu, watch.sizes = [5, 10, 15, 20], [0.8, 0.95, 0.7, 0.5], [1, 1, 2, 2]
    assert watch.steps() == [SizeChange(15, 1, 2, 0.95, 0.5)]


def test_all_rows_go_somewhere_whatever_the_distribution() -> None:
    slots = np.random.default_rng(1).integers(0, 4096, streamcloud_balance.NUMBERS)
    for shape in (None, (2_000.0, 100.0), (8_000.0, 25.0)):
        assert streamcloud_balance.slot_shares(shape, slots).sum() == pytest.approx(1)
