"""How many expressways: every answer right, and in time."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.machine import heap_gb_default
from headrace.bench.model import Benchmark, Figure, Measured, Options
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from benchmarks.linear_road.paced import Prepared
    from benchmarks.linear_road.reference import Answers

DEFAULTS = {"xways": 20, "minutes": 3, "from": 20, "ramp": 20, "seed": 1, "instances": 2, "search": False}


def measure(options: Options) -> Measured:
    """One run, or, with --search, runs with ever more expressways until the limits are missed."""
    for name, least in (("xways", 1), ("minutes", 1), ("from", 0), ("ramp", 1), ("instances", 1)):
        if int(options[name]) < least:
            raise HeadraceError(where=f"bench linear-road --{name}", wanted=f"a number from {least} on", found=str(options[name]))
    folder = Path(tempfile.mkdtemp(prefix="headrace-linear-road-"))
    try:
        return _measured(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measured(options: Options, folder: Path) -> Measured:
    from benchmarks.linear_road.check import expected
    from benchmarks.linear_road.paced import prepare
    from benchmarks.linear_road.road import Traffic

    begins_s = 60 * int(options["from"])
    ends_s = begins_s + 60 * int(options["minutes"])
    traffic = Traffic(seed=int(options["seed"]), ramp_s=60 * int(options["ramp"]))
    print(f"linear road: making {ends_s // 60} minutes of traffic", flush=True)
    day = prepare(folder / "day", traffic, begins_s, ends_s)
    wanted = expected(day)
    xways = int(options["xways"])
    best = _run(options, day, wanted, xways, folder / f"L{xways}")
    while options["search"] and all(figure.holds for figure in best.figures) and best.equal:
        xways = round(xways * 1.5)
        more = _run(options, day, wanted, xways, folder / f"L{xways}")
        if not (more.equal and all(figure.holds for figure in more.figures)):
            break
        best = more
    return best


def _run(options: Options, day: Prepared, wanted: Answers, xways: int, folder: Path) -> Measured:
    from benchmarks.linear_road.check import verdict
    from benchmarks.linear_road.run import LIMITS_S, Outcome, Run, response_times, session

    outcome = Outcome(xways)
    with session(heap_gb_default()) as spark:
        run = Run(spark, day, folder, outcome, int(options["instances"]))
        print(f"linear road: {xways} expressways, the past", flush=True)
        run.past()
        print(f"linear road: {outcome.past_rows:,} tuples in {outcome.past_s:.0f} s; now at the road's own speed", flush=True)
        run.present()
    times = response_times(outcome, day)
    figures = [Figure(f"{kind}, 99th percentile", each[2], LIMITS_S[kind], "s") for kind, each in times.items()]
    for kind, (median, p95, p99, worst, count) in times.items():
        seen = f"median {median:.2f} s   95% {p95:.2f} s   99% {p99:.2f} s   max {worst:.2f} s"
        print(f"{kind:<10} {count:>10,} answers   {seen}", flush=True)
    batch = outcome.batches[len(outcome.batches) // 2]
    phases = ", ".join(f"{name} {ms:,.0f}" for name, ms in batch["phasesMs"].items())
    print(f"a batch in the middle: {batch['rows']:,} rows in {batch['batchMs']:,.0f} ms ({phases})")
    print(f"files were late by at most {outcome.late_s:.2f} s", flush=True)
    checked = verdict(outcome.table(), wanted, xways, day)
    print(f"{checked.checked:,} answers checked: " + ("all right" if checked.equal else checked.why), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return Measured(tuple(figures), float(xways), {}, checked.equal)


BENCHMARK = Benchmark(
    name="linear-road",
    line="how many expressways with every answer right and in time",
    options=dict(DEFAULTS),
    lanes=lambda options: [],
    measure=measure,
)
