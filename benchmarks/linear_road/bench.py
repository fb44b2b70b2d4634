"""How many expressways the query can handle, with every answer right and in time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.bench.machine import heap_gb_default
from headrace.bench.model import Benchmark, DirectResult, Figure, Options
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from benchmarks.linear_road.paced import Prepared
    from benchmarks.linear_road.reference import Answers
    from benchmarks.linear_road.run import Outcome

DEFAULTS = {"xways": 20, "minutes": 3, "from": 6, "ramp": 5, "seed": 1, "instances": 2, "search": False}
FILES = {"input": "", "history": "", "out": "", "no_pace": False}
ACCIDENT_EVERY_S = 60.0
GROWTH = 1.5
CLOSE = 0.1
"""A search ends when the largest number that works and the smallest that fails differ by at most this."""


def measure(options: Options) -> DirectResult:
    """One run; or, with --search, runs until the largest number of expressways is known."""
    for name, least in (("xways", 1), ("minutes", 1), ("from", 0), ("ramp", 1), ("instances", 1)):
        if int(options[name]) < least:
            raise HeadraceError(where=f"bench linear-road --{name}", wanted=f"a number from {least} on", found=str(options[name]))
    missing = [f"--{name}" for name in ("input", "history", "out") if not options[name]]
    if len(missing) in (1, 2):
        given = "--input FILE, --history FILE and --out DIR together"
        raise HeadraceError(where="bench linear-road", wanted=given, found=f"no {' and no '.join(missing)}")
    if options["no_pace"] and missing:
        hint = "made traffic is there to be met at its own speed"
        raise HeadraceError(where="bench linear-road --no-pace", wanted="--input, --history and --out", found="none of them", hint=hint)
    folder = Path(tempfile.mkdtemp(prefix="headrace-linear-road-"))
    try:
        return _made(options, folder) if missing else _given(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(options: Options, folder: Path) -> DirectResult:
    from benchmarks.linear_road.check import expected
    from benchmarks.linear_road.paced import prepare
    from benchmarks.linear_road.road import Traffic

    begins_s = 60 * int(options["from"])
    ends_s = begins_s + 60 * int(options["minutes"])
    # A short day has accidents too.
    traffic = Traffic(seed=int(options["seed"]), ramp_s=60 * int(options["ramp"]), accident_every_s=ACCIDENT_EVERY_S)
    print(f"linear road: making {ends_s // 60} minutes of traffic", flush=True)
    day = prepare(folder / "day", traffic, begins_s, ends_s)
    wanted = expected(day)

    def trial(xways: int) -> DirectResult:
        return _run(options, day, wanted, xways, folder / f"L{xways}")

    return search(trial, int(options["xways"])) if options["search"] else trial(int(options["xways"]))


def search(trial: Callable[[int], DirectResult], first: int) -> DirectResult:
    """The largest number of expressways that works: increase it until it fails, then bisect.

    >>> def trial(xways):
    ...     return DirectResult((Figure("toll", xways / 10, 5, "s"),), float(xways), {}, True)
    >>> search(trial, 20).ours, search(trial, 400).ours
    (47.0, 46.0)
    """
    good: DirectResult | None = None
    bad: int | None = None
    xways = first
    while True:
        tried = trial(xways)
        if tried.equal and all(figure.holds for figure in tried.figures):
            good = tried
        else:
            bad = xways
        if bad is None:
            xways = round(xways * GROWTH)
        elif good is None:
            xways //= 2
            if xways == 0:
                return tried
        else:
            if bad - good.ours <= max(1.0, CLOSE * good.ours):
                return good
            xways = int(good.ours + bad) // 2


def _run(options: Options, day: Prepared, wanted: Answers, xways: int, folder: Path) -> DirectResult:
    from benchmarks.linear_road.check import verdict
    from benchmarks.linear_road.plot import draw
    from benchmarks.linear_road.run import LIMITS_S, Outcome, Run, response_times, session

    outcome = Outcome(xways)
    with session(heap_gb_default()) as spark:
        print(f"linear road: {xways} expressways, the past", flush=True)
        Run(spark, day, folder, outcome, int(options["instances"])).go()
    times = response_times(outcome, day)
    for kind, (median, p95, p99, worst, count) in times.items():
        seen = f"median {median:.2f} s   95% {p95:.2f} s   99% {p99:.2f} s   max {worst:.2f} s"
        print(f"{kind:<10} {count:>10,} answers   {seen}", flush=True)
    _tell_where_the_time_goes(outcome)
    print(f"plot: {draw(outcome, day)}", flush=True)
    checked = verdict(outcome.table(), wanted, xways, day)
    print(f"{checked.checked:,} answers checked: " + ("all right" if checked.equal else checked.why), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    figures = [Figure(f"{kind}, 99th percentile", each[2], LIMITS_S[kind], "s") for kind, each in times.items()]
    return DirectResult(tuple(figures), float(xways), {}, checked.equal)


def _tell_where_the_time_goes(outcome: Outcome) -> None:
    from benchmarks.linear_road.run import where_the_time_goes

    for line in where_the_time_goes(outcome.batches):
        print(line, flush=True)
    print(f"files were late by at most {outcome.late_s:.2f} s", flush=True)


def _given(options: Options, folder: Path) -> DirectResult:
    """Run a day from the user's files, and write the answers to files."""
    from benchmarks.linear_road.check import expected, verdict
    from benchmarks.linear_road.given import given
    from benchmarks.linear_road.outputs import Outputs
    from benchmarks.linear_road.run import LIMITS_S, Outcome, Run, response_times, session

    paced = not options["no_pace"]
    day = given(Path(str(options["input"])), Path(str(options["history"])), folder / "day", paced)
    outcome, outputs = Outcome(1), Outputs(Path(str(options["out"])))
    with session(heap_gb_default()) as spark:
        Run(spark, day, folder / "run", outcome, int(options["instances"]), outputs).go()
    outputs.close()
    checked = verdict(outcome.table(), expected(day), 1, day)
    print(f"{checked.checked:,} answers checked: " + ("all right" if checked.equal else checked.why), flush=True)
    if not paced:
        return DirectResult((), outcome.past_rows / outcome.past_s, {}, checked.equal)
    _tell_where_the_time_goes(outcome)
    times = response_times(outcome, day)
    figures = [Figure(f"{kind}, 99th percentile", each[2], LIMITS_S[kind], "s") for kind, each in times.items()]
    return DirectResult(tuple(figures), 1.0, {}, checked.equal)


BENCHMARK = Benchmark(
    name="linear-road",
    line="how many expressways with every answer right and in time",
    options=dict(DEFAULTS | FILES),
    lanes=lambda options: [],
    measure=measure,
)
