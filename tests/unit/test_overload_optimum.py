"""The optimum that the benchmark of overload compares with: the best plan at the measured costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.overload.bench import FEW, Capacity, optimum
from benchmarks.overload.query import HEAVY, LIGHT, MAX_LOSS, WEIGHTS


def rate(costs: tuple[float, float, float, float], keep: tuple[float, float], handed: float | None = None) -> float:
    scan, hand, light, heavy = costs
    return 1 / (scan + hand * (max(keep) if handed is None else handed) + light * keep[0] + heavy * keep[1])


@pytest.mark.parametrize("costs", [(0.1, 1.9, 3.0, 4.5), (0.5, 0.0, 1.0, 6.0), (0.2, 4.0, 1.0, 1.0)])
@pytest.mark.parametrize("factor", [1.5, 2.0, 5.0])
def test_it_is_the_best_plan_of_a_grid_for_costs_that_four_loops_tell(costs: tuple[float, float, float, float], factor: float) -> None:
    measured = (rate(costs, (1, 1)), rate(costs, (FEW, 1)), rate(costs, (1, FEW)), rate(costs, (FEW, FEW)))
    capacity = Capacity.of(measured[0], light=measured[2], heavy=measured[1], scan=measured[3])
    found = (capacity.scan_s, capacity.handed_s, capacity.light_s, capacity.heavy_s)
    assert found == pytest.approx(costs)
    offered = factor * capacity.files_per_s
    best = optimum(capacity, offered)
    grid = [
        WEIGHTS[LIGHT] * light + WEIGHTS[HEAVY] * heavy
        for light, heavy in itertools.product(np.linspace(1 - MAX_LOSS, 1, 96), repeat=2)
        if rate(costs, (light, heavy)) >= offered
    ]
    if grid:
        assert sum(WEIGHTS[branch] * share for branch, share in best.items()) == pytest.approx(max(grid), rel=0.03)
