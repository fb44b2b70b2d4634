"""The cost of a batch as the state grows, with the same number of touched keys; and the memory of a worker."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from headrace.bench import stats
from headrace.bench.model import OURS, Benchmark, Lane, LaneResult, Options, Results, engines_of, numbers_of, preload
from headrace.errors import HeadraceError

GROWTH_MAX = 2.0
MEMORY = "memory"


def sizes_of(options: Options) -> list[int]:
    sizes = numbers_of(options, "sizes")
    if not sizes:
        raise HeadraceError(where="--sizes", wanted="numbers of keys, separated by commas", found="none")
    return sizes


def lane_name(engine: str, keys: int) -> str:
    return f"{engine} {keys:,} keys"


def lanes(options: Options) -> list[Lane]:
    rows = int(options["rows"])
    sizes = sizes_of(options)
    found = [
        Lane(lane_name(engine, keys), engine, {"keys": keys, "rows": rows}, **preload(keys, rows), warmup_batches=int(options["warmup"]))
        for engine in engines_of(options)
        for keys in sizes
    ]
    if options["memory"]:
        many = int(options["memory_rows"])
        found.append(Lane(MEMORY, OURS, {"keys": sizes[-1], "rows": many}, **preload(sizes[-1], many)))
    return found


def extra(results: Results, options: Options) -> dict[str, Any]:
    sizes = sizes_of(options)
    rates = {
        engine: None if (last := results[lane_name(engine, sizes[-1])]).failed else stats.rate_total(last) for engine in engines_of(options)
    }
    ours = rates.pop(OURS)
    cost = {engine: {str(keys): _cost(results[lane_name(engine, keys)]) for keys in sizes} for engine in engines_of(options)}
    growth = {engine: _growth(list(by_size.values())) for engine, by_size in cost.items()}
    found: dict[str, Any] = {
        "ours": ours,
        "baselines": rates,
        "ratio": {name: stats.ratio(ours, rate) for name, rate in rates.items()},
        "rates_are_at_keys": sizes[-1],
        "batch_ms": cost,
        "growth": growth,
        "growth_max": GROWTH_MAX,
        "within": all(value is not None and value <= GROWTH_MAX for value in growth[OURS].values()),
    }
    if MEMORY in results:
        found["memory"] = _memory(results[MEMORY])
    return found


def tables(results: Results, options: Options) -> list[Table]:
    said = extra(results, options)
    table = Table(title=f"batch ms by keys in state, {int(options['rows']):,} rows a batch", title_justify="left")
    table.add_column("")
    for keys in sizes_of(options):
        table.add_column(f"{keys:,}", justify="right")
    table.add_column("growth", justify="right")
    for engine, by_size in said["batch_ms"].items():
        for which in ("median", "p99"):
            times = said["growth"][engine][which]
            cells = ("-" if cost[which] is None else f"{cost[which]:,.0f}" for cost in by_size.values())
            table.add_row(f"{engine}, {which}", *cells, f"{times:.2f}x" if times else "-")
    if "memory" not in said:
        return [table]
    memory = Table("keys", "rows a batch", "private memory of a worker, MB", title="memory", title_justify="left")
    private = said["memory"]["private_bytes_max"]
    memory.add_row(f"{said['memory']['keys']:,}", f"{said['memory']['rows']:,}", f"{private / 1e6:,.0f}" if private else "-")
    return [table, memory]


def _cost(result: LaneResult) -> dict[str, float | None]:
    durations = [] if result.failed else [batch.duration_ms for batch in result.batches]
    return {"median": stats.percentile(durations, 50), "p99": stats.percentile(durations, 99)}


def _growth(costs: list[dict[str, float | None]]) -> dict[str, float | None]:
    """The worst value over all sizes, divided by that of the smallest size."""
    found: dict[str, float | None] = {}
    for which in ("median", "p99"):
        values = [cost[which] for cost in costs]
        known = [value for value in values if value is not None]
        found[which] = stats.ratio(max(known), values[0]) if len(known) == len(values) else None
    return found


def _memory(result: LaneResult) -> dict[str, Any]:
    seen = [instance["privateBytes"] for progress in result.headrace for instance in progress["instances"]]
    return {"keys": result.lane.params["keys"], "rows": result.lane.rows, "private_bytes_max": max(seen, default=None)}


BENCHMARK = Benchmark(
    name="state-size",
    line="cost of a batch against the number of keys in state, at the same number of rows a batch",
    options={
        "sizes": "100000,1000000,10000000",
        "rows": 100_000,
        "warmup": 10,
        "memory": False,
        "memory_rows": 1_000_000,
        "baselines": "none",
    },
    lanes=lanes,
    extra=extra,
    tables=tables,
)
