"""Is a query that was rescaled as efficient as one that had its size from the start? (StreamCloud, Table I)"""

from __future__ import annotations

from statistics import median
from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results, preload

STATIC = "static"


def lanes(options: Options) -> list[Lane]:
    rows, keys, to = (int(options[name]) for name in ("rows", "keys", "instances"))
    paths = {OURS: [*(int(each) for each in str(options["path"]).split(",")), to], STATIC: [to]}
    return [Lane(name, OURS, {"rows": rows, "keys": keys, "path": path}, **preload(keys, rows)) for name, path in paths.items()]


def per_million(result: LaneResult) -> list[float]:
    """CPU seconds for a million rows, by turn."""
    return [round(cpu_s * 1e6 / rows, 4) for cpu_s, rows in result.cpu if rows]


def extra(results: Results, options: Options) -> dict[str, Any]:
    turns = {name: per_million(result) for name, result in results.items()}
    medians = {name: round(median(each), 4) if each else None for name, each in turns.items()}
    # The turns of a round ran directly after each other, so each pair had the same conditions.
    pairs = [round(ours / theirs, 4) for ours, theirs in zip(turns[OURS], turns[STATIC], strict=False)]
    return {
        "ours": medians[OURS],
        "baselines": {STATIC: medians[STATIC]},
        "ratio": {STATIC: stats.ratio(medians[OURS], medians[STATIC])},
        "unit": "CPU seconds for a million rows, median of turns: less is better, and the ratio is elastic over static",
        "cpu_s_per_million_rows": turns,
        "ratio_by_pair": pairs,
        "ratio_of_pairs": {"median": round(median(pairs), 4), "min": min(pairs), "max": max(pairs)} if pairs else None,
    }


def tables(results: Results, options: Options) -> list[Table]:
    said = extra(results, options)
    table = Table(title="CPU seconds for a million rows, by turn", title_justify="left")
    table.add_column("")
    table.add_column("turns")
    table.add_column("median", justify="right")
    for name, each in said["cpu_s_per_million_rows"].items():
        shown = "elastic" if name == OURS else name
        table.add_row(shown, "  ".join(f"{value:.3f}" for value in each), f"{median(each):.3f}" if each else "-")
    return [table]


BENCHMARK = Benchmark(
    name="elastic",
    line="a query that came to its size by rescaling, and one that had it from the start",
    options={"keys": 100_000, "rows": 200_000, "path": "1,4", "instances": 2},
    lanes=lanes,
    extra=extra,
    tables=tables,
)
