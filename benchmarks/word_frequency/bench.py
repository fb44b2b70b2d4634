"""Word frequency: the latency of counts, the effect of checkpoints on it, and the greatest throughput."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.bench.model import OURS, Benchmark, DirectResult, Figure, Options

if TYPE_CHECKING:
    from benchmarks.word_frequency.cell import Cell
    from benchmarks.word_frequency.engines import Engines
    from benchmarks.word_frequency.plan import Cells
    from benchmarks.word_frequency.summary import Seen

SECONDS = 5.0


def measure(options: Options) -> DirectResult:
    """Run all parts, each engine in a separate process."""
    from benchmarks.word_frequency.engines import processes
    from benchmarks.word_frequency.plan import Cells, pools, read

    plan = read(options)
    with processes(plan.engines) as (engines, folder):
        cells = Cells(plan, pools(options, plan, folder))
        for engine in plan.engines:
            print(f"word-frequency: {engine}: warming up for {plan.warm_s:.0f} s", flush=True)
            engines.run(cells.warm(engine))
        return measured(engines, cells)


def measured(engines: Engines, cells: Cells) -> DirectResult:
    """Run the parts one after the other."""
    from benchmarks.word_frequency import tables

    asked = cells.plan.parts
    latency = _all(engines, cells.latency()) if "latency" in asked else []
    interval = _all(engines, cells.interval()) if "interval" in asked else []
    throughput = _all(engines, cells.throughput()) if "throughput" in asked else []
    every = [*latency, *interval, *throughput]
    rates = {seen.cell.engine: seen.words_s for seen in throughput if seen.cell.window == throughput[0].cell.window}
    return DirectResult(
        tuple(_figures(latency)),
        rates.pop(OURS, 0.0),
        rates,
        not any(seen.wrong for seen in every),
        {
            "unit": "words a second of the first of --windows",
            "latency": [tables.plain(seen) for seen in latency],
            "interval": [tables.plain(seen) for seen in interval],
            "throughput": [tables.plain(seen) for seen in throughput],
            "plots": tables.draw(latency, interval),
        },
        tuple(tables.tables(latency, interval, throughput)),
    )


def _all(engines: Engines, cells: Iterable[Cell]) -> list[Seen]:
    found = []
    for cell in cells:
        began_s = time.monotonic()
        seen = engines.run(cell)
        found.append(seen)
        took = f"{time.monotonic() - began_s:.0f} s"
        print(f"word-frequency: {_line(seen)} ({took})", flush=True)
    return found


def _line(seen: Seen) -> str:
    cell = seen.cell
    offered = f"{cell.rate:,.0f} fragments/s offered" if cell.rate else "as fast as it can"
    every = f", a batch every {cell.interval_s:g} s" if cell.interval_s else ""
    latency = f"95% in {seen.latency_ms['p95']:,.0f} ms" if seen.latency_ms else f"{seen.words_s:,.0f} words/s"
    recovery = f", {seen.delta_share or 0:.1%} changed, recovered in {seen.recovery_s:.1f} s" if seen.recovery_s is not None else ""
    owed = ", and some were still owed" if seen.overran else ""
    return f"{cell.window.name}, {cell.words:,} words, {cell.name}, {offered}{every}: {latency}{recovery}{owed}, {seen.wrong or 'equal'}"


def _figures(latency: list[Seen]) -> list[Figure]:
    """Headrace's latency must be below that of the first baseline."""
    by_cell: dict[tuple[int, float], list[Seen]] = {}
    for seen in latency:
        if seen.cell.sync:
            by_cell.setdefault((seen.cell.words, seen.cell.rate), []).append(seen)
    found = []
    for (words, rate), (ours, *others) in by_cell.items():
        if others and ours.latency_ms and others[0].latency_ms:
            theirs = others[0].latency_ms["p95"]
            name = f"95th percentile, {words:,} words, {rate:,.0f} fragments/s"
            found.append(Figure(name, ours.latency_ms["p95"], theirs, "ms", f"under {theirs:,.0f} ms: {others[0].cell.engine}"))
    return found


BENCHMARK = Benchmark(
    name="word-frequency",
    line="how late word counts come at fixed rates, what checkpoints cost, and words a second",
    options={
        "parts": "latency,interval,throughput",
        "rates": "100,500,1000,10000,100000",
        "words": "100,10000,100000",
        "window": "30s",
        "intervals": "0,1,2,5,10",
        "windows": "running,30s,15min,1h,12h",
        "rows": 100_000,
        "warm": 60.0,
        "text": "none",
        "skew": 0.0,
        "hot": 4,
        "seed": 1,
        "baselines": "spark-rocksdb,spark-memory",
    },
    lanes=lambda options: [],
    measure=measure,
    seconds=SECONDS,
)
