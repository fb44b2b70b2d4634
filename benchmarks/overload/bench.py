"""More rows than a query can process, for two minutes: what is delivered, and how late? (Borealis 4)"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from headrace.bench import machine
from headrace.bench.model import Benchmark, DirectResult, Figure, Option, Options
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from benchmarks.overload.lane import Outcome
    from benchmarks.overload.offering import Block

DEFAULTS: dict[str, Option] = {
    "factor": 2.0, "deadline": 4.0, "duration": 120, "calibration": 20, "rows": 10_000, "keys": 2_000, "blocks": 12, "lanes": "all",
}  # fmt: skip
BATCH_SHARE = 0.45
"""Capacity is measured in batches of this share of the deadline: longer ones would not keep it."""
SPARE = 0.95
"""The drop at the source keeps this share of the measured capacity."""
WITHIN = 0.05


FEW = 0.05
"""The share of rows that one sink gets in the closed loop that measures what the other one costs: `lane.FEW` percent."""


@dataclass(frozen=True)
class Capacity:
    """What the machine can do: files per second with both sinks, and seconds per file for each thing that is done with its rows."""

    files_per_s: float
    scan_s: float
    handed_s: float
    """For rows that are not dropped in the plan of the source: handing them over, and caching them for the sinks."""
    light_s: float
    heavy_s: float

    @classmethod
    def of(cls, both: float, light: float, heavy: float, scan: float) -> Capacity:
        """From the rates with all rows for both sinks, with all for one and few for the other, and with few rows left by the source."""
        light_s, heavy_s = (1 / both - 1 / heavy) / (1 - FEW), (1 / both - 1 / light) / (1 - FEW)
        scan_s = max(0.0, (1 / scan - FEW / both) / (1 - FEW))
        return cls(both, scan_s, max(0.0, 1 / both - scan_s - light_s - heavy_s), light_s, heavy_s)


def optimum(capacity: Capacity, files_per_s: float) -> dict[str, float]:
    """The share of each sink in the best plan at this rate: the linear program for the measured capacity, by scipy alone.

    The third variable is the share of rows that the source hands over: at least as many as each sink gets. Two sinks that drop different
    rows need more, so the optimum is one that no plan may reach.
    """
    from scipy.optimize import linprog

    from benchmarks.overload.query import HEAVY, LIGHT, MAX_LOSS, WEIGHTS

    room = 1 / files_per_s - capacity.scan_s
    limits = [[capacity.light_s, capacity.heavy_s, capacity.handed_s], [1, 0, -1], [0, 1, -1]]
    found = linprog([-WEIGHTS[LIGHT], -WEIGHTS[HEAVY], 0], A_ub=limits, b_ub=[room, 0, 0], bounds=[(1 - MAX_LOSS, 1)] * 3)
    if not found.success:
        return {LIGHT: 1 - MAX_LOSS, HEAVY: 1 - MAX_LOSS}
    return {LIGHT: float(found.x[0]), HEAVY: float(found.x[1])}


def measure(options: Options) -> DirectResult:
    if float(options["factor"]) <= 1:
        raise HeadraceError(where="bench overload --factor", wanted="more than 1", found=str(options["factor"]))
    from benchmarks.overload import lane
    from benchmarks.overload.offering import Feed, blocks
    from benchmarks.overload.query import HEAVY, LIGHT

    names = [name for name in lane.NAMES if options["lanes"] == "all" or name.split(",")[0].split()[0] in str(options["lanes"])]
    folder, deadline_s = Path(tempfile.mkdtemp(prefix="headrace-overload-")), float(options["deadline"])
    batch_s, seconds = BATCH_SHARE * deadline_s, float(options["calibration"])
    try:
        made = blocks(folder / "blocks", int(options["blocks"]), int(options["rows"]), int(options["keys"]))
        with lane.session(machine.heap_gb_default()) as spark:
            rates: list[float] = []
            # In the first loop code is compiled. It does not count.
            loops = (("", 1.0), (HEAVY, 0.6), (LIGHT, 0.6), (lane.SOURCE, 0.6), ("", 1.0))
            for at, (few, share) in enumerate(loops):
                feed = Feed(folder / f"closed-{at}", made)
                guess = rates[-1] if rates else 2.0
                rates.append(lane.capacity(spark, folder / "work", feed, few, share * seconds, batch_s, guess))
                said = f"few rows for {few}" if few else "all rows for both sinks"
                print(f"overload: {said}: {rates[-1] * int(options['rows']):,.0f} rows/s", flush=True)
            capacity = Capacity.of(rates[4], rates[1], rates[2], rates[3])
            offered = float(options["factor"]) * capacity.files_per_s
            found: list[Outcome] = []
            for at, name in enumerate(names):
                settings: dict[str, Any] = {"grace_s": deadline_s}
                if name == lane.OURS:
                    settings["deadline_s"] = deadline_s
                if name == lane.RANDOM:
                    settings["source_keep"] = round(SPARE * lane.SCALE / float(options["factor"]))
                feed = Feed(folder / f"in-{at}", made)
                found.append(lane.run(spark, name, folder / "work", feed, float(options["duration"]), offered, **settings))
                print(f"overload: {name}: done", flush=True)
        return summary(options, capacity, offered, found, made)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def summary(options: Options, capacity: Capacity, offered: float, found: list[Outcome], made: list[Block]) -> DirectResult:
    """Compare the lanes with each other and with the optimum, and check their results."""
    import numpy as np
    import pyarrow.parquet as pq

    from benchmarks.overload import check
    from benchmarks.overload.query import WEIGHTS

    best = optimum(capacity, offered)
    best_weight = sum(WEIGHTS[branch] * share for branch, share in best.items())
    values = [pq.read_table(block.path)["v"].to_numpy() for block in made]
    deadline_s, figures = float(options["deadline"]), {}
    wrong: dict[str, str] = {}
    for outcome in found:
        right, rows, miscounted = check.expected(outcome, made, values)
        wrong[outcome.name] = miscounted or check.difference(outcome.totals, right)
        timed = sum(each.at_s >= outcome.began_s for each in outcome.came) * int(options["rows"])
        shares = {branch: rows[branch] / timed for branch in rows}
        late = check.latencies(outcome)
        figures[outcome.name] = {
            "p50_s": float(np.percentile(late, 50)), "p95_s": float(np.percentile(late, 95)), "last_s": float(late.max()), **shares,
            "delivered_of_optimum": sum(WEIGHTS[branch] * share for branch, share in shares.items()) / best_weight,
        }  # fmt: skip
        for decision in outcome.decisions:
            print(f"overload, {outcome.name}: {decision}")
        print(f"overload, {outcome.name}: {'WRONG: ' + wrong[outcome.name] if wrong[outcome.name] else 'results exact'}", flush=True)
    Console(width=120).print(table(figures, best, deadline_s, offered * int(options["rows"])))
    first = figures[found[0].name]
    asked = (
        Figure("95th percentile of latency", first["p95_s"], deadline_s, "s", asked=f"the deadline, {deadline_s:g} s"),
        Figure("delivered weight below the optimum", 1 - first["delivered_of_optimum"], WITHIN, "", asked=f"{WITHIN:.0%}"),
    )
    extra: dict[str, Any] = {
        "p95_s": first["p95_s"],
        "deadline_s": deadline_s,
        "delivered_of_optimum": first["delivered_of_optimum"],
        "optimum": best,
        "capacity_rows_per_s": capacity.files_per_s * int(options["rows"]),
        "costs_us": {name: getattr(capacity, name) * 1e6 / int(options["rows"]) for name in ("scan_s", "handed_s", "light_s", "heavy_s")},
        "lanes": figures,
        "lookup_us_max": max(outcome.lookup_us for outcome in found),
    }
    rates = {name: each["delivered_of_optimum"] for name, each in figures.items()}
    ours = rates.pop(found[0].name)
    print(json.dumps(extra, default=float))
    return DirectResult(asked, ours, rates, equal=not any(wrong.values()), extra=extra)


def table(figures: dict[str, dict[str, float]], best: dict[str, float], deadline_s: float, rate: float) -> Table:
    shown = Table(title=f"{rate:,.0f} rows/s offered, deadline {deadline_s:g} s", title_justify="left")
    shown.add_column("")
    for name in figures:
        shown.add_column(name, justify="right")
    for title, key, kind in (
        ("latency, median, s", "p50_s", ".1f"), ("latency, 95th percentile, s", "p95_s", ".1f"), ("latency, last, s", "last_s", ".1f"),
        *((f"{branch}: delivered (optimum {share:.0%})", branch, ".1%") for branch, share in best.items()),
        ("weighted, of the optimum", "delivered_of_optimum", ".3f"),
    ):  # fmt: skip
        shown.add_row(title, *(format(each[key], kind) for each in figures.values()))
    return shown


BENCHMARK = Benchmark(
    name="overload",
    line="more rows than a query can process: what is delivered within the deadline, with shedding, a drop at the source, and neither",
    options=dict(DEFAULTS),
    lanes=lambda options: [],
    measure=measure,
)
