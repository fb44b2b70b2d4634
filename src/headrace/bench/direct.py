"""Benchmarks of plain functions, without lanes and without Spark: each figure is compared with a limit.

    repeats of a call -> their median -> a figure with its limit -> a table, and the RESULT line

A slow policy delays a batch, so figures have limits. Where there is a baseline, its median is the limit.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.bench import machine, stats
from headrace.bench.model import Benchmark, DirectResult, Figure, Options


def median_s(call: Callable[[], object], repeats: int, calls: int = 1) -> float:
    """CPU seconds of a call: the median of several repeats, each the mean of `calls`, after one warm-up call.

    CPU time is used because other processes hardly affect it. The garbage collector is paused, because most of what it would collect
    comes from other calls.
    """
    call()
    took = []
    collects = gc.isenabled()
    gc.disable()
    try:
        for _ in range(repeats):
            start_s = time.process_time()
            for _ in range(calls):
                call()
            took.append((time.process_time() - start_s) / calls)
    finally:
        if collects:
            gc.enable()
    return median(took)


def run(benchmark: Benchmark, measure: Callable[[Options], DirectResult], options: Options, console: Console) -> dict[str, Any]:
    """Measure, print the table, and return the content of the RESULT line."""
    about = {"machine": machine.describe(), "versions": machine.versions()}
    measured = measure(options)
    for each in measured.tables:
        console.print(each)
    if measured.figures:
        console.print(table(benchmark, measured.figures))
    console.print(machine.line(about["machine"]))
    return {**result_line(benchmark, measured, options), **measured.extra, **about}


def result_line(benchmark: Benchmark, measured: DirectResult, options: Options) -> dict[str, Any]:
    """The content of the RESULT line. The keys that every benchmark has come first, in the same order."""
    return {
        "bench": benchmark.name,
        "ours": round(measured.ours, 3),
        "baselines": {name: round(rate, 3) for name, rate in measured.baselines.items()},
        "ratio": {name: stats.ratio(measured.ours, rate) for name, rate in measured.baselines.items()},
        "equal": measured.equal,
        "within": all(figure.holds for figure in measured.figures),
        "figures": {
            figure.name: {"seen": _rounded(figure.seen), "limit": _rounded(figure.limit), "unit": figure.unit, "holds": figure.holds}
            for figure in measured.figures
        },
        "options": dict(options),
        "lanes": {},
    }


def table(benchmark: Benchmark, figures: tuple[Figure, ...]) -> Table:
    """A table with one row per figure."""
    found = Table(title=f"{benchmark.name}: {benchmark.line}", title_justify="left")
    found.add_column("")
    for column in ("asked", "seen", "holds"):
        found.add_column(column, justify="right")
    for figure in figures:
        asked = figure.asked or f"under {figure.limit:g} {figure.unit}"
        found.add_row(figure.name, asked, f"{_rounded(figure.seen):g} {figure.unit}", "yes" if figure.holds else "[red]NO[/red]")
    return found


def _rounded(value: float) -> float:
    """A number with three significant digits."""
    return float(f"{value:.3g}")
