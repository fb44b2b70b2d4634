"""Calls that overlap and have a number in common: every pair of calls within a minute is compared."""

from __future__ import annotations

from typing import Any

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results, numbers_of
from headrace.config import Config
from headrace.errors import HeadraceError

WITHIN_S, DELAY_S = 60, 5
SPARK = "spark"
"""Spark's default state store, in memory; it is the faster one here."""
LAST = "last per cell"
"""The paper's variant: a cell keeps its last rows, so the result depends on the number of cells."""


def lanes(options: Options) -> list[Lane]:
    baselines = str(options["baselines"])
    if baselines not in (SPARK, "none"):
        raise HeadraceError(where="--baselines", wanted=f"{SPARK} or none", found=baselines)
    params = {name: int(options[name]) for name in ("numbers", "rows", "step_s")}
    warmup = -(-(WITHIN_S + DELAY_S) // params["step_s"]) + 1
    named = {OURS: params} | ({SPARK: params} if baselines == SPARK else {})
    for count in numbers_of(options, "instances"):
        named[f"ours, {count} instance{'s' if count > 1 else ''}"] = {**params, "instances": count}
    if options["last_per_cell"]:
        # As many rows as the time bound leaves in one side of a cell, so that both make the same number of comparisons.
        named[LAST] = {**params, "last_per_cell": int(params["rows"] * WITHIN_S / params["step_s"] / Config().grid[0])}
    return [Lane(name, SPARK if name == SPARK else OURS, each, warmup_batches=warmup) for name, each in named.items()]


def comparisons_per_row(rows: int, step_s: int) -> float:
    """A row is compared with all rows of the other side within the bound, once as the left and once as the right one."""
    return 2 * rows * WITHIN_S / step_s


def extra(results: Results, options: Options) -> dict[str, Any]:
    per_row = comparisons_per_row(int(options["rows"]), int(options["step_s"]))
    rates = {name: stats.rate_total(result) for name, result in results.items() if not result.failed}
    # All other lanes are Headrace's.
    baselines = {SPARK: rates.get(SPARK)} if SPARK in results else {}
    return {
        "baselines": baselines,
        "ratio": {name: stats.ratio(rates.get(OURS), rate) for name, rate in baselines.items()},
        "comparisons_per_row": per_row,
        "comparisons_per_s": {name: rate and round(rate * per_row) for name, rate in rates.items()},
    }


BENCHMARK = Benchmark(
    name="product",
    line="calls that overlap and have a number in common, among all pairs within 60 seconds",
    options={"numbers": 50_000, "rows": 4_000, "step_s": 30, "baselines": SPARK, "instances": "1,2", "last_per_cell": True},
    lanes=lanes,
    extra=extra,
)
