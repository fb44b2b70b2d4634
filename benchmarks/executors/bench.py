"""The time until an added instance has run a batch on a new executor, with and without a pool of ready executors (SEEP 5.2)."""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results

NO_POOL = "no pool"


def lanes(options: Options) -> list[Lane]:
    params = {"keys": int(options["keys"]), "rows": int(options["rows"]), "repeats": int(options["repeats"])}
    master = None if options["master"] == "none" else str(options["master"])
    return [
        Lane(name, OURS, params | {"ready": ready}, changes=True, warmup_batches=3, master=master)
        for name, ready in ((OURS, int(options["ready"])), (NO_POOL, 0))
    ]


def times(result: LaneResult) -> list[float]:
    return [note["first_batch_s"] for progress in result.headrace for note in progress.get("notes", [])]


def extra(results: Results, options: Options) -> dict[str, Any]:
    taken = {name: times(result) for name, result in results.items()}
    medians = {name: round(median(each), 3) if each else None for name, each in taken.items()}
    return {
        "ours": medians[OURS],
        "baselines": {NO_POOL: medians[NO_POOL]},
        "ratio": {NO_POOL: stats.ratio(medians[NO_POOL], medians[OURS])},
        "unit": "seconds from the request to the first batch on a new executor, median: less is better, and the ratio is theirs over ours",
        "first_batch_s": taken,
    }


def tables(results: Results, options: Options) -> list[Table]:
    table = Table(title="from the request to the first batch on a new executor", title_justify="left")
    for name in ("", "each time", "median"):
        table.add_column(name, justify="left" if not name else "right")
    for name, result in results.items():
        each = times(result)
        shown = f"pool of {options['ready']}" if name == OURS else name
        table.add_row(shown, "  ".join(f"{value:.2f}" for value in each), f"{median(each):.2f} s" if each else "-")
    return [table]


BENCHMARK = Benchmark(
    name="executors",
    line="an instance more on a new executor, with a pool of ready ones and without",
    options={"keys": 10_000, "rows": 5000, "repeats": 5, "ready": 1, "master": "local-cluster[3,1,1024]"},
    lanes=lanes,
    extra=extra,
    tables=tables,
    alternates=False,
)
