"""Calls that overlap and have a number in common: every pair of calls within a minute is compared."""

from __future__ import annotations

from typing import Any

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, Options, Results
from headrace.errors import HeadraceError

WITHIN_S, DELAY_S = 60, 5
SPARK = "spark"
"""Spark's state store in memory, its default, the quicker one here."""


def lanes(options: Options) -> list[Lane]:
    baselines = str(options["baselines"])
    if baselines not in (SPARK, "none"):
        raise HeadraceError(where="--baselines", wanted=f"{SPARK} or none", found=baselines)
    params = {name: int(options[name]) for name in ("numbers", "rows", "step_s")}
    warmup = -(-(WITHIN_S + DELAY_S) // params["step_s"]) + 1
    engines = [OURS, *([SPARK] if baselines == SPARK else [])]
    return [Lane(engine, engine, params, warmup_batches=warmup) for engine in engines]


def extra(results: Results, options: Options) -> dict[str, Any]:
    """Comparisons: a row meets all rows of the other side within the bound, once as the left and once as the right one."""
    per_row = 2 * int(options["rows"]) * WITHIN_S / int(options["step_s"])
    rates = {name: stats.rate_total(result) for name, result in results.items() if not result.failed}
    return {"comparisons_per_row": per_row, "comparisons_per_s": {name: rate and round(rate * per_row) for name, rate in rates.items()}}


BENCHMARK = Benchmark(
    name="product",
    line="calls that overlap and have a number in common, among all pairs within 60 seconds",
    options={"numbers": 50_000, "rows": 4_000, "step_s": 30, "baselines": SPARK},
    lanes=lanes,
    extra=extra,
)
