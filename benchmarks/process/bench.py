"""A running count and sum by key as a user's own operator: the cost of state that Python accesses."""

from __future__ import annotations

from typing import Any

from headrace.bench import stats
from headrace.bench.model import OURS, ROCKSDB, Benchmark, Lane, Options, Results
from headrace.errors import HeadraceError

IN_PANDAS = "transformWithStateInPandas"
BY_ROWS = "transformWithState"
WITH_STATE = "applyInPandasWithState"
BASELINES = (IN_PANDAS, BY_ROWS, WITH_STATE)
PER_KEY = "ours, per key"
REAL_FRAMES = "transformWithStateInPandas with real frames"
"""The same class, written so that every key needs real pandas frames."""
CODE = (*BASELINES, REAL_FRAMES)
"""Code that was written for Spark."""
BASELINE_OF = {REAL_FRAMES: IN_PANDAS}
"""What code is compared with, if it is no baseline itself."""
ON_OURS = "{} on Headrace"
"""The name of a lane in which code that was written for Spark runs unmodified on Headrace."""


def lanes(options: Options) -> list[Lane]:
    named = [name for name in str(options["baselines"]).split(",") if name and name != "none"]
    if unknown := [name for name in named if name not in BASELINES]:
        raise HeadraceError(where="--baselines", wanted=f"none, or some of {','.join(BASELINES)}", found=", ".join(unknown))
    theirs = [name for name in str(options["theirs"]).split(",") if name and name != "none"]
    if unknown := [name for name in theirs if name not in CODE]:
        raise HeadraceError(where="--theirs", wanted=f"none, or some of {','.join(CODE)}", found=", ".join(unknown))
    keys = int(options["keys"])
    size = int(options["rows"])
    sizes = {OURS: size, PER_KEY: size} | dict.fromkeys(named, int(options["baseline_rows"]) or size)
    found = []
    forms = {name: name for name in sizes} | {ON_OURS.format(name): name for name in theirs}
    for name, form in forms.items():
        engine = ROCKSDB if name in BASELINES else OURS
        rows = sizes.get(name, size)
        params = {"keys": keys, "rows": rows, "form": form}
        # Every key once, so that the state is full when measuring begins. Batches of the baselines stay short.
        fill = max(rows, min(keys, int(options["preload_rows"])))
        found.append(Lane(name, engine, params, preload_rows=fill, preload_batches=-(-keys // fill), warmup_batches=2))
    return found


def extra(results: Results, options: Options) -> dict[str, Any]:
    """The ratios of Headrace's per-key form, and of Spark's own classes on Headrace, which are lanes of their own."""
    rates = {name: None if result.failed else stats.rate_total(result) for name, result in results.items()}
    baselines = {name: rate for name, rate in rates.items() if name in BASELINES}
    theirs = {name: rates[ON_OURS.format(name)] for name in CODE if ON_OURS.format(name) in rates}
    return {
        "baselines": baselines,
        "ratio": {name: stats.ratio(rates[OURS], rate) for name, rate in baselines.items()},
        "per_key": rates[PER_KEY],
        "per_key_ratio": {name: stats.ratio(rates[PER_KEY], rate) for name, rate in baselines.items()},
        "theirs": theirs,
        "theirs_ratio": {name: stats.ratio(rate, baselines.get(BASELINE_OF.get(name, name))) for name, rate in theirs.items()},
    }


BENCHMARK = Benchmark(
    name="process",
    line="running count and sum by key, as a user's own operator",
    options={
        "keys": 100_000,
        "rows": 50_000,
        "baseline_rows": 0,
        "preload_rows": 25_000,
        "baselines": ",".join(BASELINES),
        "theirs": ",".join(CODE),
    },
    lanes=lanes,
    extra=extra,
)
