"""Runs a benchmark, given its name, and prints the tables and the RESULT line."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from headrace.bench import direct, discover, machine, report, turns
from headrace.bench.live import LiveView
from headrace.bench.model import Benchmark, Lane, parse_options
from headrace.bench.process import LaneProcess

WIDTH_OF_FILES = 120


@dataclass(frozen=True)
class BenchSettings:
    """The options that every benchmark has."""

    seconds: float | None = None
    """Measured time per lane; None means the benchmark's default."""
    turns: int = 3
    warmup: int | None = None
    """The number of warm-up batches; None means until batches no longer get faster."""
    heap_gb: int = field(default_factory=machine.heap_gb_default)
    conf: dict[str, str] = field(default_factory=dict)
    """Spark settings for all lanes."""
    directory: str | None = None
    """The folder for checkpoints during the run; None means a temporary folder of the system."""


OpenLane = Callable[[Benchmark, Lane, Path], turns.Handle]


def run_benchmark(name: str, args: Sequence[str], settings: BenchSettings, open_lane: OpenLane | None = None) -> dict[str, Any]:
    """Run a benchmark, print the tables, and return the content of the RESULT line."""
    benchmark = discover.load(name)
    options = parse_options(benchmark, args)
    seconds = benchmark.seconds if settings.seconds is None else settings.seconds
    if benchmark.measure is not None:
        return direct.run(benchmark, benchmark.measure, {**options, "seconds": seconds}, _console())
    lanes = list(benchmark.lanes(options))
    about = {"machine": machine.describe(), "versions": machine.versions()}
    folder = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=settings.directory))
    javas: set[str] = set()

    def process(benchmark: Benchmark, lane: Lane, folder: Path) -> turns.Handle:
        return LaneProcess(benchmark.name, lane, folder, machine.cores(), settings.heap_gb, settings.conf, javas.add)

    opener = open_lane or process
    wanted = benchmark.turns(options) if benchmark.turns else settings.turns
    rounds = wanted if benchmark.alternates else 1
    try:
        with LiveView(f"bench {name}", [lane.name for lane in lanes]) as view:
            opened = partial(_open, opener, benchmark, folder)
            results = turns.run(lanes, opened, seconds, rounds, view, settings.warmup)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about["versions"]["java"] = ", ".join(sorted(javas))
    shared = {"seconds": seconds, "turns": rounds, "heap_gb": settings.heap_gb, "conf": settings.conf}
    line = report.result_line(benchmark, options, results, {**shared, **about})
    console = _console()
    for table in (report.lanes_table(benchmark, results), *benchmark.tables(results, options)):
        console.print(table)
    for lane_name, reason in line.get("reasons", {}).items():
        console.print(Text(f"{lane_name}: {reason}", style="yellow"))
    console.print(machine.line(about["machine"]))
    return line


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_FILES)


def _open(opener: OpenLane, benchmark: Benchmark, folder: Path, lane: Lane) -> turns.Handle:
    # Spark takes a comma in the name of its folder for the end of one.
    return opener(benchmark, lane, folder / lane.name.replace(",", "").replace(" ", "-"))


def print_result(line: dict[str, Any]) -> None:
    """Print the last line, for programs. It is not printed with rich, which would wrap it."""
    print("RESULT " + json.dumps(line), flush=True)
